"""Importing a module of the user's: what it does is named as its own."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import FrameType

LIMIT = 120.0  # seconds of computing for an import, however busy the machine is
AGAIN = 1.0  # such seconds after which a module that has caught the exception gets another one


@contextmanager
def users_import() -> Iterator[None]:
    """Around an import: one that exits or does not end is an ImportError; what it prints is no
    output of ours.
    """
    with redirect_stdout(sys.stderr), _limited():
        try:
            yield
        except SystemExit as error:
            what = f"the module calls sys.exit({error.code!r})"
            raise ImportError(f'{what}; put that below if __name__ == "__main__"') from error


@contextmanager
def _limited() -> Iterator[None]:
    """Raises where the module is after LIMIT; only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        where = f"{frame.f_code.co_filename}, line {frame.f_lineno}" if frame else "somewhere"
        raise ImportError(f"the module was not done after {LIMIT:g} seconds of computing ({where})")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
