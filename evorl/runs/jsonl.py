"""A file of JSON lines that grows while a run goes on: never half a line, none lost or twice."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evorl.errors import RunError
from evorl.runs.atomic import replace, strict_json, writing


class GrowingFile:
    """Lines that there is no room for wait in memory, in order, until `flush` succeeds."""

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
        with writing(self.path):
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                _append(file, self._waiting)
            finally:
                os.close(file)
        self._waiting = b""

    def lines(self) -> int:
        """How many are in the file."""
        return self.path.read_bytes().count(b"\n") if self.path.exists() else 0

    def cut(self, lines: int) -> None:
        """Keep so many only; RunError if there are fewer."""
        there = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        if len(there) < lines:
            raise RunError(
                f"{self.path}: has {len(there)} lines, but had {lines} at the last checkpoint"
            )
        replace(self.path, b"".join(there[:lines]).decode())


def _append(file: int, data: bytes) -> None:
    before = os.fstat(file).st_size
    try:
        while data:  # the disk may take a part before it says that it is full
            data = data[os.write(file, data) :]
    except BaseException:
        os.ftruncate(file, before)
        raise
