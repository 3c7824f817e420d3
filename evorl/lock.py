"""A lock that dies with its process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from evorl.errors import RunError
from evorl.writing import writing


@contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock file at `path`, and remove it at the end; a RunError if another has it."""
    with _acquire(path, refusal):
        try:
            yield
        finally:  # while it is held: whoever opened it meanwhile finds out that it is gone
            with suppress(OSError):
                path.unlink()


def _acquire(path: Path, refusal: str) -> IO[str]:
    while True:
        with writing(path):
            file = path.open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _still_there(file, path):
                    return file
            except BlockingIOError:
                file.close()
                raise RunError(refusal) from None
            except BaseException:
                file.close()
                raise
            file.close()  # its owner removed it just now: a lock on it is worth nothing


def _still_there(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
