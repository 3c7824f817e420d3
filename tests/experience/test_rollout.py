"""Rollouts: what is collected comes back, each item once an epoch, and nothing else."""

import numpy as np
import pytest
import torch

from evorl.experience.rollout import RolloutBuffer, RolloutSampler
from evorl.experience.sampling import SampleRequest, split_groups

T, P, N, OBS = 6, 3, 2, 4


CHOICE = ((), np.dtype(np.int64))


def filled(steps=T, action=CHOICE):
    """A rollout whose fields say where they come from: agent, step, environment."""
    buffer = RolloutBuffer(T, P, N, ((OBS,), np.dtype(np.float32)), action)
    for t in range(steps):
        where = np.array([[p, t, n] for p in range(P) for n in range(N)], np.float32)
        obs = np.concatenate((where, np.zeros((P * N, 1), np.float32)), 1)
        number = 100 * where[:, 0] + 10 * t + where[:, 2]
        taken = np.zeros((P * N, *action[0]), action[1]) + number.reshape(-1, *[1] * len(action[0]))
        ends = (where[:, 1] == 3) & (where[:, 2] == 1)  # environment 1 ends at step 3
        buffer.push(obs, taken, number, obs + 0.5, ends & (where[:, 0] == 0), ends, None)
    return buffer


def draw(buffer, updates, sizes, seed=0):
    generators = [np.random.default_rng([seed, agent]) for agent in range(P)]
    sampler = RolloutSampler(buffer, generators)
    size = P * buffer.length * N
    each = torch.arange(size, dtype=torch.float32)
    buffer.attach(log_prob=-each, advantage=each, returns=2 * each)
    requests = [
        SampleRequest(np.array([0, 2]), updates[[0, 2]], sizes[[0, 2]], int(sizes[[0, 2]].max())),
        SampleRequest(np.array([1]), updates[[1]], sizes[[1]], int(sizes[1])),
    ]
    return requests, split_groups(sampler.sample(requests), requests)


def test_fields_are_by_agent_step_and_environment():
    buffer = filled()
    assert buffer.full
    obs = buffer.field("obs")
    assert obs.shape == (P, T, N, OBS)
    assert obs[2, 5, 1].tolist() == [2, 5, 1, 0]
    assert buffer.field("reward")[1, 4, 1] == 141
    assert buffer.field("ended")[:, 3, 1].all()
    assert buffer.field("terminated").sum() == 1
    buffer.clear()
    assert buffer.length == 0
    assert not buffer.full


@pytest.mark.parametrize("steps", [T, 4])
def test_every_epoch_has_every_item_once_and_fields_stay_together(steps):
    buffer = filled(steps)
    items = steps * N
    sizes = np.array([4, items, 2])
    epochs = np.array([2, 3, 1])
    requests, parts = draw(buffer, epochs * (items // sizes), sizes)
    for request, part in zip(requests, parts, strict=True):
        for row, agent in enumerate(request.agents):
            size, count = sizes[agent], epochs[agent] * (items // sizes[agent])
            weight = part.weight[:, row]
            assert torch.equal(
                weight > 0,
                (torch.arange(len(weight))[:, None] < count)
                & (torch.arange(weight.shape[1]) < size),
            )
            torch.testing.assert_close(weight[:count].sum(1), torch.ones(count))
            obs, action = part.obs[:count, row, :size], part.action[:count, row, :size]
            assert (obs[..., 0] == agent).all()
            assert torch.equal(action, (100 * obs[..., 0] + 10 * obs[..., 1] + obs[..., 2]).long())
            flat = agent * items + obs[..., 1] * N + obs[..., 2]
            assert torch.equal(part.advantage[:count, row, :size], flat)
            assert torch.equal(part.returns[:count, row, :size], 2 * flat)
            for epoch in flat.reshape(epochs[agent], -1):
                assert len(epoch.unique()) == len(epoch) == items // size * size


def test_an_agents_draws_depend_on_nobody_else():
    sizes = np.array([4, 4, 2])
    _, (first, _) = draw(filled(), np.array([3, 3, 6]), sizes)
    _, (second, _) = draw(filled(), np.array([3, 9, 12]), np.array([4, 2, 2]))
    assert torch.equal(first.obs[:3, 0], second.obs[:3, 0, :4])


def test_rows_that_are_no_steps_weigh_nothing():
    buffer = RolloutBuffer(1, P, N, ((OBS,), np.dtype(np.float32)), CHOICE)
    obs, none = np.zeros((P * N, OBS), np.float32), np.zeros(P * N, bool)
    valid = np.array([True, False, True, True, True, True])
    buffer.push(obs, np.arange(P * N), np.ones(P * N), obs, none, none, valid)
    _, parts = draw(buffer, np.ones(P, np.int64), np.full(P, N))
    assert sorted(parts[0].weight[0, 0].tolist()) == [0, 1]  # the other one is all there is
    assert buffer.field("ended")[0, 0].tolist() == [False, True]


def test_continuous_actions_keep_their_shape():
    buffer = filled(action=((2,), np.dtype(np.float32)))
    _, parts = draw(buffer, np.ones(P, np.int64), np.full(P, T * N))
    assert parts[0].action.shape == (1, 2, T * N, 2)
