"""The random part of acting: when an agent explores, and with which action.

Legend: P agents, N environments of an agent, T rounds of a block.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BLOCK = 256  # rounds drawn at once; one draw per agent and round would cost more than the network


class Exploration:
    """One stream of draws per agent: adding an agent changes nobody else's actions."""

    def __init__(self, num_envs: int, num_actions: int) -> None:
        self.num_envs, self.num_actions = num_envs, num_actions
        self.reseed(())

    def reseed(self, generators: Sequence[np.random.Generator]) -> None:
        """New streams, one per agent; what was drawn ahead is dropped."""
        self._generators = list(generators)
        self._place = BLOCK

    def draw(
        self, epsilon: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Where each agent explores at its own rate epsilon [P], and the actions there, [P, N]."""
        if self._place == BLOCK:
            shape = (BLOCK, self.num_envs)
            chances = [random.random(shape) for random in self._generators]
            actions = [random.integers(self.num_actions, size=shape) for random in self._generators]
            self._chances, self._actions = np.stack(chances, 1), np.stack(actions, 1)  # [T, P, N]
            self._place = 0
        place, self._place = self._place, self._place + 1
        return self._chances[place] < epsilon[:, None], self._actions[place]
