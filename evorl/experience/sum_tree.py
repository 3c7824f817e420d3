"""Every agent's priorities, and a binary tree of their sums: drawing costs log(capacity).

With a shared replay every agent has priorities over the same items. prioritised.py draws by them.

A agents, L leaves (a power of two), Q items or queries of one call. Node 1 is the root, the
children of node k are 2k and 2k+1, leaf i is node L + i.
"""

import numpy as np
import torch
from torch import Tensor

from evorl.experience.transitions import FloatArray, IntArray
from evorl.machine import check_fits


class SumTree:
    """One tree per agent over `capacity` leaves.

    A parent is always the sum of its two children as they are now, never counted up or down in
    place: rounding does not accumulate.
    """

    def __init__(self, num_agents: int, capacity: int) -> None:
        self.capacity = capacity
        self._leaves = 1 << (capacity - 1).bit_length()
        size = num_agents * 2 * self._leaves * 8
        check_fits(size, f"replay.capacity={capacity}, prioritised,", "use a smaller one")
        self._hold(np.zeros((num_agents, 2 * self._leaves)))

    @property
    def totals(self) -> FloatArray:
        """[A] sum of each agent's priorities."""
        return self._nodes[:, 1]

    def priorities(self) -> FloatArray:
        """[A, capacity] every leaf (a view: read only)."""
        return self._nodes[:, self._leaves : self._leaves + self.capacity]

    def get(self, agents: IntArray, leaves: IntArray) -> FloatArray:
        """[Q] priorities of single leaves."""
        return self._nodes[agents, self._leaves + leaves]

    def set(self, agents: IntArray, leaves: IntArray, priorities: FloatArray) -> None:
        """Writes priorities; of a leaf given twice the last stays. A bad value changes nothing."""
        bad = ~((priorities >= 0.0) & (priorities < np.inf))
        if bad.any():
            raise ValueError(
                f"agent {agents[bad][0]} has priority {priorities[bad][0]}: priorities must be "
                "finite and at least 0 (has its network diverged?)"
            )
        root = agents * (2 * self._leaves)
        # Distinct keys, and where each is last: numpy leaves the order of repeated writes open.
        target, first = np.unique((root + self._leaves + leaves)[::-1], return_index=True)
        last = len(leaves) - 1 - first
        self._flat[target] = priorities[last]
        self._sum_up(root[last], leaves[last] + self._leaves)

    def clear(self, agent: int) -> None:
        """Nothing of an agent's tree is left."""
        self._nodes[agent] = 0.0

    def inherit(self, parents: IntArray) -> None:
        """Tree i becomes a copy of tree parents[i], which must keep its own."""
        heirs = np.flatnonzero(parents != np.arange(len(parents)))
        self._nodes[heirs] = self._nodes[parents[heirs]]

    def keep(self, agents: IntArray) -> None:
        """Only these trees are left, in this order."""
        self._hold(self._nodes[agents])

    def _hold(self, nodes: FloatArray) -> None:
        self._nodes = nodes
        self._flat = nodes.reshape(-1)  # a view: one index instead of two

    def find(self, agents: IntArray, values: FloatArray) -> IntArray:
        """[Q] for each value in [0, total) the leaf whose share of the running sum holds it.

        Never a leaf of priority 0: where rounding carries a value past the last positive leaf, that
        one is taken.
        """
        if (self.totals[agents] <= 0.0).any():
            agent = agents[self.totals[agents] <= 0.0][0]
            raise ValueError(f"agent {agent} has no item with a priority above 0 to draw")
        root = agents * (2 * self._leaves)
        node = np.ones(len(agents), np.int64)
        rest = np.maximum(values, 0.0)
        for _ in range(self._leaves.bit_length() - 1):
            node += node
            child = root + node
            left = self._flat.take(child)
            # A node above 0 has a child above 0: never go to the other side if that is empty.
            right = (rest >= left) & (self._flat.take(child + 1) > 0.0)
            rest -= left * right
            node += right
        return node - self._leaves

    def _sum_up(self, root: IntArray, node: IntArray) -> None:
        """Recomputes the ancestors of `node`, level by level."""
        width = self._leaves
        while width > 1:
            width //= 2
            if width * len(self._nodes) <= len(node):
                # Fewer nodes than paths: one pass over the whole level.
                below = self._nodes[:, 2 * width : 4 * width]
                self._nodes[:, width : 2 * width] = below[:, ::2] + below[:, 1::2]
                continue
            node = node // 2
            left = root + 2 * node
            self._flat[root + node] = self._flat.take(left) + self._flat.take(left + 1)


class Priorities:
    """Every agent's priorities over the items of its replay: (|td| + epsilon)^alpha."""

    def __init__(self, num_agents: int, capacity: int, alpha: float, epsilon: float) -> None:
        self.alpha, self.epsilon = alpha, epsilon
        self.tree = SumTree(num_agents, capacity)
        self._highest = np.ones(num_agents)  # [A] the highest so far: what a new item gets

    def add(self, agents: IntArray, leaves: IntArray, td_errors: FloatArray | None = None) -> None:
        """New items: each gets its agent's highest priority so far, so that it is soon seen.

        Where its TD error is known (finite), it gets the priority of that.
        """
        self.tree.set(agents, leaves, self._highest[agents])
        if td_errors is not None:
            known = np.isfinite(td_errors)
            self.update(agents[known], leaves[known], td_errors[known])

    def update(self, agents: IntArray, leaves: IntArray, td_errors: FloatArray) -> None:
        """Items just learned from: their priorities follow their TD errors."""
        priorities = (np.abs(td_errors) + self.epsilon) ** self.alpha
        self.tree.set(agents, leaves, priorities)
        np.maximum.at(self._highest, agents, priorities)

    def shares(self, agents: IntArray, leaves: IntArray) -> FloatArray:
        """[Q] how likely each of these is to be drawn."""
        return self.tree.get(agents, leaves) / self.tree.totals[agents]

    def inherit(self, parents: IntArray) -> None:
        """Agent i takes over the priorities of agent parents[i]."""
        self.tree.inherit(parents)
        self._highest = self._highest[parents]

    def keep(self, agents: IntArray) -> None:
        """Only these agents are left, in this order."""
        self.tree.keep(agents)
        self._highest = self._highest[agents]

    def state_dict(self, agent: int) -> dict[str, Tensor]:
        """One agent's leaves, and its highest priority; the sums follow from the leaves."""
        leaves = torch.from_numpy(self.tree.priorities()[agent].copy())
        return {"priorities": leaves, "highest": torch.tensor([self._highest[agent]])}

    def load_state_dict(self, state: dict[str, Tensor], agent: int) -> None:
        """One agent takes over a state exactly."""
        leaves, highest = state["priorities"].numpy(), float(state["highest"].item())
        if leaves.shape != (self.tree.capacity,) or not 0 < highest < np.inf:
            raise ValueError("the priorities are not those of such a replay")
        self.tree.set(np.full(len(leaves), agent), np.arange(len(leaves)), leaves)
        self._highest[agent] = highest
