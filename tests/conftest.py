"""Commands as a user runs them."""

import signal
import sys
import warnings

import pytest

from evorl.cli import main

# Whoever runs the tests in the background ignores Ctrl-C, and all commands would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def evorl(monkeypatch, tmp_path, capfd):
    """Run a command in this process, in an empty folder; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["evorl", *map(str, arguments)])
        code = 0
        with warnings.catch_warnings():  # the command redirects warnings for good
            try:
                main()
            except SystemExit as ended:
                code = ended.code
        said = capfd.readouterr()
        return code, said.out, said.err

    return call
