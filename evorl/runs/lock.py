"""A lock that dies with its process."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from evorl.errors import RunError
from evorl.runs.atomic import writing

TRIES, WAIT = 5, 0.05  # seconds between tries: somebody may only be looking whether it is held


@contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock file at `path`, and remove it at the end; a RunError if another has it."""
    with _acquire(path, refusal):
        try:
            yield
        finally:  # while it is held: whoever opened it meanwhile finds out that it is gone
            with suppress(OSError):
                path.unlink()


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock; nothing is written to find out."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until it is closed
    except BlockingIOError:
        return True
    except OSError:  # no such file, or no locks on this disk
        return False
    return False


def _acquire(path: Path, refusal: str) -> IO[str]:
    tries = TRIES
    while True:
        with writing(path):
            file = path.open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _still_there(file, path):
                    return file
            except BlockingIOError:
                file.close()
                tries -= 1
                if not tries:
                    raise RunError(refusal) from None
                time.sleep(WAIT)
                continue
            except BaseException:
                file.close()
                raise
            file.close()  # its owner removed it just now: a lock on it is worth nothing


def _still_there(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
