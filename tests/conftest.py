"""Commands as a user runs them; and how the tests share a machine."""

import getpass
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

# What the tests compute is small. With a thread for each core, workers and ranks would wait for
# each other: the matrices of PB2 took thirty times as long. Numpy reads it when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if "PYTEST_XDIST_WORKER" in os.environ:
    import torch

    torch.set_num_threads(1)  # in no variable: commands find out for themselves what they may use

from evorl.cli import main

# Whoever runs the tests in the background ignores Ctrl-C, and all commands would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Torch's own place for compiled programs, also for commands that get another TMPDIR.
CACHE = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE))


def pytest_collection_modifyitems(items):
    """What is slow comes first, so that no worker is left with it at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


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
