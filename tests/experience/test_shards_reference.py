"""Shards against dicts and lists, over 10,000 random moves in any order."""

import numpy as np
import pytest
import torch

from evorl.experience import LocalShard, ReplayBuffer, ShardedSampler, split_groups

from .reference import as_windows, transitions
from .test_prioritised_reference import batches, streams
from .test_sampling import request
from .test_shards import Remote, make_sampler, saved

ALPHA, EPSILON, CAPACITY, AGENTS, SHARDS = 0.7, 0.05, 5, 3, 3


class SlowShard:
    """Per ring a dict place → (item, {agent: priority}); an item is itself, and nothing else."""

    def __init__(self, shared):
        self.shared, self.dropped = shared, 0
        self.rings = [{} for _ in range(1 if shared else AGENTS)]
        self.next = [0] * len(self.rings)
        self.highest = [1.0] * AGENTS

    def ring(self, agent):
        return self.rings[0 if self.shared else agent]

    def insert(self, windows, agents, errors):
        """In parts of at most one ring: what is highest is settled at the beginning of each."""
        for first in range(0, len(windows), CAPACITY):
            highest = list(self.highest)
            for k in range(first, min(first + CAPACITY, len(windows))):
                ring = 0 if self.shared else agents[k]
                own = dict.fromkeys(range(AGENTS) if self.shared else [agents[k]])
                for agent in own:
                    error = np.nan if errors is None else errors[agent][k]
                    own[agent] = highest[agent] if np.isnan(error) else self.give(agent, error)
                self.rings[ring][self.next[ring]] = (windows[k], own)
                self.next[ring] = (self.next[ring] + 1) % CAPACITY

    def give(self, agent, error):
        priority = (abs(error) + EPSILON) ** ALPHA
        self.highest[agent] = max(self.highest[agent], priority)
        return priority

    def clear(self):
        for number in range(len(self.rings)):
            self.rings[number], self.next[number] = {}, 0

    def forget(self, agent):
        if not self.shared:
            self.rings[agent], self.next[agent] = {}, 0
        for _, own in self.ring(agent).values():
            own[agent] = 1.0
        self.highest[agent] = 1.0

    def inherit(self, parents):
        before, highest = [dict(ring) for ring in self.rings], list(self.highest)
        old = [
            {id(item): own[agent] for item, own in self.ring(agent).values()}
            for agent in range(AGENTS)
        ]
        places = list(self.next)
        for agent, parent in enumerate(parents):
            if parent in (agent, -1):
                continue
            self.highest[agent] = highest[parent]
            if self.shared:
                for item, own in self.ring(agent).values():
                    own[agent] = old[parent][id(item)]
            else:  # copies: the child's are items of their own
                self.rings[agent] = {
                    place: (dict(item), {agent: own[parent]})
                    for place, (item, own) in before[parent].items()
                }
                self.next[agent] = places[parent]
        for agent in np.flatnonzero(np.array(parents) < 0):
            self.forget(int(agent))

    def total(self, agent):
        return sum(own[agent] for _, own in self.ring(agent).values())

    def find(self, agent, uniform):
        """(item, share) that a random number falls on."""
        total = self.total(agent)
        value, held = uniform * total, [pair for _, pair in sorted(self.ring(agent).items())]
        while len(held) > 1 and value >= held[0][1][agent]:
            value -= held.pop(0)[1][agent]
        item, own = held[0]
        return item, own[agent] / total

    def learn(self, agent, item, error):
        for own_item, own in self.ring(agent).values():
            if own_item is item:
                own[agent] = self.give(agent, error)
                return
        self.dropped += 1


