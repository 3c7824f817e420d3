"""The random part of acting, drawn for each agent by itself and ahead of time.

Legend: P agents, N environments of an agent, T rounds of a block.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evorl.algorithms.base import Algorithm
from evorl.envs import ActionSpec

BLOCK = 256  # rounds drawn at once; one draw per agent and round would cost more than the network

Noise = Mapping[str, npt.NDArray[Any]]


class NoiseStreams:
    """One stream of draws per agent: adding an agent changes nobody else's actions."""

    def __init__(self, algorithm: Algorithm, num_envs: int, action: ActionSpec) -> None:
        self.algorithm, self.num_envs, self.action = algorithm, num_envs, action
        self.reseed(())

    def reseed(self, generators: Sequence[np.random.Generator]) -> None:
        """New streams, one per agent; what was drawn ahead is dropped."""
        self._generators = list(generators)
        self._place = BLOCK

    def draw(self) -> Noise:
        """The noise of one round, [P, N, ...] by name."""
        if self._place == BLOCK:
            shape = (BLOCK, self.num_envs)
            each = [self.algorithm.noise(own, shape, self.action) for own in self._generators]
            self._block = {
                name: np.stack([own[name] for own in each], 1) for name in each[0]
            }  # [T, P, N, ...]
            self._place = 0
        place, self._place = self._place, self._place + 1
        return {name: values[place] for name, values in self._block.items()}
