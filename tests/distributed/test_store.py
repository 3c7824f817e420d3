"""What torch.distributed raises, in one line; and who answers the roll call after that."""

import os
import signal
import threading
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from evorl.distributed import store
from evorl.distributed.store import RollCall, rank_errors
from evorl.errors import RunError
from evorl.training.start import Interrupted, ending_on_signals


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


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "[/__w/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5519. This"
            " is typically caused by a remote worker crashing.\nmore",
            "Connection closed by peer [127.0.0.1]:5519",
        ),
        (
            "Gloo connectFullMesh failed with [/__w/gloo/transport/tcp/pair.cc:152] timed out",
            "timed out",
        ),
        ("Tensors must be contiguous", "Tensors must be contiguous"),
        ("", "RuntimeError"),
    ],
)
def test_a_lost_rank_in_one_line(said, told):
    with pytest.raises(RunError) as caught, rank_errors("receive: rank 0 lost rank 1", "wait"):
        raise RuntimeError(said)
    assert str(caught.value) == f"receive: rank 0 lost rank 1 ({told}); wait"


@pytest.mark.parametrize(
    ("silent", "told"),
    [([], ""), ([1], "rank 1 does not answer; "), ([1, 3], "ranks 1, 3 do not answer; ")],
)
def test_who_does_not_answer_is_named(silent, told):
    with pytest.raises(RunError) as caught, rank_errors("agree", "wait", lambda: silent):
        raise RuntimeError("timed out")
    assert str(caught.value) == f"agree (timed out); {told}wait"


def test_a_mistake_stays_what_it_is():
    with pytest.raises(TypeError), rank_errors("receive"):
        raise TypeError
