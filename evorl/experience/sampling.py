"""Drawing a round's batches for all agents of all groups, in one gather.

P agents of a group, U updates of a group's round, B width of its batch; K = sum of U*P*B over the
groups, A all agents, D draws (the K without padding). Every agent has its own random stream and
takes exactly updates × batch size numbers from it: its draws do not depend on other agents or on
padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, NamedTuple, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from evorl.experience.buffer import ReplayBuffer
from evorl.experience.transitions import (
    AnyArray,
    BoolArray,
    FloatArray,
    IntArray,
    RolloutBatch,
    Samples,
    Transitions,
    UnrollBatch,
)

LAYOUTS_KEPT = 64  # distinct rounds remembered: agents' learn steps make a few patterns that repeat
T = TypeVar("T", bound=Samples | RolloutBatch | UnrollBatch)
Share = Literal["rank", "agent", "world"]  # who shares a replay: a rank's agents, nobody, all ranks


@dataclass(frozen=True, eq=False)
class SampleRequest:
    """One group's round: the agents of its matrix, how often each updates, on how many items."""

    agents: IntArray  # [P] which agents, of all
    updates: IntArray  # [P] updates of each in this round, 0 or more
    batch_sizes: IntArray  # [P]
    width: int  # B, at least the largest batch size

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """(U, P, B): the batch as the group's updates see it."""
        return int(max(self.updates, default=0)), len(self.agents), self.width

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for equal requests: layouts are looked up by it every round."""
        arrays = (self.agents, self.updates, self.batch_sizes)
        return (*(array.astype(np.int64).tobytes() for array in arrays), self.width)


def split_groups(samples: T, requests: Sequence[SampleRequest]) -> list[T]:
    """Each group's part of a round, every field viewed as [U, P, B, ...]."""
    kind, parts = type(samples), [samples]
    if len(requests) > 1:
        sizes = [prod(request.shape) for request in requests]
        fields = (torch.split(field, sizes) for field in samples)
        parts = [kind(*part) for part in zip(*fields, strict=True)]
    return [
        kind(*[field.view(*request.shape, *field.shape[1:]) for field in part])
        for request, part in zip(requests, parts, strict=True)
    ]


def refuse_empty(agent: int) -> NoReturn:
    """Raise: there is nothing to draw."""
    what = f"agent {agent} samples from an empty replay"
    raise RuntimeError(f"{what}: insert before its first update")


class RoundLayout(NamedTuple):
    """Everything about a round that does not depend on what is drawn.

    Draws are agent-major, then by update, then by place in the batch: an agent's draws are one
    stretch, and within it later updates come later.
    """

    agents: IntArray  # [D] agent of each draw
    positions: IntArray  # [D] where the draw lands in the flat batch
    batches: IntArray  # first draw of every (agent, update)
    batch_of: IntArray  # [D] which of those batches
    scale: Tensor  # [K] 1 / batch size; 0 for padding
    padding: IntArray  # [K] slots before the draws are put in: the first of each agent's replay
    streams: list[tuple[int, int, int]]  # (agent, its first draw, one past its last)


def make_layout(
    requests: Sequence[SampleRequest], first_slots: IntArray, buffer: ReplayBuffer
) -> RoundLayout:
    """Lays out a round. `first_slots` [A] is where each agent's replay begins."""
    agents, positions, starts, sizes, padding = [], [], [], [], []
    streams, place, drawn = [], 0, 0
    for request in requests:
        updates, rows, width = request.shape
        real = (np.arange(updates)[:, None] < request.updates[:, None, None]) & (
            np.arange(width) < request.batch_sizes[:, None, None]
        )  # [P, U, B]
        row, update, column = np.nonzero(real)
        agents.append(request.agents[row])
        positions.append(place + (update * rows + row) * width + column)
        starts.append(column == 0)
        sizes.append(request.batch_sizes[row])
        padding.append(np.tile(np.repeat(first_slots[request.agents], width), updates))
        place += updates * rows * width
        for agent, count in zip(request.agents, request.updates * request.batch_sizes, strict=True):
            if count:
                streams.append((int(agent), drawn, drawn + int(count)))
            drawn += int(count)
    first, scale, flat = np.concatenate(starts), np.zeros(place), np.concatenate(positions)
    scale[flat] = 1.0 / np.concatenate(sizes)
    return RoundLayout(
        agents=np.concatenate(agents),
        positions=flat,
        batches=np.flatnonzero(first),
        batch_of=np.cumsum(first) - 1,
        scale=torch.from_numpy(scale).to(device=buffer.device, dtype=buffer.reward_dtype),
        padding=np.concatenate(padding),
        streams=streams,
    )


