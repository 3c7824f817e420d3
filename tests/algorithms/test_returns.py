"""Advantages against their definitions, written out sum by sum in float64."""

import numpy as np
import torch
from hypothesis import given, settings, strategies as st

from evorl.algorithms.a2c import normalized
from evorl.algorithms.returns import advantages

torch.set_num_threads(1)


def rollouts(seed, steps, agents, envs, ending):
    """Random steps [T, P, N] with terminations and truncations, and numbers [P, 1] of agents."""
    random = np.random.default_rng(seed)
    shape = (steps, agents, envs)
    reward, value, next_value = random.normal(size=(3, *shape))
    terminated, truncated = random.random((2, *shape)) < ending
    ended = terminated | truncated
    # within an episode, what follows a step is what the next one is taken at
    next_value[:-1] = np.where(ended[:-1], next_value[:-1], value[1:])
    gamma, lam = random.random((2, agents, 1))
    gamma[0] = lam[-1] = 1.0
    return reward, value, next_value, terminated, ended, gamma, lam


def estimated(*arrays):
    return advantages(*map(torch.from_numpy, arrays)).numpy()


def each(arrays):
    """(place, what one environment of one agent went through, its agent's gamma and lambda)."""
    *steps, gamma, lam = arrays
    _, agents, envs = steps[0].shape
    for agent, env in np.ndindex(agents, envs):
        own = [field[:, agent, env].tolist() for field in steps]
        yield (agent, env), own, gamma[agent, 0], lam[agent, 0]


def by_definition(reward, value, next_value, terminated, ended, gamma, lam):
    """Each step's errors to come, up to its episode's end or the rollout's: O(T²)."""
    found = []
    for t in range(len(reward)):
        total = 0.0
        for k in range(t, len(reward)):
            future = 0.0 if terminated[k] else next_value[k]
            total += (gamma * lam) ** (k - t) * (reward[k] + gamma * future - value[k])
            if ended[k]:
                break
        found.append(total)
    return found


def n_step(reward, value, next_value, terminated, ended, gamma):
    """Each step's discounted rewards, and what its last observation is worth, less the value."""
    found = []
    for t in range(len(reward)):
        total = 0.0
        for k in range(t, len(reward)):
            total += gamma ** (k - t) * reward[k]
            if ended[k] or k == len(reward) - 1:
                total += 0.0 if terminated[k] else gamma ** (k - t + 1) * next_value[k]
                break
        found.append(total - value[t])
    return found


some = given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    agents=st.integers(1, 4),
    envs=st.integers(1, 3),
    ending=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
)


@some
@settings(deadline=None)
def test_advantages_are_those_of_the_definition(seed, steps, agents, envs, ending):
    arrays = rollouts(seed, steps, agents, envs, ending)
    found = estimated(*arrays)
    for (agent, env), own, gamma, lam in each(arrays):
        expected = by_definition(*own, gamma, lam)
        np.testing.assert_allclose(found[:, agent, env], expected, rtol=1e-12, atol=1e-12)


@some
@settings(deadline=None)
def test_with_lambda_1_they_are_n_step_returns_less_the_value(seed, steps, agents, envs, ending):
    *arrays, lam = rollouts(seed, steps, agents, envs, ending)
    arrays.append(np.ones_like(lam))
    found = estimated(*arrays)
    for (agent, env), own, gamma, _ in each(arrays):
        expected = n_step(*own, gamma)
        np.testing.assert_allclose(found[:, agent, env], expected, rtol=1e-12, atol=1e-12)


@some
@settings(deadline=None)
def test_with_lambda_0_they_are_errors_of_one_step(seed, steps, agents, envs, ending):
    reward, value, next_value, terminated, ended, gamma, lam = rollouts(
        seed, steps, agents, envs, ending
    )
    found = estimated(reward, value, next_value, terminated, ended, gamma, np.zeros_like(lam))
    expected = reward + gamma * next_value * ~terminated - value
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@some
@settings(deadline=None)
def test_what_follows_an_end_does_not_matter(seed, steps, agents, envs, ending):
    arrays = rollouts(seed, steps, agents, envs, ending)
    cut = steps // 2
    arrays[4][cut] = True
    before = estimated(*arrays)[: cut + 1]
    for field in arrays[:3]:
        field[cut + 1 :] = 1e6
    np.testing.assert_array_equal(estimated(*arrays)[: cut + 1], before)


def test_a_termination_is_worth_nothing_and_a_truncation_its_last_observation():
    arrays = [np.array(own, dtype=np.float64) for own in ([1.0, 1.0], [0.0, 0.0], [10.0, 10.0])]
    ended, gamma, lam = np.array([True, True]), np.array(0.5), np.array(1.0)
    found = estimated(*arrays, np.array([True, False]), ended, gamma, lam)
    np.testing.assert_array_equal(found, [1.0, 6.0])


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    shift=st.floats(-100, 100),
    scale=st.floats(1e-2, 1e2),
)
@settings(deadline=None)
def test_normalized_advantages_have_mean_0_and_spread_1(seed, sizes, shift, scale):
    """Each agent's over its own samples; the rest of the batch is padding."""
    random = np.random.default_rng(seed)
    advantage = random.normal(shift, scale, (len(sizes), 9))
    weight = np.where(np.arange(9) < np.array(sizes)[:, None], 0.1, 0.0)
    found = normalized(torch.from_numpy(advantage), torch.from_numpy(weight)).numpy()
    assert np.isfinite(found).all()
    for size, own, values in zip(sizes, advantage, found, strict=True):
        expected = own[:size]
        if size > 1:  # of a single one there is no spread: it stays as it is
            expected = (expected - expected.mean()) / (expected.std(ddof=1) + 1e-8)
        np.testing.assert_allclose(values[:size], expected, rtol=1e-9, atol=1e-9)
