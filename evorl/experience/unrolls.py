"""Unrolls: stretches of steps that stay whole, new ones and the latest that are replayed.

P agents, N unrolls that come together, T steps of an unroll, C unrolls kept of each agent. Unroll c
of agent p lies in slot p*C + c.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evorl.experience.rollout import RolloutBuffer
from evorl.experience.sampling import Sampler, SampleRequest
from evorl.experience.transitions import IntArray, UnrollBatch

Tensors = Mapping[str, Tensor]


class UnrollStore:
    """The latest unrolls of every agent: a ring of C, whose newest have not been learned from.

    Whoever collected them says how likely the actions were when they were taken: later on the
    weights are others.
    """

    def __init__(self, capacity: int, agents: int, device: torch.device | str = "cpu") -> None:
        self.capacity, self.num_replays, self.device = capacity, agents, torch.device(device)
        self.reward_dtype = torch.float32
        self._fields: dict[str, Tensor] = {}  # [P, C, T, ...]; made when the first ones come
        self.clear()

    def clear(self) -> None:
        """Drop all of them."""
        self.sizes: IntArray = np.zeros(self.num_replays, np.int64)  # unrolls held of each agent
        self.new = self._position = 0

    @property
    def newest(self) -> IntArray:
        """Where those are that came since they were last learned from, oldest first."""
        return self.places(np.arange(self.new)[::-1])

    def places(self, ages: IntArray) -> IntArray:
        """Where unrolls are by their age: 0 is the one that came last."""
        places: IntArray = (self._position - 1 - ages) % self.capacity
        return places

    def add(self, unrolls: Tensors) -> None:
        """Take in unrolls by field, [P, N, T, ...]: see `RolloutBuffer.unrolls`."""
        count = unrolls["reward"].shape[1]
        if self.new + count > self.capacity:
            what = f"{self.new + count} unrolls were not learned from yet"
            raise RuntimeError(f"{what}, of at most {self.capacity}: learn before more are added")
        if not self._fields:
            self._fields = {name: self._empty(value[0, 0]) for name, value in unrolls.items()}
        places = torch.from_numpy((self._position + np.arange(count)) % self.capacity)
        for name, value in unrolls.items():
            self._fields[name][:, places.to(self.device)] = value.to(self.device)
        self._position = (self._position + count) % self.capacity
        self.sizes, self.new = np.minimum(self.sizes + count, self.capacity), self.new + count

    def field(self, name: str) -> Tensor:
        """Of the newest unrolls, [P, N, T, ...]."""
        return self._fields[name][:, torch.from_numpy(self.newest).to(self.device)]

    def gather(self, slots: Tensor) -> dict[str, Tensor]:
        """Unrolls in flat slots, field by field: [K, T, ...]."""
        return {
            name: torch.index_select(own.flatten(0, 1), 0, slots)
            for name, own in self._fields.items()
        }

    def inherit(self, parents: IntArray) -> None:
        """Agent i has from now on what agent parents[i] has."""
        children = np.flatnonzero(parents != np.arange(self.num_replays))
        into, rows = (
            torch.from_numpy(own).to(self.device) for own in (children, parents[children])
        )
        for own in self._fields.values() if len(children) else ():
            own[into] = own[rows]
        self.sizes = self.sizes[parents]

    def keep(self, agents: IntArray) -> None:
        """Only these agents are left, in this order."""
        rows = torch.from_numpy(agents).to(self.device)
        self._fields = {name: own[rows] for name, own in self._fields.items()}
        self.num_replays, self.sizes = len(agents), self.sizes[agents]

    def state_dict(self, agent: int) -> dict[str, Tensor]:
        """An agent's unrolls, [K, T, ...] by field, oldest first; nothing if there are none."""
        places = torch.from_numpy(self.places(np.arange(self.sizes[agent])[::-1])).to(self.device)
        return {name: own[agent, places].cpu() for name, own in self._fields.items() if len(places)}

    def load_state_dict(self, state: Tensors, agent: int) -> None:
        """Takes over the latest of such unrolls, as many as are kept."""
        count = min((len(own) for own in state.values()), default=0)
        known = {name: (own.shape[2:], own.dtype) for name, own in self._fields.items()}
        given = {name: (own.shape[1:], own.dtype) for name, own in state.items()}
        if state and ({len(own) for own in state.values()} != {count} or known not in ({}, given)):
            raise ValueError("the unrolls had other fields when they were saved")
        self.sizes[agent] = count = min(count, self.capacity)
        if state and not self._fields:
            self._fields = {name: self._empty(own[0]) for name, own in state.items()}
        places = torch.from_numpy(self.places(np.arange(count)[::-1])).to(self.device)
        for name, own in state.items():
            self._fields[name][agent, places] = own[len(own) - count :].to(self.device)

    def _empty(self, like: Tensor) -> Tensor:
        """For all agents, of what one unroll has, [T, ...]."""
        shape = (self.num_replays, self.capacity, *like.shape)
        return torch.zeros(shape, dtype=like.dtype, device=self.device)


class UnrollSampler(Sampler):
    """Every batch has all new unrolls of its agent, and others drawn from all that it keeps."""

    rollout: RolloutBuffer  # where they are collected, if that is in this process

    def __init__(
        self, store: UnrollStore, generators: Sequence[np.random.Generator], keeps: bool = True
    ) -> None:
        """If it `keeps` them, they outlast a generation, and children get their parents'."""
        super().__init__(store, generators, "agent")  # type: ignore[arg-type]
        self.store, self.keeps = store, keeps

    def sample(self, requests: Sequence[SampleRequest]) -> Any:
        """The batches of one round; steps that are none weigh nothing."""
        layout, newest = self._layout(requests), self.store.newest
        sizes = {a: b for own in requests for a, b in zip(own.agents, own.batch_sizes, strict=True)}
        drawn = np.empty(len(layout.agents), np.int64)
        for agent, start, end in layout.streams:
            batches = drawn[start:end].reshape(-1, sizes[agent])
            batches[:, : len(newest)] = newest
            older = batches[:, len(newest) :]
            ages = self._generators[agent].integers(self.store.sizes[agent], size=older.shape)
            older[:] = self.store.places(ages)
        slots = layout.padding.copy()
        slots[layout.positions] = self._first_slots[layout.agents] + drawn
        items = self.store.gather(torch.from_numpy(slots).to(self.store.device))
        valid = items.pop("valid").cpu().numpy()[layout.positions]  # [D, T]
        steps = np.add.reduceat(valid.sum(1), layout.batches)  # of each batch
        weight = np.zeros((len(slots), valid.shape[1]), np.float32)
        weight[layout.positions] = valid / np.maximum(steps, 1)[layout.batch_of][:, None]
        return UnrollBatch(**items, weight=torch.from_numpy(weight).to(self.store.device))

    def keep(self, agents: IntArray) -> None:
        """With as much room for new ones."""
        super().keep(agents)
        self.rollout.keep(agents)

    def inherit(self, parents: IntArray) -> None:
        """A generation ends: a child replays what its parent has seen."""
        self.store.new = 0
        if self.keeps:
            self.store.inherit(parents)
        else:
            self.store.clear()

    def state_dict(self, agent: int) -> dict[str, Tensor]:
        """Its unrolls, if they are kept."""
        return self.store.state_dict(agent) if self.keeps else {}

    def load_state_dict(self, state: dict[str, Tensor], agent: int) -> None:
        """Takes over such a state."""
        self.store.load_state_dict(state, agent)
