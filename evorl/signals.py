"""SIGINT and SIGTERM: a run ends within seconds, and can be resumed from its last checkpoint."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """The process was asked to end; `exit_code` says so to whoever started it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """While inside, both signals raise Interrupted, once; further ones change nothing."""
    told = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal told
        if not told:
            told = True
            raise Interrupted(number)

    wanted = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, end) for number in wanted]
    try:
        yield
    finally:
        for number, handler in zip(wanted, before, strict=True):
            signal.signal(number, handler)
