"""Several prioritised replays, here or in other processes, drawn from as one.

A agents, S shards, D draws of a round, K samples (the draws and padding).

An agent's item i is drawn with P(i) = q · p_i / T: q is the shard's part of all priorities as far
as this process knows them; p_i and T are the item's priority and the sum of them in its shard, both
at the draw. q may be out of date: P(i) is exact all the same, and so are importance weights.

Items are known by stamps, which are never given twice: the epoch of the shard, and the number of
the item in its replay. Priorities for an item that is gone are dropped and counted.

A shard that is lost while a round is drawn is drawn from no more; where that was the last one with
items of an agent, what is missing of its batch has a weight of 0.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from evorl.experience.buffer import ReplayBuffer
from evorl.experience.prioritised import Highest, PrioritisedSampler, importance, learned_errors
from evorl.experience.sampling import RoundLayout, Sampler, SampleRequest, Share
from evorl.experience.transitions import (
    AnyArray,
    BoolArray,
    FloatArray,
    IntArray,
    Samples,
    Transitions,
)

Fields = Mapping[str, Tensor]
ITEM = Transitions._fields[:5]
NUMBERS = 2**44  # of items in one epoch: at 100,000 a second they last for five years
EPOCHS = 2**19
STAMPS = EPOCHS * NUMBERS  # all are below
BELOW_ONE = 1 - 2**-53
NOWHERE = -1  # instead of a shard's number


class Shard(Protocol):
    """A part of a replay, here or behind a request: tensors in and tensors out."""

    def status(self) -> Fields:
        """As last heard: `totals` [A] of priorities, `sizes` [A], `dropped` [] updates so far."""

    def draw(self, wanted: Fields) -> Fields:
        """For `agents` [D] and random numbers `uniforms` [D] the items, field by field.

        With them `shares` [D] of their shard's priorities, `stamps` [D] (-1 where the agent has
        no items here), and the shard's status at the draw.
        """

    def update(self, learned: Fields) -> None:
        """`td_errors` [D] of `agents` [D] for the items with these `stamps` [D]."""

    def inherit(self, family: Fields) -> None:
        """Agent i is a child of agent `parents`[i] [A]; -1: of one that was never here."""


class LocalShard:
    """A prioritised replay as a shard; several threads may use it at once."""

    def __init__(self, sampler: PrioritisedSampler, epoch: int = 0) -> None:
        """Every process that ever holds this shard needs an epoch of its own."""
        if not 0 <= epoch < EPOCHS:
            raise ValueError(f"a shard's epoch must be 0 to {EPOCHS - 1}, got {epoch}")
        self.sampler, self.epoch, self.dropped = sampler, epoch, 0
        self._lock = Lock()

    def insert(
        self,
        transitions: Transitions,
        agents: IntArray | None = None,
        td_errors: AnyArray | None = None,
    ) -> None:
        """As `Sampler.insert`."""
        with self._lock:
            self.sampler.insert(transitions, agents, td_errors)

    def clear(self) -> None:
        """Forget all items; what is still under way for them will be dropped."""
        with self._lock:
            self.sampler.clear()

    def status(self) -> Fields:
        """As it is now."""
        with self._lock:
            return self._status()

    def draw(self, wanted: Fields) -> Fields:
        """Items by priority, one for each agent and random number."""
        agents, uniforms = wanted["agents"].numpy(), wanted["uniforms"].numpy()
        buffer, priorities = self.sampler.buffer, self.sampler.priorities
        with self._lock:
            replays, there = self.sampler.replay_of[agents], priorities.tree.totals[agents] > 0
            places, shares = np.zeros_like(agents), np.zeros(len(agents))
            own = agents[there]
            values = uniforms[there] * priorities.tree.totals[own]
            places[there] = priorities.tree.find(own, values)
            shares[there] = priorities.shares(own, places[there])
            stamps = self.epoch * NUMBERS + buffer.numbers(replays, places)
            slots = torch.from_numpy(replays * buffer.capacity + places)
            return {
                **buffer.gather(slots.to(buffer.device)),
                "shares": torch.from_numpy(shares),
                "stamps": torch.from_numpy(np.where(there, stamps, -1)),
                **self._status(),
            }

    def update(self, learned: Fields) -> None:
        """Priorities follow TD errors, where the item is still the same."""
        fields = (learned[name].numpy() for name in ("agents", "stamps", "td_errors"))
        agents, stamps, td_errors = fields
        epochs, numbers = np.divmod(stamps, NUMBERS)
        with self._lock:
            buffer = self.sampler.buffer
            there = (epochs == self.epoch) & buffer.holds(self.sampler.replay_of[agents], numbers)
            places = numbers[there] % buffer.capacity
            self.sampler.priorities.update(agents[there], places, td_errors[there])
            self.dropped += len(there) - int(there.sum())

    def inherit(self, family: Fields) -> None:
        """Children take over replays and priorities; to newcomers all is new."""
        parents = family["parents"].numpy()
        with self._lock:
            self.sampler.inherit(np.where(parents < 0, np.arange(len(parents)), parents))
            for agent in np.flatnonzero(parents < 0):
                self.sampler.forget(int(agent))

    def _status(self) -> dict[str, Tensor]:
        buffer, totals = self.sampler.buffer, self.sampler.priorities.tree.totals
        return {
            "totals": torch.from_numpy(totals.copy()),
            "sizes": torch.from_numpy(buffer.sizes[self.sampler.replay_of]),
            "dropped": torch.tensor(self.dropped),
        }


def no_items(wanted: Fields, agents: int) -> Fields:
    """The answer to `Shard.draw` of a shard of so many agents that is empty, or gone."""
    count = len(wanted["agents"])
    return {
        "shares": torch.zeros(count, dtype=torch.float64),
        "stamps": torch.full((count,), -1),
        "totals": torch.zeros(agents, dtype=torch.float64),
        "sizes": torch.zeros(agents, dtype=torch.int64),
        "dropped": torch.tensor(0),
    }


class ShardedBuffer:
    """What the learn stage asks of a replay, of all shards together."""

    def __init__(self, shards: Sequence[Shard], like: ReplayBuffer, capacity: int) -> None:
        """`like` has the same items, and may be smaller; `capacity` is that of each shard."""
        self._shards, self.capacity, self.num_replays = shards, capacity, like.num_replays
        self.device, self.reward_dtype = like.device, like.reward_dtype
        self.item_bytes, self.gather = like.item_bytes, like.gather

    @property
    def sizes(self) -> IntArray:
        """[R] items of each replay, as last heard."""
        each = [shard.status()["sizes"].numpy()[: self.num_replays] for shard in self._shards]
        return sum(each, np.zeros(self.num_replays, np.int64))


class ShardedSampler(Sampler):
    """Draws from all shards as if they were one replay; they may come and go between rounds.

    Each draw takes one number of its agent's stream, however many shards there are: it chooses the
    shard, and what is left of it the item. What shards hold is saved where they are.
    """

    keeps = lasting = False

    def __init__(
        self,
        shards: Sequence[Shard],
        generators: Sequence[np.random.Generator],
        like: ReplayBuffer,
        capacity: int | None = None,
        share: Share = "rank",
        noise: int = 0,
    ) -> None:
        buffer: Any = ShardedBuffer(shards, like, capacity or like.capacity)
        super().__init__(buffer, generators, share, noise)
        self.shards = shards
        self.highest: Highest | None = None
        self.missing = 0  # draws that no shard had an item for
        # an executor's map has shards that are elsewhere answer at the same time
        self.map: Callable[..., Iterable[Any]] = map
        self._round: tuple[RoundLayout, Draws]

    @property
    def dropped(self) -> int:
        """Updates of priorities for items that were gone."""
        return sum(int(shard.status()["dropped"]) for shard in self.shards)

    def sample(self, requests: Sequence[SampleRequest]) -> Samples:
        """The batches of one round."""
        layout = self._layout(requests)
        uniforms = self._uniforms(layout)
        draws = Draws(list(self.shards), len(self._generators), layout.agents, uniforms, self.map)
        self._round = layout, draws
        sizes, shares = draws.sizes[layout.agents], draws.probabilities
        weight = importance(layout, sizes, shares, self.beta, self.highest)
        missing = layout.positions[draws.shard_of == NOWHERE]
        weight[torch.from_numpy(missing).to(weight.device)] = 0
        self.missing += len(missing)
        slots = layout.padding.copy()
        places = draws.stamps % NUMBERS % self.buffer.capacity
        slots[layout.positions] = self._first_slots[layout.agents] + places
        index = torch.from_numpy(slots).to(self.buffer.device)
        items = self._items(layout, requests, draws)
        return Samples(**items, weight=weight, slots=index, noise=self._normals(layout))

    def update_priorities(
        self, td_errors: Sequence[Tensor], alive: BoolArray | None = None
    ) -> None:
        """Each shard is told of its own items."""
        layout, draws = self._round
        learned, errors = learned_errors(layout, td_errors, alive)
        told = []
        for number, shard in enumerate(draws.shards):
            rows = draws.shard_of[learned] == number
            if rows.any():
                own = learned[rows]
                fields = (layout.agents[own], draws.stamps[own], errors[rows])
                names = ("agents", "stamps", "td_errors")
                told.append((shard, dict(zip(names, map(torch.from_numpy, fields), strict=True))))
        for _ in self.map(lambda to: to[0].update(to[1]), told):
            pass

    def inherit(self, parents: IntArray) -> None:
        """In every shard."""
        for shard in self.shards:
            shard.inherit({"parents": torch.from_numpy(parents)})

    def state_dict(self, agent: int) -> dict[str, Tensor]:
        """Nothing: all of it is in the shards."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor], agent: int) -> None:
        """A child of an agent that no shard knows."""
        parents = np.arange(len(self._generators))
        parents[agent] = -1
        self.inherit(parents)

    def _items(
        self, layout: RoundLayout, requests: Sequence[SampleRequest], draws: "Draws"
    ) -> dict[str, Tensor]:
        """[K] the drawn items where they belong; padding is the first that its agent drew."""
        first = np.zeros(len(self._generators), np.int64)
        for agent, start, _ in layout.streams:
            first[agent] = start
        at = [np.tile(np.repeat(own.agents, own.width), own.shape[0]) for own in requests]
        rows = draws.rows[first[np.concatenate(at)]]
        rows[layout.positions] = draws.rows
        index = torch.from_numpy(rows).to(self.buffer.device)
        parts = draws.parts or [self.buffer.gather(index)]  # nothing was drawn
        items = {name: [part[name].to(index.device) for part in parts] for name in ITEM}
        return {
            name: (own[0] if len(own) == 1 else torch.cat(own)).index_select(0, index)
            for name, own in items.items()
        }


