"""Processes that are started, begun again and ended; what they do is not the point here."""

import os
import signal
import socket
import threading
import time
import warnings

import psutil
import pytest

from evorl.actors import ChildProcesses, child_processes
from evorl.errors import RunError


class Watched:
    """Children of a body, and what changed."""

    def __init__(self, body, slots=2, respawns=True, **told):
        self.children, self.changed = ChildProcesses(body, slots, respawns), threading.Event()
        self.nursery = psutil.Process(self.children._pid)
        self.children.start(told, self.changed.set)

    def check(self):
        """What it warns of, and raises, once something has changed."""
        assert self.changed.wait(60)
        self.changed.clear()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.children.check()
        return [str(own.message) for own in told]

    def actors(self, count):
        while len(found := self.nursery.children()) != count:
            time.sleep(0.01)
        return found

    def close(self):
        folder = self.children.folder
        assert folder.stat().st_mode & 0o077 == 0  # nobody else looks into it
        self.children.close()
        self.children.close()
        assert not self.nursery.is_running()
        assert not folder.exists()


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def test_all_leave_when_it_is_over(tmp_path):
    def body(slot, told):
        wait_for(told["over"])
        (tmp_path / f"left{slot}").touch()

    watched = Watched(body, over=str(tmp_path / "over"))
    actors = watched.actors(2)
    (tmp_path / "over").touch()
    watched.close()
    assert not any(actor.is_running() for actor in actors)
    assert {path.name for path in tmp_path.iterdir()} == {"over", "left0", "left1"}


def test_one_that_dies_is_named_and_begun_again(monkeypatch):
    monkeypatch.setattr(child_processes, "LEAVE", 0.1)  # they never leave by themselves
    watched = Watched(lambda slot, told: signal.pause())
    first, _ = watched.actors(2)
    first.kill()
    (line,) = watched.check()
    assert line.endswith(f"(process {first.pid}) ended by SIGKILL; another one takes its place")
    assert watched.children.started == 3
    actors = watched.actors(2)
    assert first not in actors
    watched.close()
    assert not any(actor.is_running() for actor in actors)


def test_one_that_never_gets_anywhere_ends_it(capfd):
    def body(slot, told):
        raise RunError("actor 0: no luck")

    watched = Watched(body, slots=1)

    def check():
        while True:
            watched.check()

    with pytest.raises(RunError, match=r"^actor 0 \(process \d+\) ended with exit code 2, and 3 t"):
        check()
    watched.close()
    assert capfd.readouterr().err.splitlines() == ["error: actor 0: no luck"] * 3


def test_without_another_one_the_first_death_ends_it(capfd):
    watched = Watched(lambda slot, told: 1 / 0, slots=1, respawns=False)
    with pytest.raises(RunError, match=r"exit code 1, and in lock-step nobody can take its place"):
        watched.check()
    watched.close()
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_who_starts_them_dies(tmp_path):
    watched = Watched(lambda slot, told: signal.pause())
    actors = watched.actors(2)
    watched.nursery.kill()
    with pytest.raises(RunError, match=r"^the process that starts actors is gone; resume the run"):
        watched.check()
    psutil.wait_procs(actors, 30)
    assert not any(actor.is_running() for actor in actors)
    watched.children.close()


def test_a_learner_that_dies_before_it_has_heard_all_is_gone():
    learner, nursery = socket.socketpair()
    nursery.sendall(b"news")
    learner.close()
    assert child_processes._heard(nursery) == b""  # a reset, for whoever reads on