class Sampler:
    """What the learn stage knows of a replay, uniform or prioritised.

    A round: `insert(transitions)`, then `sample(requests)`, the updates, and `update_priorities`,
    before anything else is inserted.
    """

    keeps = True  # is there anything that a checkpoint must hold?
    lasting = True  # do items stay until newer ones take their places?

    def __init__(
        self,
        buffer: ReplayBuffer,
        generators: Sequence[np.random.Generator],
        share: Share = "rank",
        noise: int = 0,
    ) -> None:
        self.beta = 1.0  # importance exponent, set before each round (prioritised only)
        self.share, self.noise = share, noise  # random numbers that go with each sample
        self.buffer, self._generators = buffer, list(generators)
        self._lay_out()

    def _lay_out(self) -> None:
        replays = np.arange(len(self._generators))
        self.replay_of = replays if self.buffer.num_replays > 1 else np.zeros_like(replays)
        self._first_slots = self.replay_of * self.buffer.capacity
        self._layouts: dict[tuple[object, ...], RoundLayout] = {}

    def keep(self, agents: IntArray) -> None:
        """Only these agents are left, in this order, with what they have for themselves.

        -1 is one that comes from elsewhere, and brings its own.
        """
        self._generators = [self._generators[agent] for agent in agents]
        if self.share == "agent" or self.buffer.num_replays > 1:
            self.buffer.keep(agents)
        self._lay_out()

    def reseed(self, generators: Sequence[np.random.Generator]) -> None:
        """New random streams, one per agent."""
        self._generators = list(generators)

    def insert(
        self,
        transitions: Transitions,
        agents: IntArray | None = None,
        td_errors: AnyArray | None = None,
    ) -> None:
        """Stores windows that `agents` [K] collected (with one replay for all: or None).

        Prioritised, first TD errors may come with them: [K] those of the agents that collected
        them, or [A, K] every agent's. Where there is none (NaN), new items are drawn soon.
        """
        replays = agents if self.buffer.num_replays > 1 else None
        self.inserted(self.buffer.add(transitions, replays))

    def inserted(self, slots: IntArray) -> None:
        """Items have just been written to `slots`, as `ReplayBuffer.add` returned them."""

    def forget(self, agent: int) -> None:
        """Another one takes an agent's place: it has a replay of its own empty, or all is new."""
        if self.buffer.num_replays > 1:
            self.buffer.clear(agent)

    def clear(self) -> None:
        """Empty all replays."""
        for replay in range(self.buffer.num_replays):
            self.buffer.clear(replay)

    def sample(self, requests: Sequence[SampleRequest]) -> Samples:
        """The batches of one round."""
        layout = self._layout(requests)
        drawn = self._choose(layout, self._uniforms(layout))
        slots = layout.padding.copy()
        slots[layout.positions] = self._first_slots[layout.agents] + drawn
        index = torch.from_numpy(slots).to(self.buffer.device)
        items = self.buffer.gather(index)
        weight, noise = self._weights(layout, drawn), self._normals(layout)
        return Samples(**items, weight=weight, slots=index, noise=noise)

    def peek(
        self, requests: Sequence[SampleRequest], streams: Sequence[np.random.Generator]
    ) -> Samples:
        """Batches drawn evenly, by other random streams: what is drawn later stays the same."""
        layout, kept = self._layout(requests), self._generators
        self._generators = list(streams)
        try:
            drawn = self._uniforms(layout) * self._sizes()[layout.agents]
            noise = self._normals(layout)
        finally:
            self._generators = kept
        slots = layout.padding.copy()
        slots[layout.positions] = self._first_slots[layout.agents] + drawn.astype(np.int64)
        index = torch.from_numpy(slots).to(self.buffer.device)
        return Samples(**self.buffer.gather(index), weight=layout.scale, slots=index, noise=noise)

    def update_priorities(
        self, td_errors: Sequence[Tensor], alive: BoolArray | None = None
    ) -> None:
        """TD errors [U, P, B] of each group of the last round, of agents that are `alive` [A]."""

    def inherit(self, parents: IntArray) -> None:
        """Agent i is from now on a child of agent parents[i] and has seen what its parent saw."""
        if self.buffer.num_replays > 1:
            self.buffer.inherit(parents)

    def state_dict(self, agent: int) -> dict[str, Tensor]:
        """What an agent has for itself; streams are reseeded every generation."""
        return self.buffer.state_dict(agent) if self.share == "agent" else {}

    def load_state_dict(self, state: dict[str, Tensor], agent: int) -> None:
        """Takes over such a state exactly."""
        if self.share == "agent":
            self.buffer.load_state_dict(state, agent)

    def export(self, agent: int) -> dict[str, Tensor]:
        """What its child on another rank loads: nothing, if the items there are others."""
        return {} if self.share == "rank" else self.state_dict(agent)

    def _uniforms(self, layout: RoundLayout) -> FloatArray:
        """[D] a random number for each draw, from its agent's own stream."""
        sizes, uniforms = self._sizes(), np.empty(len(layout.agents))
        for agent, _, _ in layout.streams:
            if sizes[agent] == 0:
                refuse_empty(agent)
        for agent, start, end in layout.streams:
            self._generators[agent].random(out=uniforms[start:end])
        return uniforms

    def _choose(self, layout: RoundLayout, uniforms: FloatArray) -> IntArray:
        """[D] the item of each draw, counted from the start of its agent's replay."""
        raise NotImplementedError

    def _weights(self, layout: RoundLayout, drawn: IntArray) -> Tensor:
        return layout.scale

    def _normals(self, layout: RoundLayout) -> Tensor:
        """[K, noise], drawn after what is sampled."""
        normals = np.zeros((len(layout.padding), self.noise), np.float32)
        for agent, start, end in layout.streams if self.noise else ():
            drawn = self._generators[agent].standard_normal((end - start, self.noise), np.float32)
            normals[layout.positions[start:end]] = drawn
        return torch.from_numpy(normals).to(layout.scale)

    def _sizes(self) -> IntArray:
        """[A] items in each agent's replay."""
        return self.buffer.sizes[self.replay_of]

    def _layout(self, requests: Sequence[SampleRequest]) -> RoundLayout:
        key = tuple(request.key for request in requests)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) == LAYOUTS_KEPT:
                self._layouts.clear()
            layout = self._layouts[key] = make_layout(requests, self._first_slots, self.buffer)
        return layout


class UniformSampler(Sampler):
    """Every item of an agent's replay is equally likely."""

    def _choose(self, layout: RoundLayout, uniforms: FloatArray) -> IntArray:
        # Needs no clamp: for u <= 1 - 2^-53 the product rounds to less than the size.
        return (uniforms * self._sizes()[layout.agents]).astype(np.int64)
