"""Where the time goes: seconds by name, for the shares that are printed and logged."""

import time
from collections import defaultdict


class Timer:
    """Adds up the seconds spent under each name; a measurement costs about a microsecond."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def __call__(self, name: str) -> "Span":
        """Time what runs inside."""
        return Span(self.seconds, name)

    def shares(self) -> dict[str, float]:
        """Each name's part of the measured time; they add up to 1."""
        total = sum(self.seconds.values())
        return {name: spent / total for name, spent in self.seconds.items()} if total else {}


class Span:
    """One measurement; contextlib's generators would take several times as long."""

    __slots__ = ("_name", "_seconds", "_start")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._name] += time.perf_counter() - self._start
