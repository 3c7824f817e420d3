"""The roll call after a collective has failed: who answers, and what if the store is gone too."""

import os
import signal
import threading
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from evorl.distributed import store
from evorl.distributed.store import RollCall
from evorl.training.signals import Interrupted, ending_on_signals


@pytest.fixture
def calls(monkeypatch):
    """The roll calls of three ranks, all in this process."""
    server = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    monkeypatch.setattr(store, "PATIENCE", 0.2)
    monkeypatch.setattr(store, "_numbers", iter([0] * 3))
    yield [RollCall(rank, timedelta(seconds=5)) for rank in range(3)]
    del server


def test_only_those_that_say_nothing_are_named(calls, monkeypatch):
    assert calls[0].silent(range(3)) == [1, 2]
    assert calls[1].silent(range(3)) == [2]
    assert calls[1].silent([0, 1]) == []
    monkeypatch.setattr(store, "PATIENCE", 60.0)
    later = threading.Timer(0.05, lambda: calls[2].silent([]))
    later.start()
    assert calls[0].silent(range(3)) == []  # as soon as all have answered
    later.join()


def test_a_store_that_is_gone_names_nobody(calls):
    class Gone:
        def set(self, key, value):
            raise RuntimeError("Broken pipe")

    calls[0]._store = Gone()
    assert calls[0].silent(range(3)) == []


class Hanging:
    """As if the cable were cut: nothing comes back."""

    def __init__(self):
        self.over, self.asked = threading.Event(), threading.Event()

    def set(self, key, value):
        self.asked.set()
        self.over.wait()


def test_a_store_that_does_not_reply_names_nobody(calls):
    calls[0]._store = Hanging()
    assert calls[0].silent(range(3)) == []
    calls[0]._store.over.set()


def test_a_signal_ends_the_wait(calls, monkeypatch):
    monkeypatch.setattr(store, "PATIENCE", 600.0)
    calls[0]._store = hanging = Hanging()

    def end():
        hanging.asked.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=end)
    sender.start()
    with pytest.raises(Interrupted), ending_on_signals():
        calls[0].silent(range(3))
    sender.join()
    hanging.over.set()
