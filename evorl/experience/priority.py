"""What an item's priority is: prioritised replay (Schaul et al. 2016), for every agent on its own.

A agents, Q items of one call. With a shared replay every agent has priorities over the same items.
"""

import numpy as np
import torch
from torch import Tensor

from evorl.experience.sum_tree import SumTree
from evorl.experience.transitions import FloatArray, IntArray


class Priorities:
    """Every agent's priorities over the items of its replay: (|td| + epsilon)^alpha."""

    def __init__(self, num_agents: int, capacity: int, alpha: float, epsilon: float) -> None:
        if not (0.0 <= alpha < np.inf and 0.0 < epsilon < np.inf):
            raise ValueError(f"alpha >= 0 and epsilon > 0 are needed, got {alpha} and {epsilon}")
        self.alpha = alpha
        self.epsilon = epsilon
        self.tree = SumTree(num_agents, capacity)
        self._highest = np.ones(num_agents)  # [A] the highest so far: what a new item gets

    def add(self, agents: IntArray, leaves: IntArray) -> None:
        """New items: each gets its agent's highest priority so far, so that it is soon seen."""
        self.tree.set(agents, leaves, self._highest[agents])

    def update(self, agents: IntArray, leaves: IntArray, td_errors: FloatArray) -> None:
        """Items just learned from: their priorities follow their TD errors."""
        priorities = (np.abs(td_errors) + self.epsilon) ** self.alpha
        self.tree.set(agents, leaves, priorities)
        np.maximum.at(self._highest, agents, priorities)

    def inherit(self, parents: IntArray) -> None:
        """Agent i takes over the priorities of agent parents[i]."""
        self.tree.inherit(parents)
        self._highest = self._highest[parents]

    def export(self, agent: int) -> dict[str, Tensor]:
        """One agent's priorities."""
        leaves = self.tree.priorities()[agent].copy()
        return {
            "priorities": torch.from_numpy(leaves),
            "highest": torch.tensor([self._highest[agent]]),
        }

    def take_over(self, agent: int, leaves: FloatArray, highest: float) -> None:
        """An agent's priorities become these [capacity]."""
        everything = np.arange(len(leaves))
        self.tree.set(np.full(len(leaves), agent), everything, leaves)
        self._highest[agent] = highest

    def importance(
        self, agents: IntArray, leaves: IntArray, sizes: IntArray, beta: float
    ) -> FloatArray:
        """[Q] weights (size · p / total)^-beta that undo the draw's bias; not yet normalised."""
        share = self.tree.get(agents, leaves) / self.tree.totals[agents]
        return (sizes * share) ** -beta

    def state_dict(self) -> dict[str, Tensor]:
        """Every leaf, and the highest priorities; the sums follow from the leaves."""
        return {
            "priorities": torch.from_numpy(self.tree.priorities().copy()),
            "highest": torch.from_numpy(self._highest.copy()),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes over a state exactly; refuses one of another geometry."""
        leaves = state["priorities"].cpu().numpy()
        if leaves.shape != self.tree.priorities().shape:
            raise ValueError(
                f"priorities of {leaves.shape} (agents, capacity) do not fit "
                f"{self.tree.priorities().shape}"
            )
        self.tree.load(leaves)
        self._highest = state["highest"].cpu().numpy().copy()


def linear_beta(start: float, end: float, progress: float) -> float:
    """The importance exponent at `progress` (0..1) of the run."""
    return start + (end - start) * min(max(progress, 0.0), 1.0)
