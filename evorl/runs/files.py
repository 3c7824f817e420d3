"""The files of a run: written whole or not at all, appended by lines, read with a limit."""

import json
import math
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from evorl.errors import RunError, one_line

LARGEST = 2**30  # bytes of a file that is read whole
BLOCK = 2**20  # bytes of a long file, from its end, that hold its last line, most likely
THREADS = 16  # files that are synced at once: each takes a thread, and is open
TOO_LARGE = 1e300  # what is no number of a run's, and breaks arithmetic
KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a finite number"}
KINDS |= {str: "text", list: "a list", dict: "a mapping"}

T = TypeVar("T", bool, int, float, str, list[Any], dict[str, Any])


def run_error(path: Path, problem: str) -> RunError:
    """An error of one line, to raise."""
    return RunError(one_line(f"{path}: {problem}"))


def reason(error: Exception) -> str:
    """What the system says, in one line."""
    return getattr(error, "strerror", None) or (str(error).splitlines() or [repr(error)])[0]


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """A full disk, or a folder that is gone, is a RunError: the user can do something about it."""
    try:
        yield
    except OSError as error:
        raise run_error(path, f"cannot be written: {reason(error)}") from None


def atomic_write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(path.name + ".new")
    with write_errors(path):
        try:
            with aside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except OSError:  # on a full disk every byte counts
            aside.unlink(missing_ok=True)
            raise


def sync(*paths: Path) -> None:
    """Make sure that files, or the lists of files of folders, are on the disk.

    All at once: a file system with a journal then writes it once, and each write is a wait.
    """
    from concurrent.futures import ThreadPoolExecutor

    try:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(_sync, paths))
    except RuntimeError:  # no more threads here
        for path in paths:
            _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bytes(path: Path, limit: int = LARGEST) -> bytes:
    """All of a plain file; RunError if there is none, or if it is larger than the limit."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for its writer
            raise run_error(path, "is not a file")
        if found.st_size > limit:
            raise run_error(path, f"has {found.st_size:,} bytes, at most {limit:,} are read")
        return path.read_bytes()
    except OSError as error:
        raise run_error(path, f"cannot be read: {reason(error)}") from None


def parse_json(data: bytes) -> Any:
    """JSON of unknown origin; ValueError for whatever the parser stumbles on."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"invalid JSON: {reason(error)}") from None


def field(values: Any, where: str, kind: type[T]) -> T:
    """The value at a place such as `score.mean`; ValueError if it is missing or something else."""
    found: Any = values
    for key in where.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    if kind is float and type(found) is int and abs(found) < TOO_LARGE:
        found = float(found)
    good = type(found) is kind
    if not good or (kind in (int, float) and not abs(found) < TOO_LARGE):
        got = KINDS[type(found)] if isinstance(found, list | dict) else f"{found!r:.40}"
        raise ValueError(f"{where}: expected {KINDS[kind]}, got {got}")
    return cast(T, found)


def strict_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON: what is not a finite number becomes null, as no parser need know -Infinity."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class JsonLines:
    """A file of JSON lines that grows: never half a line, none lost or twice.

    Lines that there is no room for wait in memory, in order, until `flush` succeeds.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting = b""

    def add(self, lines: Sequence[dict[str, Any]]) -> None:
        """Lines for the next `flush`."""
        self._waiting += "".join(strict_json(line) + "\n" for line in lines).encode()

    def flush(self) -> None:
        """Write what waits; RunError if it does not fit, and then none of it is in the file."""
        if not self._waiting:
            return
        with write_errors(self.path):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            file = os.open(self.path, flags, 0o666)
            try:
                _append(file, self._waiting)
            finally:
                os.close(file)
        self._waiting = b""

    def lines(self) -> int:
        """How many are in the file."""
        return len(self.read())

    def read(self, at_least: int = 0) -> list[bytes]:
        """All whole lines; RunError if there are fewer than at a checkpoint."""
        lines = read_bytes(self.path).split(b"\n")[:-1] if self.path.exists() else []
        if len(lines) < at_least:
            problem = f"has {len(lines)} lines, but had {at_least} at the last checkpoint"
            raise run_error(self.path, problem)
        return lines

    def cut(self, lines: int) -> None:
        """Keep the first `lines` lines only; RunError if there are fewer."""
        kept = self.read(at_least=lines)[:lines]
        atomic_write(self.path, b"".join(line + b"\n" for line in kept).decode())


def _append(file: int, data: bytes) -> None:
    before = os.fstat(file).st_size
    try:
        while data:  # the disk may take a part before it says that it is full
            data = data[os.write(file, data) :]
    except BaseException:
        os.ftruncate(file, before)
        raise


def last_line(path: Path) -> bytes | None:
    """The last line that is whole; None if there is none. A long file is read from its end."""
    if not path.exists():
        return None
    if not path.is_file():
        raise run_error(path, "is not a file")
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            for part in (BLOCK, size):
                file.seek(max(0, size - part))
                lines = file.read(LARGEST).split(b"\n")
                if len(lines) > 2:  # the first may be half a line, the last is being written
                    break
    except OSError as error:
        raise run_error(path, f"cannot be read: {reason(error)}") from None
    return lines[-2] if len(lines) > 1 else None
