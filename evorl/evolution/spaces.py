"""The values that a hyperparameter may take, and how it moves among them.

A space maps its values to the unit interval and back, in its own scale: a step of 0.1 is as much at
the low end as at the high end.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evorl.config import SpaceConfig

LEAST_MOVE = 0.01  # of a linear space's range: a value of 0 could not grow by a factor


class _Scale(NamedTuple):
    there: Callable[[float], float]
    back: Callable[[float], float]


_SCALES = {
    "linear": _Scale(float, float),
    "log": _Scale(math.log, math.exp),
    "reverse_log": _Scale(lambda x: -math.log1p(-x), lambda y: -math.expm1(-y)),
    "integer": _Scale(float, float),
    "power_of_two": _Scale(math.log2, lambda y: 2.0 ** round(y)),
}


@dataclass(frozen=True)
class Space:
    """One hyperparameter's values: between two bounds, or a list of choices in ascending order."""

    kind: str
    low: float
    high: float
    values: tuple[float, ...] = ()
    whole: bool = False  # values are whole numbers

    @classmethod
    def of(cls, config: SpaceConfig) -> "Space":
        """The space that a configuration describes."""
        low, high = config.bounds
        return cls(config.kind, low, high, tuple(sorted(config.values or ())), config.whole)

    def __contains__(self, value: float) -> bool:
        if self.values:
            return value in self.values
        if self.whole and self.from_unit(self.to_unit(value)) != value:
            return False
        return self.low <= value <= self.high

    def sample(self, random: np.random.Generator) -> float:
        """A value drawn evenly in the space's own scale."""
        if self.values:
            return self._typed(self.values[int(random.integers(len(self.values)))])
        if self.kind == "integer":
            return int(random.integers(int(self.low), int(self.high), endpoint=True))
        if self.kind == "power_of_two":
            ends = int(math.log2(self.low)), int(math.log2(self.high))
            return int(2 ** random.integers(*ends, endpoint=True))
        return self.from_unit(float(random.random()))

    def perturb(self, value: float, factor: float) -> float:
        """The value grown (factor > 1) or shrunk (factor < 1) in the space's own scale, clipped.

        What is not at its bound always moves: a whole number by 1 or more, a power of two or a
        choice to the next one.
        """
        up = factor > 1
        sign = 1 if up else -1
        match self.kind:
            case "choice":
                moved = self._next_choice(value, up)
            case "power_of_two":  # also from a value between two powers
                power = math.log2(max(value, 1))
                moved = 2.0 ** (math.floor(power) + 1 if up else math.ceil(power) - 1)
            case "integer":
                moved = value + sign * max(1, abs(round(value * factor) - value))
            case "linear":
                least = LEAST_MOVE * (self.high - self.low)
                moved = value + sign * max(least, abs(value * factor - value))
            case "reverse_log":  # gamma grows as 1 - gamma shrinks
                moved = 1 - (1 - value) / factor
            case _:
                moved = value * factor
        return self._clip(moved)

    def to_unit(self, value: float) -> float:
        """Where a value lies between the bounds, from 0 to 1."""
        if self.values:
            place = int(np.argmin([abs(value - other) for other in self.values]))
            return place / max(1, len(self.values) - 1)
        there = _SCALES[self.kind].there
        low, high = there(self.low), there(self.high)
        return (there(self._clip(value)) - low) / (high - low)

    def from_unit(self, unit: float) -> float:
        """The value at a place from 0 to 1; whole spaces round."""
        unit = min(max(unit, 0.0), 1.0)
        if self.values:
            return self._typed(self.values[round(unit * (len(self.values) - 1))])
        if unit in (0.0, 1.0):  # exactly, whatever the scale rounds to
            return self._typed(self.high if unit else self.low)
        there, back = _SCALES[self.kind]
        low, high = there(self.low), there(self.high)
        return self._clip(back(low + unit * (high - low)))

    def _next_choice(self, value: float, up: bool) -> float:
        if up:
            return min((other for other in self.values if other > value), default=self.high)
        return max((other for other in self.values if other < value), default=self.low)

    def _clip(self, value: float) -> float:
        return self._typed(min(max(value, self.low), self.high))

    def _typed(self, value: float) -> float:
        return round(value) if self.whole else float(value)


Spaces = Mapping[str, Space]  # by hyperparameter; one that is not in it does not evolve
