"""Where the time goes: seconds by name, for the shares that are printed and logged."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Timer:
    """Adds up the seconds spent under each name; a measurement costs about a microsecond."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time what runs inside."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def shares(self) -> dict[str, float]:
        """Each name's part of the measured time; they add up to 1."""
        total = sum(self.seconds.values())
        return {name: spent / total for name, spent in self.seconds.items()} if total else {}