class Slow:
    """All shards, what was heard of their totals, and the agents' streams."""

    def __init__(self, shared, seed):
        self.shards = [SlowShard(shared) for _ in range(SHARDS)]
        self.known = [[0.0] * AGENTS for _ in range(SHARDS)]
        self.streams = streams(AGENTS, seed)

    def hear(self, number):
        own = self.shards[number]
        self.known[number] = [own.total(agent) for agent in range(AGENTS)]

    def draw(self, agent, count, asked):
        """[(shard, item, P)]; those that found a shard empty are made again, without it."""
        known, found = [own[agent] for own in self.known], [None] * count
        uniforms = {k: self.streams[agent].random() for k in range(count)}
        while uniforms:
            chosen = {k: choose(known, uniform) for k, uniform in uniforms.items()}
            asked |= {shard for shard, _ in chosen.values()}
            uniforms = {}
            for k, (shard, left) in chosen.items():
                if self.shards[shard].ring(agent):
                    found[k] = (shard, *self.shards[shard].find(agent, left))
                else:
                    known[shard], uniforms[k] = 0.0, left
        return [(s, item, share * known[s] / sum(known)) for s, item, share in found]


def choose(known, uniform):
    value = uniform * sum(known)
    for shard, total in enumerate(known):
        if value < total:
            return shard, value / total
        value -= total
    raise AssertionError("a draw from nothing")


