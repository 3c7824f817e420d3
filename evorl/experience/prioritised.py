"""Prioritised replay (Schaul et al. 2016): the sampler draws by every agent's own priorities.

A agents, D draws of a round, K samples (the draws and padding) or new items, U updates, P agents of
a group, B width of its batch.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from evorl.experience.buffer import ReplayBuffer
from evorl.experience.sampling import RoundLayout, Sampler, Share
from evorl.experience.sum_tree import Priorities
from evorl.experience.transitions import AnyArray, BoolArray, FloatArray, IntArray, Transitions

# from the largest weights of batches on this rank: those on any rank over which they are spread
Highest = Callable[[FloatArray], FloatArray]


def linear_beta(start: float, end: float, progress: float) -> float:
    """The importance exponent at `progress` (0..1) of the run."""
    return start + (end - start) * min(max(progress, 0.0), 1.0)


def importance(
    layout: RoundLayout, sizes: IntArray, shares: FloatArray, beta: float, highest: Highest | None
) -> Tensor:
    """[K] weights (size · share)^-beta that undo the draws' bias [D], over the highest of a batch.

    A batch is one update of one agent: weights only scale a step down. Sizes cancel out; those of
    several ranks differ, and would not.
    """
    weights = (shares if highest else sizes * shares) ** -beta
    if len(weights):
        own = np.maximum.reduceat(weights, layout.batches)
        weights /= (highest(own) if highest else own)[layout.batch_of]
    flat = np.zeros(len(layout.padding))
    flat[layout.positions] = weights
    return layout.scale * torch.from_numpy(flat).to(layout.scale)


def learned_errors(
    layout: RoundLayout, td_errors: Sequence[Tensor], alive: BoolArray | None
) -> tuple[IntArray, FloatArray]:
    """Which draws agents that are `alive` [A] learned from, and their TD errors."""
    flat = torch.cat([errors.detach().reshape(-1) for errors in td_errors])
    errors = flat.cpu().double().numpy()[layout.positions]
    if alive is None:
        return np.arange(len(errors)), errors
    learned = np.flatnonzero(np.asarray(alive, np.bool_)[layout.agents])
    return learned, errors[learned]


class PrioritisedSampler(Sampler):
    """Items are drawn in proportion to the agent's own priorities for them."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        generators: Sequence[np.random.Generator],
        alpha: float = 0.6,
        epsilon: float = 1e-6,
        share: Share = "rank",
        noise: int = 0,
    ) -> None:
        super().__init__(buffer, generators, share, noise)
        self.priorities = Priorities(len(self._generators), buffer.capacity, alpha, epsilon)
        self._round: tuple[RoundLayout, IntArray]  # the last sample: its layout and draws
        self.highest: Highest | None = None

    def insert(
        self,
        transitions: Transitions,
        agents: IntArray | None = None,
        td_errors: AnyArray | None = None,
    ) -> None:
        """Stores windows, with the priorities that their first TD errors give them."""
        if td_errors is None:
            super().insert(transitions, agents)
            return
        errors, rows = np.asarray(td_errors, np.float64), np.arange(len(transitions.action))
        own = self.buffer.num_replays > 1
        if errors.ndim == 1:  # only those that collected an item know it
            assert agents is not None, "each error needs its agent"
            known, errors = errors, np.full((len(self._generators), len(rows)), np.nan)
            errors[agents, rows] = known
        for first in range(0, len(rows), self.buffer.capacity):  # so many fit: none is left out
            now = rows[first : first + self.buffer.capacity]
            replays = agents[now] if own and agents is not None else None
            slots = self.buffer.add(transitions.take(now), replays)
            self.inserted(slots, errors[replays, now] if own else errors[:, now])

    def inserted(self, slots: IntArray, td_errors: FloatArray | None = None) -> None:
        """New items get the highest priority so far; those they replaced are forgotten.

        Of a replay that all share TD errors are [A, K], one row for each agent.
        """
        errors = None if td_errors is None else td_errors.reshape(-1)
        if self.buffer.num_replays > 1:
            self.priorities.add(slots // self.buffer.capacity, slots % self.buffer.capacity, errors)
        else:
            agents = np.arange(len(self._generators))
            self.priorities.add(np.repeat(agents, len(slots)), np.tile(slots, len(agents)), errors)

    def forget(self, agent: int) -> None:
        """All items that it can still draw are new to it."""
        super().forget(agent)
        known = torch.arange(self.buffer.capacity) < int(self._sizes()[agent])
        state = {"priorities": known.double(), "highest": torch.ones(1)}
        self.priorities.load_state_dict(state, agent)

    def clear(self) -> None:
        """Empty all replays; the highest priorities so far are still what new items get."""
        super().clear()
        for agent in range(len(self._generators)):
            self.priorities.tree.clear(agent)

    def update_priorities(
        self, td_errors: Sequence[Tensor], alive: BoolArray | None = None
    ) -> None:
        """The priorities of the last round's items follow their TD errors."""
        layout, drawn = self._round
        learned, errors = learned_errors(layout, td_errors, alive)
        self.priorities.update(layout.agents[learned], drawn[learned], errors)

    def inherit(self, parents: IntArray) -> None:
        """Priorities follow the weights that they were measured with."""
        super().inherit(parents)
        self.priorities.inherit(parents)

    def keep(self, agents: IntArray) -> None:
        """With their priorities."""
        super().keep(agents)
        self.priorities.keep(agents)

    def state_dict(self, agent: int) -> dict[str, Tensor]:
        """Priorities, and a replay of its own."""
        return super().state_dict(agent) | self.priorities.state_dict(agent)

    def load_state_dict(self, state: dict[str, Tensor], agent: int) -> None:
        """Takes over such a state exactly; without one all items of the replay are new to it."""
        if not state:
            self.forget(agent)
            return
        super().load_state_dict(state, agent)
        self.priorities.load_state_dict(state, agent)

    def _choose(self, layout: RoundLayout, uniforms: FloatArray) -> IntArray:
        tree = self.priorities.tree
        drawn = tree.find(layout.agents, uniforms * tree.totals[layout.agents])
        self._round = layout, drawn
        return drawn

    def _weights(self, layout: RoundLayout, drawn: IntArray) -> Tensor:
        sizes, shares = self._sizes(), self.priorities.shares(layout.agents, drawn)
        return importance(layout, sizes[layout.agents], shares, self.beta, self.highest)
