"""New values for a child's hyperparameters, within their spaces.

Three strategies behind one protocol: grow or shrink what the parent has; now and then draw a new
value; or learn from what raised fitness so far (pb2.py).
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from evorl.config import ExploreConfig
from evorl.evolution.pb2 import PB2
from evorl.evolution.spaces import Spaces

Floats = npt.NDArray[np.float64]


class Explore(Protocol):
    """Chooses hyperparameters, and may learn from what they did."""

    spaces: Spaces

    def observe(
        self,
        generation: int,
        hyperparameters: Sequence[Mapping[str, float]],
        before: Floats,
        after: Floats,
    ) -> None:
        """What a generation of training did: fitness [P] before and after it.

        A child's fitness before is its parent's. NaN where unknown, -inf where dead.
        """

    def propose(
        self,
        hyperparameters: Mapping[str, float],
        fitness: float,
        generation: int,
        random: np.random.Generator,
    ) -> dict[str, float]:
        """All of a child's hyperparameters: new ones for those in the spaces, the rest as they are.

        `hyperparameters` and `fitness` are the parent's; the child first trains in `generation`.
        """
        ...

    def state(self) -> list[list[float]]:
        """What `restore` needs to continue from here, between two generations."""
        ...

    def restore(self, state: list[list[float]]) -> None:
        """Go on from an earlier `state`."""


class Perturb:
    """Every hyperparameter grows or shrinks by a factor, with equal chance."""

    def __init__(self, config: ExploreConfig, spaces: Spaces) -> None:
        self.config, self.spaces = config, spaces

    def observe(
        self,
        generation: int,
        hyperparameters: Sequence[Mapping[str, float]],
        before: Floats,
        after: Floats,
    ) -> None:
        """Nothing to learn."""

    def propose(
        self,
        hyperparameters: Mapping[str, float],
        fitness: float,
        generation: int,
        random: np.random.Generator,
    ) -> dict[str, float]:
        """A step from the parent's values."""
        return self.step(hyperparameters, random)

    def step(
        self, hyperparameters: Mapping[str, float], random: np.random.Generator
    ) -> dict[str, float]:
        """One step from these values; if all are stuck at their bounds, one steps back instead."""
        child, back = dict(hyperparameters), dict[str, float]()
        for name, space in self.spaces.items():
            factors = self.config.grow, self.config.shrink
            factor, other = factors if random.random() < 0.5 else factors[::-1]
            child[name] = space.perturb(hyperparameters[name], factor)
            back[name] = space.perturb(hyperparameters[name], other)
        if child == hyperparameters:
            free = [name for name in back if back[name] != child[name]]
            if free:
                name = free[int(random.integers(len(free)))]
                child[name] = back[name]
        return child

    def state(self) -> list[list[float]]:
        """Nothing."""
        return []

    def restore(self, state: list[list[float]]) -> None:
        """Nothing to restore."""


class Resample(Perturb):
    """Every hyperparameter is drawn again with some probability, else it grows or shrinks."""

    def propose(
        self,
        hyperparameters: Mapping[str, float],
        fitness: float,
        generation: int,
        random: np.random.Generator,
    ) -> dict[str, float]:
        """A step from the parent's values, some of them drawn again."""
        child = self.step(hyperparameters, random)
        for name, space in self.spaces.items():
            if random.random() < self.config.resample:
                child[name] = space.sample(random)
        return child


def make_explore(config: ExploreConfig, spaces: Spaces) -> Explore:
    """The strategy that a configuration names."""
    if config.strategy == "resample":
        return Resample(config, spaces)
    perturb = Perturb(config, spaces)
    return PB2(spaces, perturb.step) if config.strategy == "pb2" else perturb