class Game:
    """Both, and every move made in both."""

    def __init__(self, shared, seed):
        self.shared, self.random = shared, np.random.default_rng(seed)
        self.fast = [self.fresh() for _ in range(SHARDS)]
        self.slow, self.epoch, self.stored = Slow(shared, seed), 0, 0
        like = ReplayBuffer(1, (2,), torch.float32, 1, 1 if shared else AGENTS, torch.float64)
        shards = list(self.fast)
        self.sampler = ShardedSampler(shards, streams(AGENTS, seed), like, CAPACITY)
        self.pending = None  # the last round, if its priorities are not known yet

    def fresh(self, epoch=0):
        sampler = make_sampler(AGENTS, CAPACITY, self.shared, alpha=ALPHA, epsilon=EPSILON)
        return Remote(LocalShard(sampler, epoch))

    def insert(self):
        count, number = int(self.random.integers(1, 9)), self.any_shard()
        agents = self.random.integers(0, AGENTS, count)
        items = transitions(count, start=self.stored)
        self.stored += count
        errors = given = None
        if self.random.random() < 0.7:
            errors = self.random.normal(size=(AGENTS, count)) * self.random.choice([0.1, 1, 30])
            errors[self.random.random(errors.shape) < 0.2] = np.nan
            given = errors
            if self.random.random() < 0.5 or not self.shared:
                given = errors[agents, np.arange(count)]
                others = np.arange(AGENTS)[:, None] != agents
                errors = np.where(others, np.nan, errors)
        self.fast[number].shard.insert(items, agents, given)
        self.slow.shards[number].insert(as_windows(items), agents.tolist(), errors)

    def any_shard(self):
        return int(self.random.integers(SHARDS))

    def hear(self):
        number = self.any_shard()
        self.fast[number].hear()
        self.slow.hear(number)

    def clear(self):
        number = self.any_shard()
        self.fast[number].shard.clear()
        self.slow.shards[number].clear()

    def inherit(self):
        parents = np.arange(AGENTS)
        child, parent = self.random.permutation(AGENTS)[:2]
        parents[child] = self.random.choice([parent, -1])
        self.sampler.inherit(parents)
        for shard in self.slow.shards:
            shard.inherit(parents.tolist())

    def restart(self):
        """A shard's process ends after a checkpoint, and another takes its place."""
        number = self.any_shard()
        self.epoch += 1
        old, slow = self.fast[number], self.slow.shards[number]
        shard = saved(old.shard, self.epoch)
        shard.sampler.priorities.alpha, shard.sampler.priorities.epsilon = ALPHA, EPSILON
        shard.dropped, old.shard = old.shard.dropped, shard
        slow.rings = [
            {place: (dict(item), own) for place, (item, own) in ring.items()} for ring in slow.rings
        ]

    def sample(self):
        slow = self.slow
        there = [
            any(k[a] > 0 and s.ring(a) for k, s in zip(slow.known, slow.shards, strict=True))
            for a in range(AGENTS)
        ]
        agents = self.random.permutation(AGENTS)[: self.random.integers(1, AGENTS + 1)]
        updates = self.random.integers(1, 3, len(agents)) * np.array(there)[agents]
        sizes = self.random.integers(1, 6, len(agents))
        requests = [request(agents, updates, sizes, width=int(sizes.max()) + 1)]
        self.sampler.beta = float(self.random.choice([0.0, 0.4, 1.0]))
        (part,) = split_groups(self.sampler.sample(requests), requests)
        asked = set()
        expected = {
            int(agent): slow.draw(int(agent), int(count), asked)
            for agent, count in zip(agents, updates * sizes, strict=True)
            if count
        }
        self.check(requests[0], part, expected)
        for number in asked:
            slow.hear(number)
        self.pending = requests[0], expected

    def check(self, wanted, part, expected):
        weights = np.zeros(wanted.shape)
        for row, agent, update, size in batches(wanted):
            own = expected[agent][update * size : (update + 1) * size]
            items = part.action[update, row, :size].tolist()
            assert items == [item["action"] for _, item, _ in own]
            for name in ("obs", "rewards", "next_obs"):
                got = getattr(part, name)[update, row, :size].numpy()
                np.testing.assert_array_equal(got, np.array([item[name] for _, item, _ in own]))
            raw = np.array([p for *_, p in own]) ** -self.sampler.beta
            weights[update, row, :size] = raw / raw.max() / size
        np.testing.assert_allclose(part.weight.numpy(), weights, rtol=1e-9)

    def update(self):
        if self.pending is None:
            return
        wanted, expected = self.pending
        errors = self.random.normal(size=wanted.shape) * self.random.choice([0.0, 0.1, 30])
        alive = self.random.random(AGENTS) < 0.8
        for row, agent, update, size in batches(wanted):
            for column, (shard, item, _) in enumerate(
                expected[agent][update * size : (update + 1) * size]
            ):
                if alive[agent]:
                    error = float(errors[update, row, column])
                    self.slow.shards[shard].learn(agent, item, error)
        self.sampler.update_priorities([torch.from_numpy(errors)], alive)

    def check_all(self):
        """Every item and priority, all sums, what new items get, and how much was dropped."""
        for fast, slow in zip(self.fast, self.slow.shards, strict=True):
            sampler, leaves = fast.shard.sampler, np.zeros((AGENTS, CAPACITY))
            actions = sampler.buffer.gather(torch.arange(CAPACITY * len(slow.rings)))["action"]
            for agent in range(AGENTS):
                first = 0 if self.shared else agent * CAPACITY
                for place, (item, own) in slow.ring(agent).items():
                    leaves[agent, place] = own[agent]
                    assert actions[first + place] == item["action"]
            tree = sampler.priorities.tree
            np.testing.assert_allclose(tree.priorities(), leaves, rtol=1e-12)
            np.testing.assert_allclose(tree.totals, leaves.sum(1), rtol=1e-12)
            np.testing.assert_allclose(sampler.priorities._highest, slow.highest, rtol=1e-12)
            assert sampler.buffer.sizes.tolist() == [len(ring) for ring in slow.rings]
            assert fast.shard.dropped == slow.dropped


MOVES = ["insert"] * 8 + ["hear"] * 4 + ["sample"] * 8 + ["update"] * 8 + ["clear"]
MOVES += ["inherit", "restart"]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_random_interleavings_equal_the_reference(shared, seed):
    game = Game(shared, seed)
    for number in range(1000):
        getattr(game, game.random.choice(MOVES))()
        if number % 5 == 4:  # what is wrong stays wrong, and every draw is compared anyway
            game.check_all()
    assert game.stored > 1000
    assert sum(shard.dropped for shard in game.slow.shards) > 50
