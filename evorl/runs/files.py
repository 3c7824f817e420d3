"""The files of a run: written whole or not at all, appended by lines, read or one error."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from evorl.errors import RunError

TOO_LARGE = 1e300  # what is no number of a run's, and breaks arithmetic
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
    """A full disk, or a folder that is gone, is a RunError: the user can do something about it."""
    try:
        yield
    except OSError as error:
        raise run_error(path, f"cannot be written: {reason(error)}") from None


def atomic_write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(path.name + ".new")
    with write_errors(path):
        aside.write_text(text, encoding="utf-8")
        sync(aside)
        aside.replace(path)


def sync(*paths: Path) -> None:
    """Make sure that files, or the lists of files of folders, are on the disk."""
    from concurrent.futures import ThreadPoolExecutor

    # all at once: a file system with a journal then writes it once, and each write is a wait
    with ThreadPoolExecutor() as threads:
        list(threads.map(_sync, paths))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bytes(path: Path) -> bytes:
    """All of a file; RunError if it cannot be read."""
    try:
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
    with write_errors(path), path.open("a", encoding="utf-8") as file:
        file.write("".join(strict_json(line) + "\n" for line in lines))


def read_lines(path: Path) -> list[bytes]:
    """All whole lines; none if there is no file yet."""
    return read_bytes(path).split(b"\n")[:-1] if path.exists() else []
