"""Only one process at a time has the lock, whatever happens while another waits for it."""

import fcntl
import os

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
