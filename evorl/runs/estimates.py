"""Figures as text, with as many decimals as their error deserves: the one rule for all of them.

reporting/web/format.js has it for pages.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

OF_ERROR = 2  # digits of an error that are shown
OF_FIGURE = 4  # digits of a figure of which no error is known
ROUNDING = 1e-6  # of a figure: an error that is smaller is none
MOST = 12  # decimals


class Estimate(NamedTuple):
    """A figure and its 95 % interval, which is NaN where a single sample says nothing about it."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)

    @property
    def error(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2

    def texts(self, places: int | None = None) -> tuple[str, str]:
        """The figure and its interval, which is empty where there is none."""
        if places is None:
            places = decimals([self.value], [self.error])
        value, low, high = (f"{number:.{places}f}" for number in self)
        return value, f"{low} to {high}" if self.known else ""

    def __str__(self) -> str:
        value, interval = self.texts()
        return f"{value} ({f'95 % interval {interval}' if interval else 'no interval'})"


def decimals(figures: Iterable[float], errors: Iterable[float] = ()) -> int:
    """Decimals of figures that stand together: those of two digits of their middle error.

    Where no error is known, or all are zero, the largest figure gets four digits.
    """
    size = max((abs(one) for one in figures if math.isfinite(one)), default=0.0)
    known = sorted(one for one in errors if math.isfinite(one) and one > ROUNDING * size)
    if known:
        return _decimals(OF_ERROR, known[(len(known) - 1) // 2])
    return _decimals(OF_FIGURE, size) if size else 1


def _decimals(digits: int, number: float) -> int:
    """With which a number has this many digits."""
    return min(max(0, digits - 1 - math.floor(math.log10(number))), MOST)
