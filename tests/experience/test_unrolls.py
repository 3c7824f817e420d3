"""Unrolls: what is collected stays whole, new ones are in every batch, the latest come again."""

import numpy as np
import pytest
import torch

from evorl.experience.rollout import RolloutBuffer
from evorl.experience.sampling import SampleRequest, split_groups
from evorl.experience.unrolls import UnrollSampler, UnrollStore

T, P, N, OBS = 4, 3, 2, 4
CHOICE = ((), np.dtype(np.int64))


def rollout_of(number, steps=T, valid=None):
    """A rollout whose observations say where they come from: rollout, agent, step, environment."""
    rollout = RolloutBuffer(T, P, N, ((OBS,), np.dtype(np.float32)), CHOICE)
    for t in range(steps):
        obs = np.array([[number, p, t, n] for p in range(P) for n in range(N)], np.float32)
        over = np.full(P * N, t == 1)
        there = None if valid is None else valid[:, t]
        action = (10 * obs[:, 1] + obs[:, 2]).astype(np.int64)
        rollout.push(obs, action, obs.sum(1), obs + 0.5, over & (obs[:, 3] == 0), over, there)
    return rollout


def add(store, number, steps=T, valid=None):
    rollout = rollout_of(number, steps, valid)
    log_prob = -rollout.field("obs").sum(-1)
    store.add(rollout.unrolls(log_prob))


def draw(store, updates, sizes, seed=0):
    generators = [np.random.default_rng([seed, agent]) for agent in range(P)]
    sampler = UnrollSampler(store, generators)
    requests = [
        SampleRequest(np.array([0, 2]), updates[[0, 2]], sizes[[0, 2]], int(sizes[[0, 2]].max())),
        SampleRequest(np.array([1]), updates[[1]], sizes[[1]], int(sizes[1])),
    ]
    return requests, split_groups(sampler.sample(requests), requests)


def test_an_unroll_is_one_environments_steps_in_order():
    rollout = rollout_of(7)
    found = rollout.unrolls(-rollout.field("obs").sum(-1))
    assert found["obs"].shape == (P, N, T, OBS)
    assert found["obs"][2, 1].tolist() == [[7, 2, t, 1] for t in range(T)]
    assert torch.equal(found["log_prob"], -found["obs"].sum(-1))
    assert torch.equal(found["next_obs"], found["obs"] + 0.5)
    assert found["ended"].sum(-1).tolist() == [[1, 1]] * P
    assert found["terminated"].sum(-1).tolist() == [[1, 0]] * P
    assert found["valid"].all()
    rollout.clear()
    assert found["obs"][2, 1, 3].tolist() == [7, 2, 3, 1]  # a copy


def test_of_a_short_one_the_rest_is_no_steps():
    rollout = rollout_of(7, steps=3)
    found = rollout.unrolls(torch.ones(P, 3, N))
    assert found["valid"].tolist() == [[[True] * 3 + [False]] * N] * P
    assert found["ended"][:, :, 2:].all()  # nothing is carried over to it
    assert not found["terminated"][:, :, 2:].any()  # but its last observation is worth something
    assert found["obs"].shape == (P, N, T, OBS)


def test_a_step_that_is_none_cuts_the_one_before():
    valid = np.ones((P * N, T), bool)
    valid[0, 3] = False
    store = UnrollStore(N, P)
    add(store, 1, valid=valid)
    assert store.field("ended")[0, 0].tolist() == [False, True, True, True]
    _, (first, _) = draw(store, np.ones(P, np.int64), np.full(P, N))
    assert first.weight[0, 0].flatten().tolist() == pytest.approx([1 / 7] * 3 + [0] + [1 / 7] * 4)
    assert first.weight[0, 1].tolist() == [[1 / 8] * 4] * 2


@pytest.mark.parametrize("sizes", [[2, 2, 2], [5, 3, 2]])
def test_every_batch_has_all_that_is_new_and_the_rest_is_of_the_latest(sizes):
    store = UnrollStore(3 * N, P)
    sizes, updates = np.array(sizes), np.array([4, 2, 3])
    for number in range(1, 6):
        add(store, number)
        assert store.new == N
        requests, parts = draw(store, updates, sizes)
        store.new = 0
    assert store.sizes.tolist() == [3 * N] * P
    for request, part in zip(requests, parts, strict=True):
        for row, agent in enumerate(request.agents):
            size, count = sizes[agent], updates[agent]
            obs = part.obs[:count, row, :size]
            assert (obs[..., 1] == agent).all()
            assert torch.equal(obs[..., 2], torch.arange(T).expand(obs.shape[:3]))
            assert obs[:, :N, 0, 0].eq(5).all()
            assert obs[:, :N, 0, 3].tolist() == [[0, 1]] * count
            assert obs[..., 0].min() >= 3
            assert torch.equal(part.log_prob[:count, row, :size], -obs.sum(-1))
            assert torch.equal(part.reward[:count, row, :size], obs.sum(-1))
            weight = part.weight[:, row]
            assert torch.equal(weight[:count, :size], torch.full((count, size, T), 1 / (size * T)))
            assert not weight[count:].any()
            assert not weight[:, size:].any()


