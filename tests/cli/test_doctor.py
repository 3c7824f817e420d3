"""evorl doctor."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from evorl.cli import doctor as package
from evorl.cli.doctor import CHECKS, Check, check_compiler, check_ranks, check_wandb

from .answers import ROOT


def raises(error):
    def run():
        raise error

    return run


@pytest.fixture
def machine(monkeypatch):
    """Replace the checks."""
    return lambda *checks: monkeypatch.setattr(package, "CHECKS", checks)


def test_all_is_well(evorl, machine):
    missing = raises(ModuleNotFoundError("No module named 'wandb'"))
    machine(Check("torch", lambda: "fine", ""), Check("W&B", missing, "get it", needed=False))
    code, out, err = evorl("doctor")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "torch         ok       fine",
        "W&B           missing  ModuleNotFoundError: No module named 'wandb'; get it",
        "ready to train",
    ]


def test_what_is_needed_makes_the_exit_code(evorl, machine):
    machine(
        Check("torch", raises(OSError("libcuda.so: \tgone\nmore")), "mend it"),
        Check("disk", lambda: "fine", ""),
        Check("two ranks", raises(RuntimeError()), "try again"),
    )
    code, out, err = evorl("doctor")
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "torch         broken   OSError: libcuda.so: \\tgone; mend it",
        "disk          ok       fine",
        "two ranks     broken   RuntimeError: ; try again",
        "not ready: torch, two ranks",
    ]


def test_for_scripts(evorl, machine):
    machine(Check("torch", lambda: "fine", ""), Check("disk", raises(OSError("full")), "tidy up"))
    code, out, err = evorl("doctor", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out) == [
        {"name": "torch", "state": "ok", "what": "fine"},
        {"name": "disk", "state": "broken", "what": "OSError: full; tidy up"},
    ]


NEEDED = [check for check in CHECKS if check.needed]


@pytest.mark.slow
@pytest.mark.parametrize("check", NEEDED, ids=lambda check: check.name)
def test_each_check_on_this_machine(check, monkeypatch):
    """What the tests themselves need is here."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert check.run()


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(FileNotFoundError, match="no no-such-compiler: long runs are not compiled"):
        check_compiler()


def test_ranks_that_do_not_end(monkeypatch):
    monkeypatch.setattr(package, "SECONDS", 0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        check_ranks()


def test_wandb(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(package.importlib.metadata, "version", lambda name: "9.9")
    with pytest.raises(FileNotFoundError):
        check_wandb()
    (tmp_path / ".netrc").write_text("machine example.org login user password made-up\n")
    (tmp_path / ".netrc").chmod(0o600)
    with pytest.raises(PermissionError, match=r"9\.9 has no key for api\.wandb\.ai"):
        check_wandb()
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password made-up\n")
    assert check_wandb() == "9.9, logged in"
    Path(tmp_path, ".netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "made-up")
    assert check_wandb() == "9.9, logged in"


@pytest.mark.slow
def test_ranks_that_fail(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{tmp_path}")
    (tmp_path / "failing.py").write_text("raise OSError('no network here')\n")
    with pytest.raises(RuntimeError, match="OSError: no network here"):
        check_ranks("failing")


def test_it_says_where_python_is():
    assert re.fullmatch(r"3\.\d+\.\d+.* in " + re.escape(sys.prefix), CHECKS[0].run())
