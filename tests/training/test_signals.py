"""Signals end a run, also when the first of them was lost."""

import os
import signal

import pytest

from evorl.training import signals
from evorl.training.signals import Interrupted, ending_on_signals


def send(number):
    """To this process; Python handles it before the call returns."""
    os.kill(os.getpid(), number)
    signal.getsignal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_exit_code_says_which(number):
    before = signal.getsignal(number)
    with ending_on_signals():
        with pytest.raises(Interrupted) as found:
            send(number)
        assert found.value.exit_code == 128 + number
        send(number)  # at once again: it is ending already
    assert signal.getsignal(number) is before


def test_one_that_was_lost_can_be_repeated(monkeypatch):
    lost = []
    monkeypatch.setattr("sys.unraisablehook", lambda found: lost.append(found.exc_type))
    monkeypatch.setattr(signals, "AGAIN", 0.0)

    class Ends:
        def __del__(self):
            send(signal.SIGTERM)

    with ending_on_signals():
        Ends()  # Python cannot raise from where it is finalised
        assert lost == [Interrupted]
        with pytest.raises(Interrupted):
            send(signal.SIGTERM)
