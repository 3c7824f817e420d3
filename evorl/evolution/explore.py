"""The values that hyperparameters may take, and new ones for a child.

A space maps its values to the unit interval and back, in its own scale: a step of 0.1 is as much at
the low end as at the high end. A child's values grow or shrink, are now and then drawn again, or
follow from what raised fitness so far (pb2.py).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from evorl.config import ExploreConfig, SpaceConfig

LEAST_MOVE = 0.01  # of a linear space's range: a value of 0 could not grow by a factor

Floats = npt.NDArray[np.float64]
Values = Mapping[str, float]  # by hyperparameter

# to a scale on which steps are alike, and back
_SCALES: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "linear": (float, float),
    "log": (math.log, math.exp),
    "reverse_log": (lambda x: -math.log1p(-x), lambda y: -math.expm1(-y)),
    "integer": (float, float),
    "power_of_two": (math.log2, lambda y: 2.0 ** round(y)),
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

    def sample(self, random: Generator) -> float:
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
        """The value grown (factor > 1) or shrunk in its own scale; it moves unless at its bound."""
        up = factor > 1
        sign = 1 if up else -1
        match self.kind:
            case "choice":
                beyond = [other for other in self.values if (other - value) * sign > 0]
                moved = min(beyond, key=lambda other: abs(other - value), default=value)
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
        there, _ = _SCALES[self.kind]
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

    def _clip(self, value: float) -> float:
        return self._typed(min(max(value, self.low), self.high))

    def _typed(self, value: float) -> float:
        return round(value) if self.whole else float(value)


Spaces = Mapping[str, Space]  # by hyperparameter; one that is not in it does not evolve


class Explore:
    """Every hyperparameter grows or shrinks by a factor, or is drawn again (resample)."""

    def __init__(self, config: ExploreConfig, spaces: Spaces) -> None:
        self.config, self.spaces = config, spaces

    def observe(
        self, generation: int, values: Sequence[Values], before: Floats, after: Floats
    ) -> None:
        """Fitness [P] before (a child's is its parent's) and after; NaN unknown, -inf dead."""

    def propose(
        self, values: Values, fitness: float, generation: int, random: Generator
    ) -> dict[str, float]:
        """A child's hyperparameters, by its parent's and their fitness; new ones in the spaces."""
        child, back = dict(values), dict[str, float]()
        for name, space in self.spaces.items():
            factors = self.config.grow, self.config.shrink
            factor, other = factors if random.random() < 0.5 else factors[::-1]
            child[name] = space.perturb(values[name], factor)
            back[name] = space.perturb(values[name], other)
        free = [name for name in back if back[name] != child[name]]
        if child == values and free:  # all are stuck at their bounds: one steps back instead
            name = free[int(random.integers(len(free)))]
            child[name] = back[name]
        if self.config.strategy == "resample":
            for name, space in self.spaces.items():
                if random.random() < self.config.resample:
                    child[name] = space.sample(random)
        return child

    def state(self) -> list[list[float]]:
        """What `restore` needs to continue from here, between two generations."""
        return []

    def restore(self, state: list[list[float]]) -> None:
        """Continue from an earlier `state`."""
