"""A run that is asked to end: what SIGINT and SIGTERM do."""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from evorl.pipeline import TrainingContext
from evorl.runs import STOP, RunDirectory

AGAIN = 3.0  # seconds after which a further signal counts


class Interrupted(KeyboardInterrupt):
    """The process was asked to end; `exit_code` says so to whoever started it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def stop_if_asked(directory: RunDirectory, context: TrainingContext) -> None:
    """As if by Ctrl-C, but when a checkpoint has just been written: nothing is lost."""
    snapshot = context.snapshot
    if directory.asked_to_stop and snapshot.saved and not snapshot.finished:
        (directory.path / STOP).unlink(missing_ok=True)
        raise Interrupted(signal.SIGINT)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """While inside, SIGINT and SIGTERM raise Interrupted: the run can be resumed.

    Those that follow within seconds change nothing: a launcher sends the same to all, as does a
    terminal. Later ones raise again, as an exception in a finaliser is lost.
    """
    told = -math.inf

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal told
        if time.monotonic() - told > AGAIN:
            told = time.monotonic()
            raise Interrupted(number)

    wanted = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, end) for number in wanted]
    try:
        yield
    finally:
        for number, handler in zip(wanted, before, strict=True):
            signal.signal(number, handler)
