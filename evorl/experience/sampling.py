"""Drawing a round's batches for all agents of all groups, in one gather.

K items of a round with padding, D without, A agents. Every agent has its own random stream and
takes exactly updates × batch size numbers from it: its draws do not depend on other agents or on
padding.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from evorl.experience.buffer import ReplayBuffer
from evorl.experience.priority import Priorities
from evorl.experience.requests import RoundLayout, SampleRequest, make_layout
from evorl.experience.transitions import BoolArray, FloatArray, IntArray, Samples

LAYOUTS_KEPT = 64  # distinct rounds remembered: agents' learn steps make a few patterns that repeat


class Sampler(Protocol):
    """What the learn stage knows of a replay, uniform or prioritised.

    A round: `inserted(buffer.add(...))`, then `sample(requests)`, the updates, and
    `update_priorities`, before anything else is inserted.
    """

    beta: float
    """Importance exponent, set before each round; uniform sampling has no use for it."""

    own: bool
    """Whether each agent has a replay for itself."""

    common: bool
    """Whether all ranks hold the same items."""

    def reseed(self, generators: Sequence[np.random.Generator]) -> None:
        """New random streams, one per agent."""

    def inserted(self, slots: IntArray) -> None:
        """Items have just been written to `slots`, as `ReplayBuffer.add` returned them."""

    def sample(self, requests: Sequence[SampleRequest]) -> Samples:
        """The batches of one round."""

    def update_priorities(
        self, td_errors: Sequence[Tensor], alive: BoolArray | None = None
    ) -> None:
        """TD errors [U, P, B] of each group of the last round, of agents that are `alive` [A]."""

    def inherit(self, parents: IntArray) -> None:
        """Agent i is from now on a child of agent parents[i] and has seen what its parent saw."""

    def export(self, agent: int) -> dict[str, Tensor]:
        """What an agent's child on another rank takes over."""

    def take_over(self, agent: int, state: dict[str, Tensor]) -> None:
        """An agent becomes the child of one that was exported on another rank."""

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint needs beside the buffer; streams are reseeded every generation."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes over a state exactly."""


class UniformSampler:
    """Every item of an agent's replay is equally likely."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        generators: Sequence[np.random.Generator],
        own: bool | None = None,
        noise: int = 0,
    ) -> None:
        """`own`: each agent has its replay for itself; to be said where there is but one agent.

        `noise` are the random numbers that go with each sample.
        """
        self.noise = noise
        self.beta = 1.0
        self._buffer = buffer
        self._generators = list(generators)
        population = len(self._generators)
        if buffer.num_replays not in (1, population):
            raise ValueError(
                f"{population} agents on {buffer.num_replays} replays: one shared, or one for each"
            )
        self.own = buffer.num_replays > 1 if own is None else own
        self.common = False
        replays = np.arange(population)
        self._replay_of = replays if buffer.num_replays > 1 else np.zeros_like(replays)
        self._first_slots = self._replay_of * buffer.capacity
        self._layouts: dict[tuple[object, ...], RoundLayout] = {}

    def reseed(self, generators: Sequence[np.random.Generator]) -> None:
        """New random streams, one per agent."""
        if len(generators) != len(self._generators):
            raise ValueError(f"{len(generators)} streams for {len(self._generators)} agents")
        self._generators = list(generators)

    def inserted(self, slots: IntArray) -> None:
        """Nothing to note: all items are alike."""

    def sample(self, requests: Sequence[SampleRequest]) -> Samples:
        """The batches of one round."""
        layout = self._layout(requests)
        sizes = self._sizes()
        for agent, _, _ in layout.streams:
            if sizes[agent] == 0:
                raise RuntimeError(
                    f"agent {agent} samples from an empty replay: insert before its first update"
                )
        drawn = self._choose(layout, self._uniforms(layout))
        slots = layout.padding.copy()
        slots[layout.positions] = self._first_slots[layout.agents] + drawn
        index = torch.from_numpy(slots).to(self._buffer.device)
        items = self._buffer.gather(index)
        weight, noise = self._weights(layout, drawn), self._normals(layout)
        return Samples(*items, weight=weight, slots=index, noise=noise)

    def update_priorities(
        self, td_errors: Sequence[Tensor], alive: BoolArray | None = None
    ) -> None:
        """Nothing to update: all items are alike."""

    def inherit(self, parents: IntArray) -> None:
        """Replays of their own are copied from the parents; a shared one is everybody's already."""
        if self._buffer.num_replays > 1:
            self._buffer.inherit(parents)

    def export(self, agent: int) -> dict[str, Tensor]:
        """Its replay, if it has one of its own."""
        return self._buffer.export(agent) if self.own else {}

    def take_over(self, agent: int, state: dict[str, Tensor]) -> None:
        """Its replay; one that the agents of a rank share stays as it is."""
        if self.own:
            self._buffer.take_over(agent, state)

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing beside the buffer."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes nothing; refuses a prioritised replay's state."""
        if state:
            raise ValueError(
                f"a uniform replay has no {sorted(state)}: was it prioritised when saved?"
            )

    def _choose(self, layout: RoundLayout, uniforms: FloatArray) -> IntArray:
        """[D] the item of each draw, counted from the start of its agent's replay."""
        # Needs no clamp: for u <= 1 - 2^-53 the product rounds to less than the size.
        return (uniforms * self._sizes()[layout.agents]).astype(np.int64)

    def _weights(self, layout: RoundLayout, drawn: IntArray) -> Tensor:
        return layout.scale

    def _uniforms(self, layout: RoundLayout) -> FloatArray:
        uniforms = np.empty(len(layout.agents))
        for agent, start, end in layout.streams:
            self._generators[agent].random(out=uniforms[start:end])
        return uniforms

    def _normals(self, layout: RoundLayout) -> Tensor:
        """[K, noise], drawn after what is sampled."""
        normals = np.zeros((len(layout.padding), self.noise), np.float32)
        for agent, start, end in layout.streams if self.noise else ():
            drawn = self._generators[agent].standard_normal((end - start, self.noise), np.float32)
            normals[layout.positions[start:end]] = drawn
        return torch.from_numpy(normals).to(layout.scale)

    def _sizes(self) -> IntArray:
        """[A] items in each agent's replay."""
        return self._buffer.sizes[self._replay_of]

    def _layout(self, requests: Sequence[SampleRequest]) -> RoundLayout:
        key = tuple(request.key for request in requests)
        layout = self._layouts.get(key)
        if layout is None:
            layout = make_layout(
                requests, self._first_slots, self._buffer.reward_dtype, self._buffer.device
            )
            while len(self._layouts) >= LAYOUTS_KEPT:
                del self._layouts[next(iter(self._layouts))]
            self._layouts[key] = layout
        return layout


