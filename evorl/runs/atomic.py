"""Files that are written whole or not at all, and what the user is told if the disk is full."""

import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from evorl.errors import RunError

AT_ONCE = 16  # files: each takes a thread, and is open


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full disk or a folder that has gone is the user's to mend."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be written: {reason(error)}") from None


def replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(path.name + ".new")
    with writing(path):
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
    """See that files, or folders' lists of files, are on the disk.

    All at once: a file system that keeps a journal then writes it once, and each write is a wait.
    """
    try:
        with ThreadPoolExecutor(AT_ONCE) as threads:
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


def reason(error: Exception) -> str:
    """What the system says, in one line."""
    return getattr(error, "strerror", None) or str(error).splitlines()[0]


def strict_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON: what is not a finite number becomes null, as no parser need know -Infinity."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
