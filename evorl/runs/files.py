"""The files of a run: written whole or not at all, appended by lines, read or one error.

They may be somebody else's, and forged. So nothing is opened but regular files, no link is
followed, no more is read than fits, and JSON holds finite numbers only.
"""

import errno
import json
import math
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from evorl.errors import RunError, WriteError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

TOO_LARGE = 1e300  # what is no number of a run's, and breaks arithmetic
LONGEST = 300  # digits of a whole number
MOST_BYTES = 2**31  # of a file that is read as one
THREADS = 8  # that wait for the disk
LINK = "is a symbolic link; put what it points to in its place, or remove it"
KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a finite number"}
KINDS |= {str: "text", list: "a list", dict: "a mapping"}

T = TypeVar("T", bool, int, float, str, list[Any], dict[str, Any])


def run_error(path: Path, problem: str) -> RunError:
    """An error of one line, to raise."""
    return RunError(f"{path}: {problem}")


def reason(error: Exception) -> str:
    """What the system says, in one line."""
    return getattr(error, "strerror", None) or (str(error).splitlines() or [repr(error)])[0]


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """A full disk, or a folder that is gone, is a WriteError: a user can do something."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"{path}: cannot be written: {reason(error)}") from None


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """The descriptor of a regular file; OSError for a link, a pipe or a device, at once."""
    try:
        found = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        raise OSError(errno.ELOOP, LINK) if error.errno == errno.ELOOP else error from None
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "is no regular file")
    return found


def refuse_links(*folders: Path) -> None:
    """RunError if what is directly in one of the folders leads somewhere else, or is no file.

    Libraries and trackers write there by name, too.
    """
    for folder in folders:
        try:
            for entry in list(os.scandir(folder)) if folder.is_dir() else []:
                if entry.is_symlink():
                    raise run_error(folder / entry.name, LINK)
                if not (entry.is_file() or entry.is_dir()) and os.path.lexists(entry):
                    raise run_error(folder / entry.name, "is no regular file; remove it")
        except OSError as error:
            raise run_error(folder, f"cannot be read: {reason(error)}") from None


def atomic_write(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(path.name + ".new")
    with write_errors(path):
        aside.unlink(missing_ok=True)
        opened = open_regular(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(opened, "w", encoding="utf-8") as file:
            file.write(text)
        sync(aside)
        aside.replace(path)


def sync(*paths: Path) -> None:
    """Make sure that files, or the lists of files of folders, are on the disk."""
    # all at once: a file system with a journal then writes it once, and each write is a wait
    list(_threads(os.getpid()).map(_sync, paths))


@cache
def _threads(process: int) -> "ThreadPoolExecutor":
    """All started here: one that is started when there is no memory left never says that it died.

    A process that was forked has none of its parent's.
    """
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier

    pool, all_here = ThreadPoolExecutor(THREADS, "evorl-sync"), Barrier(THREADS)
    list(pool.map(lambda _: all_here.wait(), range(THREADS)))
    return pool


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_regular(path: Path, most: int | None = None) -> bytes:
    """All of a regular file; OSError if it is none, or larger than `most` bytes."""
    with os.fdopen(open_regular(path), "rb") as file:
        if most is not None and os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"is larger than {most} bytes")
        return file.read()


def read_bytes(path: Path) -> bytes:
    """All of a file; RunError if it cannot be read, is none, or is larger than any of a run's."""
    try:
        return read_regular(path, MOST_BYTES)
    except OSError as error:
        raise run_error(path, f"cannot be read: {reason(error)}") from None


def parse_json(data: bytes) -> Any:
    """JSON of unknown origin; ValueError for whatever the parser stumbles on."""
    try:
        return json.loads(data, parse_int=_whole, parse_float=_finite_float, parse_constant=_no)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"invalid JSON: {reason(error)}") from None


def _whole(text: str) -> int:
    return int(text) if len(text) <= LONGEST else _no(text)


def _finite_float(text: str) -> float:
    value = float(text)
    return value if abs(value) < TOO_LARGE else _no(text)


def _no(text: str) -> NoReturn:
    raise ValueError(f"{text:.12} is no finite number")


def field(values: Any, where: str, kind: type[T]) -> T:
    """The value at a place such as `score.mean`; ValueError if it is missing or something else."""
    found: Any = values
    for key in where.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    number = type(found) in (int, float) and abs(found) < TOO_LARGE
    if kind is float and number:
        found = float(found)
    if type(found) is not kind or (kind in (int, float) and not number):
        got = KINDS[type(found)] if isinstance(found, list | dict) else f"{found!r:.40}"
        raise ValueError(f"{where}: expected {KINDS[kind]}, got {got}")
    return found


def strict_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON: what is not a finite number becomes null, as no parser need know -Infinity."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def append_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Append JSON lines; the half line of a write that failed is never read."""
    with write_errors(path):
        opened = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(opened, "a", encoding="utf-8") as file:
            file.write("".join(strict_json(line) + "\n" for line in lines))


def read_lines(path: Path) -> list[bytes]:
    """All whole lines; none if there is no file yet."""
    return read_bytes(path).split(b"\n")[:-1] if os.path.lexists(path) else []
