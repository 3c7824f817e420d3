"""The roll call after a collective has failed: who answers, and what if the store is gone too."""

import os
import signal
import threading
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from evorl.distributed import barrier as meeting
from evorl.distributed.barrier import Meeting
from evorl.training.signals import Interrupted, ending_on_signals


@pytest.fixture
def make(monkeypatch):
    """Meetings of three ranks, all in this process."""
    server = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    monkeypatch.setattr(meeting, "PATIENCE", 0.5)
    monkeypatch.setattr(meeting, "_numbers", iter([0] * 3))
    yield [Meeting(rank, 3, timeout=5) for rank in range(3)]
    del server


def test_only_those_that_say_nothing_are_named(make, monkeypatch):
    assert make[0].silent(range(3)) == [1, 2]
    assert make[1].silent(range(3)) == [2]
    assert make[1].silent([0, 1]) == []
    monkeypatch.setattr(meeting, "PATIENCE", 60.0)
    later = threading.Timer(0.2, lambda: make[2].silent([]))
    later.start()
    assert make[0].silent(range(3)) == []  # as soon as all have answered
    later.join()


def test_a_store_that_is_gone_names_nobody(make):
    class Gone:
        def set(self, key, value):
            raise RuntimeError("Broken pipe")

    make[0]._store = Gone()
    assert make[0].silent(range(3)) == []


class Hanging:
    """As if the cable were cut: nothing comes back."""

    def __init__(self):
        self.over, self.asked = threading.Event(), threading.Event()

    def set(self, key, value):
        self.asked.set()
        self.over.wait()


def test_a_store_that_does_not_reply_names_nobody(make):
    make[0]._store = Hanging()
    assert make[0].silent(range(3)) == []
    make[0]._store.over.set()


def test_a_signal_ends_the_wait(make, monkeypatch):
    monkeypatch.setattr(meeting, "PATIENCE", 600.0)
    make[0]._store = store = Hanging()

    def end():
        store.asked.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=end)
    sender.start()
    with pytest.raises(Interrupted), ending_on_signals():
        make[0].silent(range(3))
    sender.join()
    store.over.set()
