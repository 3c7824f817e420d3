"""The whole way of prioritised replay, step by step, against dicts and lists."""

import numpy as np
import torch
from hypothesis import given, settings, strategies as st

from evorl.experience import NStep, PrioritisedSampler, ReplayBuffer, SampleRequest, split_groups
from evorl.seeding import generator

from .reference import Episodes, SlowNStep, SlowRing
from .test_buffer import FIELDS, assert_equal_rings

NEAR = 1e-9  # a draw this close to a boundary (as a share of the total) may fall on either side


def streams(agents, seed):
    return [generator(seed, "replay", agent) for agent in range(agents)]


class SlowReplay:
    """Per agent a dict slot → priority, and the highest priority it ever gave."""

    def __init__(self, agents, envs_each, capacity, shared, seed, alpha, epsilon):
        self.envs_each, self.shared = envs_each, shared
        self.alpha, self.epsilon = alpha, epsilon
        self.ring = SlowRing(1 if shared else agents, capacity)
        self.priority = [{} for _ in range(agents)]
        self.highest = [1.0] * agents
        self.streams = streams(agents, seed)

    def add(self, windows):
        for window in windows:
            owner = window["env"] // self.envs_each
            slot = self.ring.add(window, 0 if self.shared else owner)
            for agent in range(len(self.priority)) if self.shared else [owner]:
                self.priority[agent][slot] = self.highest[agent]

    def window(self, slot):
        return self.ring.places[slot // self.ring.capacity][slot % self.ring.capacity]

    def learn(self, agent, slot, td_error):
        priority = (abs(td_error) + self.epsilon) ** self.alpha
        self.priority[agent][slot] = priority
        self.highest[agent] = max(self.highest[agent], priority)

    def check_draw(self, agent, slot):
        """The agent's next random number falls into the share of the running sum of `slot`."""
        total = sum(self.priority[agent].values())
        value = self.streams[agent].random() * total
        below = 0.0
        for other, priority in sorted(self.priority[agent].items()):
            if other == slot:
                assert below - NEAR * total <= value < below + priority + NEAR * total
                return
            below += priority
        raise AssertionError(f"agent {agent} drew slot {slot}, which holds none of its items")

    def weights(self, agent, slots, beta):
        """(size · p / total)^-beta of one batch, over its maximum and its length."""
        held = self.priority[agent]
        total = sum(held.values())
        raw = [(len(held) * held[slot] / total) ** -beta for slot in slots]
        return [weight / max(raw) / len(raw) for weight in raw]


def assert_equal_priorities(sampler, slow):
    """Every priority, their sums, and what a new item would get."""
    capacity = slow.ring.capacity
    expected = np.zeros((len(slow.priority), capacity))
    for agent, held in enumerate(slow.priority):
        for slot, priority in held.items():
            expected[agent, slot % capacity] = priority
    tree = sampler.priorities.tree
    np.testing.assert_allclose(tree.priorities(), expected, rtol=1e-12)
    np.testing.assert_allclose(tree.totals, expected.sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(sampler.priorities._highest, slow.highest, rtol=1e-12)


def random_requests(rng, slow):
    """Some agents in one or two groups; those without items make no updates."""
    everyone = rng.permutation(len(slow.priority))[: rng.integers(1, len(slow.priority) + 1)]
    requests = []
    for agents in np.split(everyone, [rng.integers(0, len(everyone))]):
        if len(agents):
            due = np.array([len(slow.priority[agent]) > 0 for agent in agents])
            sizes = rng.integers(1, 7, len(agents))
            width = int(sizes.max() + rng.integers(0, 3))
            requests.append(
                SampleRequest(agents, due * rng.integers(0, 4, len(agents)), sizes, width)
            )
    return requests


def batches(request):
    """(row, agent, update, batch size) of every batch of a group, earlier updates first."""
    for row, agent in enumerate(request.agents.tolist()):
        for update in range(request.updates[row]):
            yield row, agent, update, int(request.batch_sizes[row])


def check_round(sampler, slow, requests, parts):
    """Each draw and its item, each batch's weights; and padding has no weight."""
    for request, part in zip(requests, parts, strict=True):
        weights = np.zeros(request.shape)
        for row, agent, update, size in batches(request):
            slots = part.slots[update, row, :size].tolist()
            for slot in slots:
                slow.check_draw(agent, slot)
            for name in FIELDS:
                got = getattr(part, name)[update, row, :size].numpy()
                expected = np.array([slow.window(slot)[name] for slot in slots])
                np.testing.assert_array_equal(got, expected, err_msg=name)
            weights[update, row, :size] = slow.weights(agent, slots, sampler.beta)
        np.testing.assert_allclose(part.weight.numpy(), weights, rtol=1e-12)


def update_both(rng, sampler, slow, requests, parts):
    """Random TD errors, of very different sizes; NaN for padding and for the dead."""
    alive = rng.random(len(slow.priority)) < 0.7 if rng.random() < 0.7 else None
    errors = []
    for request, part in zip(requests, parts, strict=True):
        shape = request.shape
        td = np.full(shape, np.nan)
        scale = rng.choice([0.0, 0.01, 1.0, 30.0], shape)
        random = (rng.normal(size=shape) * scale).astype(np.float32)
        for row, agent, update, size in batches(request):
            if alive is None or alive[agent]:
                td[update, row, :size] = random[update, row, :size]
                for column in range(size):
                    slot = part.slots[update, row, column].item()
                    slow.learn(agent, slot, td[update, row, column].item())
        errors.append(torch.from_numpy(td).float())
    sampler.update_priorities(errors, alive)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 4),
    agents=st.integers(1, 4),
    envs_each=st.integers(1, 4),
    capacity=st.integers(1, 9),
    shared=st.booleans(),
    seed=st.integers(0, 10_000),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
    epsilon=st.sampled_from([1e-6, 0.1]),
    moves=st.lists(st.sampled_from(["step", "step", "flush", "learn"]), min_size=10, max_size=40),
)
def test_prioritised_replay_equals_the_reference(
    n, agents, envs_each, capacity, shared, seed, alpha, epsilon, moves
):
    num_envs, replays = agents * envs_each, 1 if shared else agents
    fast_steps, slow_steps = NStep(num_envs, n, (2,), np.float32), SlowNStep(num_envs, n)
    buffer = ReplayBuffer(capacity, (2,), torch.float32, n, replays, reward_dtype=torch.float64)
    sampler = PrioritisedSampler(buffer, streams(agents, seed), alpha, epsilon)
    slow = SlowReplay(agents, envs_each, capacity, shared, seed, alpha, epsilon)
    episodes, rng = Episodes(num_envs, seed), np.random.default_rng(seed)

    def store(emitted, windows):
        sampler.inserted(buffer.add(emitted, None if shared else emitted.env // envs_each))
        slow.add(windows)
        assert_equal_rings(buffer, slow.ring)

    for move in moves:
        if move == "step":
            step = episodes.step()
            store(fast_steps.push(*step), slow_steps.push(*step))
        elif move == "flush":
            store(fast_steps.flush(), slow_steps.flush())
            episodes.cut()
        else:
            sampler.beta = rng.choice([0.0, 0.4, 1.0])
            requests = random_requests(rng, slow)
            parts = split_groups(sampler.sample(requests), requests)
            check_round(sampler, slow, requests, parts)
            assert_equal_priorities(sampler, slow)  # drawing changes none
            if rng.random() < 0.8:  # else a round that was given up
                update_both(rng, sampler, slow, requests, parts)
        assert_equal_priorities(sampler, slow)
