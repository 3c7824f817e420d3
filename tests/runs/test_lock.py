"""Only one process at a time has the lock, whatever happens while another waits for it."""

import fcntl
import os
import time

import pytest

from evorl.errors import RunError
from evorl.runs.directory import RunDirectory


def test_a_lock_that_was_removed_meanwhile_is_worth_nothing(tmp_path, monkeypatch):
    """One opens the file, its owner ends, a third gets a lock: the first must not get in, too."""
    first, third = (RunDirectory(tmp_path).locked() for _ in range(2))
    first.__enter__()
    lock = fcntl.flock

    def late(file, how):
        monkeypatch.setattr(fcntl, "flock", lock)
        first.__exit__(None, None, None)
        third.__enter__()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with (
        pytest.raises(RunError, match="another process is training this run"),
        RunDirectory(tmp_path).locked(),
    ):
        pass
    third.__exit__(None, None, None)
    assert not list(tmp_path.iterdir())


def test_after_its_owner_has_gone_it_is_made_anew(tmp_path, monkeypatch):
    first = RunDirectory(tmp_path).locked()
    first.__enter__()
    lock = fcntl.flock

    def late(file, how):
        monkeypatch.setattr(fcntl, "flock", lock)
        first.__exit__(None, None, None)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with RunDirectory(tmp_path).locked():
        assert os.listdir(tmp_path) == [".lock"]
        with pytest.raises(RunError, match="wait for it"), RunDirectory(tmp_path).locked():
            pass


def test_it_is_removed_while_it_is_held(tmp_path, monkeypatch):
    held = []

    def watch(path, *arguments, remove=os.unlink, **options):
        with open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(False)
            except BlockingIOError:
                held.append(True)
        remove(path, *arguments, **options)

    monkeypatch.setattr(os, "unlink", watch)
    with pytest.raises(KeyError), RunDirectory(tmp_path).locked():
        raise KeyError
    assert held == [True]
    assert not list(tmp_path.iterdir())


def test_who_is_running(tmp_path):
    directory = RunDirectory.create(tmp_path, "run")
    assert not directory.running
    assert list(directory.path.iterdir()) == []  # nothing was written to find out
    with directory.locked():
        assert directory.running
        assert RunDirectory(directory.path).running
        with pytest.raises(RunError, match="run: another process is training this run; wait for"):
            directory.locked().__enter__()
        assert directory.running
    assert not directory.running


def test_the_lock_goes_with_a_run_that_fails(tmp_path):
    directory = RunDirectory.create(tmp_path, "run")
    with pytest.raises(KeyboardInterrupt), directory.locked():
        raise KeyboardInterrupt
    assert list(directory.path.iterdir()) == []


def test_the_lock_of_a_dead_process_does_not_block(tmp_path):
    directory = RunDirectory.create(tmp_path, "run")
    child = os.fork()
    if child == 0:
        lock = directory.locked()
        lock.__enter__()
        os._exit(9)  # as if killed: nothing is released or removed
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert (directory.path / ".lock").exists()
    assert not directory.running
    with directory.locked():
        assert directory.running


def test_a_child_that_outlives_the_run_does_not_keep_its_lock(tmp_path):
    directory = RunDirectory.create(tmp_path, "run")
    wait, let_go = os.pipe()
    with directory.locked():
        child = os.fork()
        if child == 0:
            os.close(let_go)
            os.read(wait, 1)
            os._exit(0)
    with directory.locked():
        assert directory.running
    os.close(let_go)
    os.waitpid(child, 0)


def test_a_run_waits_for_somebody_who_only_looks(tmp_path, monkeypatch):
    directory = RunDirectory.create(tmp_path, "run")
    (directory.path / ".lock").touch()
    looking = (directory.path / ".lock").open("rb")
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda seconds: looking.close())
    with directory.locked():
        assert looking.closed
        assert directory.running


def test_a_lock_that_leads_elsewhere_is_refused(tmp_path):
    directory = RunDirectory.create(tmp_path, "run")
    (directory.path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"\.lock: is a symbolic link"), directory.locked():
        pass
    assert not (tmp_path / "elsewhere").exists()
