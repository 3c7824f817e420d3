"""Numbers as a page needs them: short, and never NaN or infinite, which JSON does not have."""

import math
from collections.abc import Iterable

from evorl.runs.statistics import Estimate

DIGITS = 7  # significant ones: more than a screen can show


def short(value: float | None) -> float | None:
    """With fewer digits; None for what is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def shorts(values: Iterable[float | None]) -> list[float | None]:
    """Each of them."""
    return [short(value) for value in values]


def interval(estimate: Estimate) -> list[float | None]:
    """Value, low and high."""
    return shorts(estimate)