class Draws:
    """One round's draws of agents [D], with their random numbers [D]."""

    def __init__(
        self,
        shards: Sequence[Shard],
        population: int,
        agents: IntArray,
        uniforms: FloatArray,
        map_: Callable[..., Iterable[Fields]],
    ) -> None:
        self.shards, self._agents, self._map, count = shards, agents, map_, len(agents)
        self.stamps = np.full(count, -1)  # [D]
        self.shard_of = np.zeros(count, np.int64)  # [D]
        self.rows = np.zeros(count, np.int64)  # [D] of the items in all `parts`, one after another
        self.parts: list[Fields] = []  # as shards gave them
        self._shares, self._given = np.zeros(count), 0  # [D] of their shards' priorities
        self._totals = np.zeros((len(shards), population))  # [S, A]
        self._sizes = np.zeros((len(shards), population), np.int64)  # [S, A]
        for number, shard in enumerate(shards):
            known = shard.status()
            self._totals[number], self._sizes[number] = known["totals"], known["sizes"]
        missing = np.arange(count)
        while len(missing):  # again, where a shard has lost the agent's items since
            missing = self._ask(missing, uniforms)

    @property
    def probabilities(self) -> FloatArray:
        """[D] of each draw; 1 where there was none, which is no batch's highest weight."""
        drawn, found = self.shard_of != NOWHERE, np.ones(len(self._agents))
        shards, agents = self.shard_of[drawn], self._agents[drawn]
        whole = self._totals.sum(0)[agents]
        found[drawn] = self._totals[shards, agents] / whole * self._shares[drawn]
        return found

    @property
    def sizes(self) -> IntArray:
        """[A] items that each agent could have drawn, but at least one."""
        sizes: IntArray = np.where(self._totals > 0, self._sizes, 0).sum(0)
        return np.maximum(sizes, 1)

    def _ask(self, draws: IntArray, uniforms: FloatArray) -> IntArray:
        """Make some of the draws; those that must be made again."""
        there = self._totals.sum(0)[self._agents[draws]] > 0
        self.shard_of[draws[~there]] = NOWHERE
        draws = draws[there]
        chosen = choose_shards(self._totals, self._agents[draws], uniforms[draws])
        self.shard_of[draws], uniforms[draws] = chosen
        asked = [(s, own) for s in range(len(self.shards)) if len(own := draws[chosen[0] == s])]
        wanted = [
            {
                "agents": torch.from_numpy(self._agents[own]),
                "uniforms": torch.from_numpy(uniforms[own]),
            }
            for _, own in asked
        ]
        called = [self.shards[s].draw for s, _ in asked]
        replies = self._map(lambda draw, fields: draw(fields), called, wanted)
        for (shard, own), reply in zip(asked, replies, strict=True):
            self._take(shard, own, reply)
        lost = self._totals[self.shard_of, self._agents] <= 0.0  # drawn before or now
        return np.flatnonzero(lost & (self.shard_of != NOWHERE))

    def _take(self, shard: int, own: IntArray, reply: Fields) -> None:
        """What a shard has answered."""
        self.stamps[own], self._shares[own] = reply["stamps"].numpy(), reply["shares"].numpy()
        self._sizes[shard] = reply["sizes"].numpy()
        self._totals[shard, self._agents[own[self.stamps[own] < 0]]] = 0.0
        if "obs" in reply:
            self.rows[own] = self._given + np.arange(len(own))
            self.parts.append(reply)
            self._given += len(own)


def choose_shards(
    totals: FloatArray, agents: IntArray, uniforms: FloatArray
) -> tuple[IntArray, FloatArray]:
    """[D] a shard for each draw by its part of the agent's total [S, A]; [D] what is left over.

    A shard of total 0 is never chosen. What is left is a random number from 0 to 1 again.
    """
    ends = np.cumsum(totals, 0)[:, agents]
    ends /= ends[-1]  # [S, D]
    chosen = (ends[:-1] <= uniforms).sum(0)
    draws = np.arange(len(agents))
    starts = np.where(chosen > 0, ends[chosen - 1, draws], 0.0)
    left = (uniforms - starts) / (ends[chosen, draws] - starts)
    return chosen, np.minimum(left, BELOW_ONE)