def test_replayed_ones_are_drawn_alike():
    store = UnrollStore(4 * N, P)
    for number in range(4):
        add(store, number)
        store.new = 0
    _, (part, _) = draw(store, np.full(P, 500), np.full(P, 8))
    which = (part.obs[:, 0, :, 0, 0] * N + part.obs[:, 0, :, 0, 3]).long().flatten()
    counts = torch.bincount(which, minlength=4 * N).double()
    assert ((counts - 500) ** 2 / 500).sum() < 30  # chi-square with 7 degrees: 1 in 10,000


def test_an_agents_draws_depend_on_nobody_else():
    def drawn(updates, sizes):
        store = UnrollStore(4 * N, P)
        for number in range(4):
            store.new = 0
            add(store, number)
        return draw(store, np.array(updates), np.array(sizes))[1][0]

    first, second = drawn([3, 3, 6], [6, 6, 2]), drawn([3, 9, 12], [6, 2, 8])
    assert torch.equal(first.obs[:3, 0], second.obs[:3, 0, :6])


def sampler_of(store, keeps=True):
    return UnrollSampler(store, [np.random.default_rng(0)] * P, keeps=keeps)


def test_a_child_replays_what_its_parent_has_seen():
    store = UnrollStore(3 * N, P)
    for number in range(1, 5):  # the first is not kept
        add(store, number)
        store.new = 0
    sampler_of(store).inherit(np.array([0, 2, 2]))
    for agent, parent in enumerate((0, 2, 2)):
        state = store.state_dict(agent)
        assert state["obs"][:, 0].tolist() == [[i, parent, 0, n] for i in (2, 3, 4) for n in (0, 1)]
    add(store, 5)
    _, (first, second) = draw(store, np.full(P, 20), np.full(P, 5))
    assert set(second.obs[..., 1].flatten().tolist()) == {1, 2}  # its own are the new ones
    assert set(first.obs[:, 1, ..., 1].flatten().tolist()) == {2}


def test_what_is_not_replayed_is_dropped_at_a_generations_end():
    store = UnrollStore(2 * N, P)
    add(store, 1)
    sampler = sampler_of(store, keeps=False)
    assert sampler.state_dict(0) == {}
    sampler.inherit(np.arange(P))
    assert store.new == store.sizes.sum() == 0
    add(store, 2)
    assert store.field("obs")[..., 0].eq(2).all()


@pytest.mark.parametrize("numbers", [0, 2, 5])
def test_saved_and_loaded_the_same_ones_are_drawn(numbers):
    before, after, smaller = UnrollStore(3 * N, P), UnrollStore(3 * N, P), UnrollStore(N, P)
    for number in range(numbers):
        add(before, number)
        before.new = 0
    for agent in range(P):
        state = sampler_of(before).state_dict(agent)
        for store in (after, smaller):
            sampler_of(store).load_state_dict(state, agent)
    for store in (before, after, smaller):
        add(store, numbers)
    drawn = [draw(store, np.array([3, 4, 5]), np.array([2, 5, 3]))[1] for store in (before, after)]
    for own, other in zip(*drawn, strict=True):
        there = own.weight > 0  # padding is something else, and weighs nothing
        for a, b in zip(own, other, strict=True):
            assert torch.equal(a[there], b[there])
    for name, value in smaller.state_dict(1).items():  # the latest of them
        assert torch.equal(value, before.state_dict(1)[name][-N:])


def test_several_may_come_before_they_are_learned_from_but_no_more_than_are_kept():
    store = UnrollStore(2 * N, P)
    add(store, 1)
    add(store, 2)
    assert store.field("obs")[0, :, 0, 0].tolist() == [1, 1, 2, 2]
    with pytest.raises(RuntimeError, match="6 unrolls were not learned from yet, of at most 4"):
        add(store, 3)
