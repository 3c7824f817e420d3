"""Sums over priorities, one binary tree per agent, so that drawing by priority costs log(capacity).

A agents, L leaves (a power of two), Q queries of one call. Node 1 is the root, the children of
node k are 2k and 2k+1, leaf i is node L + i.
"""

import numpy as np

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
        self._nodes = np.zeros((num_agents, 2 * self._leaves))
        self._flat = self._nodes.reshape(-1)  # a view: one index instead of two

    @property
    def totals(self) -> FloatArray:
        """[A] sum of each agent's priorities."""
        return self._nodes[:, 1]

    def total(self, agent: int) -> float:
        """The sum of one agent's priorities."""
        return float(self._nodes[agent, 1])

    def priorities(self) -> FloatArray:
        """[A, capacity] every leaf (a view: read only)."""
        return self._nodes[:, self._leaves : self._leaves + self.capacity]

    def get(self, agents: IntArray, leaves: IntArray) -> FloatArray:
        """[Q] priorities of single leaves."""
        return self._nodes[agents, self._leaves + leaves]

    def set(self, agents: IntArray, leaves: IntArray, priorities: FloatArray) -> None:
        """Writes priorities; of a leaf given twice the last stays. A bad value changes nothing."""
        refuse_bad(agents, priorities)
        if not len(agents):
            return
        if leaves.min() < 0 or leaves.max() >= self.capacity:
            raise IndexError(
                f"leaves {leaves.min()}..{leaves.max()} of a tree of {self.capacity} leaves"
            )
        root = agents * (2 * self._leaves)
        target, last = _last_of_each(root + self._leaves + leaves)
        self._flat[target] = priorities[last]
        self._sum_up(root[last], leaves[last] + self._leaves)

    def inherit(self, parents: IntArray) -> None:
        """Tree i becomes a copy of tree parents[i], which must keep its own."""
        heirs = np.flatnonzero(parents != np.arange(len(parents)))
        self._nodes[heirs] = self._nodes[parents[heirs]]

    def load(self, priorities: FloatArray) -> None:
        """Takes over every leaf [A, capacity]; the sums follow from them exactly."""
        refuse_bad(*np.broadcast_arrays(np.arange(len(priorities))[:, None], priorities))
        self.priorities()[:] = priorities
        width = self._leaves
        while width > 1:
            width //= 2
            self._sum_level(width)

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
                self._sum_level(width)  # fewer nodes than paths: one pass over the whole level
                continue
            node = node // 2
            left = root + 2 * node
            self._flat[root + node] = self._flat.take(left) + self._flat.take(left + 1)

    def _sum_level(self, width: int) -> None:
        below = self._nodes[:, 2 * width : 4 * width]
        self._nodes[:, width : 2 * width] = below[:, ::2] + below[:, 1::2]


def refuse_bad(agents: IntArray, priorities: FloatArray) -> None:
    """Raises on a priority that is negative, NaN or infinite."""
    bad = ~((priorities >= 0.0) & (priorities < np.inf))
    if bad.any():
        raise ValueError(
            f"agent {agents[bad][0]} has priority {priorities[bad][0]}: priorities must be finite "
            "and at least 0 (has its network diverged?)"
        )


def _last_of_each(keys: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct keys, and where each is last (numpy leaves the order of repeated writes open)."""
    backwards, first = np.unique(keys[::-1], return_index=True)
    return backwards, len(keys) - 1 - first