class PrioritisedSampler(UniformSampler):
    """Items are drawn in proportion to the agent's own priorities for them."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        generators: Sequence[np.random.Generator],
        alpha: float = 0.6,
        epsilon: float = 1e-6,
        own: bool | None = None,
        noise: int = 0,
    ) -> None:
        super().__init__(buffer, generators, own, noise)
        self.priorities = Priorities(len(self._generators), buffer.capacity, alpha, epsilon)
        self._round: tuple[RoundLayout, IntArray] | None = (
            None  # the last sample: its layout and draws
        )
        # of a batch that is spread over ranks: the largest weight on any of them
        self.highest: Callable[[FloatArray], FloatArray] = lambda own: own

    def inserted(self, slots: IntArray) -> None:
        """New items get the highest priority so far; those they replaced are forgotten."""
        if self._buffer.num_replays > 1:
            self.priorities.add(slots // self._buffer.capacity, slots % self._buffer.capacity)
        else:
            agents = np.arange(len(self._generators))
            self.priorities.add(np.repeat(agents, len(slots)), np.tile(slots, len(agents)))

    def update_priorities(
        self, td_errors: Sequence[Tensor], alive: BoolArray | None = None
    ) -> None:
        """TD errors [U, P, B] of each group of the last round, of agents that are `alive` [A]."""
        if self._round is None:
            raise RuntimeError("priorities are updated after sample(), of the round it gave")
        layout, drawn = self._round
        got = [tuple(errors.shape) for errors in td_errors]
        if got != layout.shapes:
            raise ValueError(f"TD errors {got} for a round of {layout.shapes}")
        if not got:
            return
        flat = torch.cat([errors.detach().reshape(-1) for errors in td_errors])
        errors = flat.cpu().double().numpy()[layout.positions]
        agents = layout.agents
        if alive is not None:
            learned = np.asarray(alive, np.bool_)[agents]
            agents, drawn, errors = agents[learned], drawn[learned], errors[learned]
        self.priorities.update(agents, drawn, errors)

    def inherit(self, parents: IntArray) -> None:
        """Priorities follow the weights that they were measured with."""
        super().inherit(parents)
        self.priorities.inherit(parents)

    def export(self, agent: int) -> dict[str, Tensor]:
        """Replay and priorities."""
        return super().export(agent) | self.priorities.export(agent)

    def take_over(self, agent: int, state: dict[str, Tensor]) -> None:
        """Replay and priorities; in a replay that only a rank shares all items are new to it."""
        super().take_over(agent, state)
        if self.own or self.common:
            leaves, highest = state["priorities"].numpy(), float(state["highest"].item())
        else:
            known = np.arange(self._buffer.capacity) < self._buffer.sizes[0]
            leaves, highest = known.astype(np.float64), 1.0
        self.priorities.take_over(agent, leaves, highest)

    def state_dict(self) -> dict[str, Tensor]:
        """All agents' priorities."""
        return self.priorities.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes over a state exactly."""
        self.priorities.load_state_dict(state)
        self._round = None

    def _choose(self, layout: RoundLayout, uniforms: FloatArray) -> IntArray:
        tree = self.priorities.tree
        drawn = tree.find(layout.agents, uniforms * tree.totals[layout.agents])
        self._round = layout, drawn
        return drawn

    def _weights(self, layout: RoundLayout, drawn: IntArray) -> Tensor:
        sizes = self._sizes()[layout.agents]
        weights = self.priorities.importance(layout.agents, drawn, sizes, self.beta)
        # Normalised within each batch (one update of one agent): weights only scale a step down.
        if len(weights):
            highest = self.highest(np.maximum.reduceat(weights, layout.batches))
            weights /= highest[layout.batch_of]
        flat = np.zeros(len(layout.padding))
        flat[layout.positions] = weights
        return layout.scale * torch.from_numpy(flat).to(layout.scale)
