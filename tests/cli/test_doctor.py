"""evorl doctor."""

import os
import re
import sys
import types
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from evorl.cli import checks
from evorl.cli.checks import CHECKS, Check, Finding, examine, logged_in, two_ranks
from evorl.cli.doctor import finding_line

from .answers import ROOT, wait_for

OK = Finding("ok", "fine")


@pytest.fixture
def machine(monkeypatch):
    """Replace the checks by what they find, by name: `needed` or not."""

    def set_up(*found, ranks=OK):
        made = [Check(name, lambda one=one: one, needed) for name, one, needed in found]
        monkeypatch.setattr(checks, "CHECKS", made)
        monkeypatch.setattr(checks, "two_ranks", lambda: nullcontext(lambda: ranks))

    return set_up


def test_all_is_well(evorl, machine):
    machine(("torch", OK, True), ("W&B", Finding("missing", "not installed", "get it"), False))
    code, out, err = evorl("doctor")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "torch         ok       fine",
        "W&B           missing  not installed (optional); get it",
        "two ranks     ok       fine",
        "ready to train",
    ]


def test_what_is_needed_makes_the_exit_code(evorl, machine):
    broken = Finding("broken", "it\nfell", "mend it")
    machine(("torch", broken, True), ("disk", OK, True), ranks=broken)
    code, out, err = evorl("doctor")
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "torch         broken   it\\nfell; mend it",
        "disk          ok       fine",
        "two ranks     broken   it\\nfell; mend it",
        "not ready: torch, two ranks",
    ]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_each_check_on_this_machine(check):
    """What the tests themselves need is here; the rest at least has an answer."""
    found = examine(check)
    if check.needed:
        assert found.state == "ok", found
    assert found.what
    assert bool(found.advice) is (found.state != "ok")


def raises(error):
    def run():
        raise error

    return run


def test_what_a_check_raises_is_a_finding():
    missing = examine(Check("x", raises(ModuleNotFoundError("no", name="torch.nn")), True))
    assert missing == Finding("missing", "no module torch", "pip install -c constraints.txt torch")
    broken = examine(Check("x", raises(OSError("libcuda.so: gone\nmore")), True))
    assert broken == Finding("broken", "OSError: libcuda.so: gone", "reinstall it")


@pytest.mark.parametrize("name", ["Box2D", "envpool", "wandb"])
def test_packages_that_are_not_there(monkeypatch, name):
    real = checks.importlib.util.find_spec
    monkeypatch.setattr(
        checks.importlib.util, "find_spec", lambda each: None if each == name else real(each)
    )
    (check,) = [
        each for each in CHECKS if each.name.lower().replace("w&b", "wandb") == name.lower()
    ]
    found = examine(check)
    assert found.state == "missing"
    assert "pip install" in found.advice


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert checks.check_compiler().state == "missing"


def test_a_compiler_that_fails(monkeypatch, tmp_path):
    fake = tmp_path / "cxx"
    fake.write_text("#!/bin/sh\necho 'a.cpp:1: fatal error: Python.h: No such file' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    found = checks.check_compiler()
    assert found.state == "broken"
    assert "Python.h: No such file" in found.what
    assert "python3-dev" in found.advice


def test_disk(monkeypatch, tmp_path):
    assert checks.check_disk(tmp_path / "not" / "there" / "yet").state == "ok"
    assert list(tmp_path.iterdir()) == []
    usage = types.SimpleNamespace(free=2**29)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: usage)
    found = checks.check_disk(tmp_path)
    assert (found.state, found.what) == ("broken", f"0.5 GiB free in {tmp_path}")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be written" in checks.check_disk(tmp_path).what


def test_memory(monkeypatch, tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 3145728 kB\n")
    nothing = tmp_path / "nothing"
    assert checks.free_memory(tmp_path / "meminfo", nothing) == 3 * 2**30
    assert checks.free_memory(nothing, nothing) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{2**30}\n")
    assert checks.free_memory(tmp_path / "meminfo", tmp_path) == 3 * 2**30
    (tmp_path / "memory.max").write_text(f"{3 * 2**29}\n")
    assert checks.free_memory(tmp_path / "meminfo", tmp_path) == 2**29
    monkeypatch.setattr(checks, "free_memory", lambda: 2**29)
    assert checks.check_memory().state == "broken"
    monkeypatch.setattr(checks, "free_memory", lambda: None)
    assert checks.check_memory().state == "ok"


@pytest.fixture
def home(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


def test_logged_in_by_netrc(home, monkeypatch):
    assert not logged_in()
    (home / ".netrc").write_text("machine example.org login user password made-up\n")
    assert not logged_in()
    monkeypatch.setenv("WANDB_BASE_URL", "https://example.org")
    assert logged_in()
    (home / ".netrc").write_text("machine [")
    assert not logged_in()


def test_logged_in_by_the_environment(home, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "made-up")
    assert logged_in()


def test_wandb(home, monkeypatch):
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(checks.importlib, "import_module", lambda name: None)
    monkeypatch.setattr(checks.importlib.metadata, "version", lambda name: "9.9")
    assert checks.check_wandb().what == "9.9, not logged in"
    monkeypatch.setenv("WANDB_API_KEY", "made-up")
    assert checks.check_wandb() == Finding("ok", "9.9, logged in")


def test_colours_of_a_line():
    line = finding_line("torch", Finding("broken", "gone", "mend it"), True)
    assert line.markup == "torch         [red]broken [/red]  gone; mend it"


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder of modules that ranks can run."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{tmp_path}")
    return tmp_path


@pytest.mark.slow
def test_two_ranks_meet(modules):
    with two_ranks() as meet:
        assert meet() == Finding("ok", "started by accelerate launch, met over gloo")


@pytest.mark.slow
def test_ranks_that_fail(modules):
    (modules / "failing.py").write_text("raise OSError('no network here')\n")
    with two_ranks("failing") as meet:
        found = meet()
    assert found.state == "broken"
    assert "OSError: no network here" in found.what
    assert "docs/distributed.md" in found.advice


@pytest.mark.slow
def test_ranks_that_never_meet_are_ended(modules):
    (modules / "waiting.py").write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(modules)!r}, f'{{os.getpid()}}.pid').touch()\n"
        "time.sleep(600)\n"
    )
    with two_ranks("waiting", seconds=0.01) as meet:
        wait_for(lambda: len(list(modules.glob("*.pid"))) == 2)
        found = meet()
    assert (found.state, found.what) == ("broken", "they did not meet within 0.01 s")
    assert not any(psutil.pid_exists(int(file.stem)) for file in modules.glob("*.pid"))


def test_it_says_where_python_is():
    assert re.fullmatch(r"3\.\d+\.\d+.* in " + re.escape(sys.prefix), examine(CHECKS[0]).what)
