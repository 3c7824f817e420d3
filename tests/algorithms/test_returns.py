"""Advantages and V-trace against their definitions, written out sum by sum in float64."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from evorl.algorithms.a2c import normalized_advantage
from evorl.algorithms.returns import advantages, vtrace

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
    found = normalized_advantage(torch.from_numpy(advantage), torch.from_numpy(weight)).numpy()
    assert np.isfinite(found).all()
    for size, own, values in zip(sizes, advantage, found, strict=True):
        expected = own[:size]
        if size > 1:  # of a single one there is no spread: it stays as it is
            expected = (expected - expected.mean()) / (expected.std(ddof=1) + 1e-8)
        np.testing.assert_allclose(values[:size], expected, rtol=1e-9, atol=1e-9)


# V-trace


def unrolls(seed, steps, agents, envs, ending):
    """Such steps taken by another policy: ratios to both sides of the thresholds [P, 1]."""
    random = np.random.default_rng([seed, 1])
    log_ratio = random.normal(size=(steps, agents, envs))
    rho_max, c_max = random.random((2, agents, 1)) * 2
    return [log_ratio, *rollouts(seed, steps, agents, envs, ending), rho_max, c_max]


def traced(*arrays):
    return tuple(own.numpy() for own in vtrace(*map(torch.from_numpy, arrays)))


def vtrace_by_definition(
    log_ratio, reward, value, next_value, terminated, ended, gamma, lam, rho_max, c_max
):
    """Targets and advantages of one environment's steps, as the paper writes them: O(T²)."""
    count = len(reward)
    rho, c = np.minimum(np.exp(log_ratio), rho_max), np.minimum(np.exp(log_ratio), c_max)
    future = [0.0 if over else own for over, own in zip(terminated, next_value, strict=True)]
    targets = []
    for s in range(count):
        total, product = value[s], 1.0
        for t in range(s, count):
            total += (
                gamma ** (t - s) * product * rho[t] * (reward[t] + gamma * future[t] - value[t])
            )
            if ended[t]:
                break
            product *= lam * c[t]
        targets.append(total)
    found = []
    for s in range(count):
        later = future[s]
        if not ended[s] and s + 1 < count:
            later = lam * targets[s + 1] + (1 - lam) * value[s + 1]
        found.append(rho[s] * (reward[s] + gamma * later - value[s]))
    return targets, found


def of_each(arrays):
    """(place, what one environment of one agent went through, its agent's numbers)."""
    steps, numbers = arrays[:6], arrays[6:]
    for agent, env in np.ndindex(steps[0].shape[1:]):
        own = [field[:, agent, env].tolist() for field in steps]
        yield (agent, env), own, [number[agent, 0] for number in numbers]


longer = given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 40),
    agents=st.integers(1, 3),
    envs=st.integers(1, 2),
    ending=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
)
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


@longer
@settings(deadline=None)
def test_vtrace_is_that_of_the_definition(seed, steps, agents, envs, ending):
    arrays = unrolls(seed, steps, agents, envs, ending)
    targets, found = traced(*arrays)
    for (agent, env), own, numbers in of_each(arrays):
        expected = vtrace_by_definition(*own, *numbers)
        np.testing.assert_allclose(targets[:, agent, env], expected[0], **CLOSE)
        np.testing.assert_allclose(found[:, agent, env], expected[1], **CLOSE)


@longer
@settings(deadline=None)
def test_on_policy_it_is_generalised_advantages(seed, steps, agents, envs, ending):
    """With thresholds of 1 or more; by lambda 1 the targets are n-step returns."""
    arrays = rollouts(seed, steps, agents, envs, ending)
    random = np.random.default_rng(seed)
    thresholds = 1 + random.integers(0, 2, (2, agents, 1)) * random.random((2, agents, 1))
    targets, found = traced(np.zeros_like(arrays[0]), *arrays, *thresholds)
    expected = estimated(*arrays)
    np.testing.assert_allclose(found, expected, **CLOSE)
    np.testing.assert_allclose(targets, arrays[1] + expected, **CLOSE)
    whole = (*arrays[:-1], np.ones_like(arrays[-1]))
    targets, _ = traced(np.zeros_like(arrays[0]), *whole, *thresholds)
    for (agent, env), own, gamma, _ in each(whole):
        expected = np.add(n_step(*own, gamma), own[1])
        np.testing.assert_allclose(targets[:, agent, env], expected, **CLOSE)


@longer
@settings(deadline=None)
def test_with_c_0_it_looks_one_step_ahead(seed, steps, agents, envs, ending):
    arrays = unrolls(seed, steps, agents, envs, ending)
    arrays[-1] = np.zeros_like(arrays[-1])
    log_ratio, reward, value, next_value, terminated, _, gamma, _, rho_max, _ = arrays
    error = reward + gamma * next_value * ~terminated - value
    expected = value + np.minimum(np.exp(log_ratio), rho_max) * error
    np.testing.assert_allclose(traced(*arrays)[0], expected, **CLOSE)


@longer
@settings(deadline=None)
def test_what_follows_an_end_does_not_matter_to_vtrace(seed, steps, agents, envs, ending):
    arrays = unrolls(seed, steps, agents, envs, ending)
    cut = steps // 2
    arrays[5][cut] = True
    before = traced(*arrays)
    for field in arrays[:4]:
        field[cut + 1 :] = 1e3
    for own, expected in zip(traced(*arrays), before, strict=True):
        np.testing.assert_array_equal(own[: cut + 1], expected[: cut + 1])


def one_unroll(reward, ratio, terminated, gamma=0.99, rho_max=1.0, c_max=1.0, last_value=0.0):
    """An episode that ends with its last step, of a value that knows nothing but that."""
    nothing, over = np.zeros(len(reward)), np.arange(len(reward)) == len(reward) - 1
    next_value = np.where(over, last_value, 0.0)
    numbers = map(np.array, (gamma, 1.0, rho_max, c_max))
    steps = (np.log(ratio), np.array(reward), nothing, next_value, over & terminated, over)
    return traced(*steps, *numbers)


def test_the_last_reward_counts():
    targets, found = one_unroll([1.0, 1.0, 1.0, 10.0], np.ones(4), True)
    first = 1 + 0.99 + 0.99**2 + 10 * 0.99**3
    assert targets[0] == pytest.approx(first, abs=1e-12)
    assert round(first, 2) == 12.67
    assert targets[-1] == found[-1] == 10


def test_a_truncated_unroll_bootstraps():
    targets, _ = one_unroll([1.0, 1.0], np.ones(2), False, gamma=0.5, last_value=8.0)
    np.testing.assert_allclose(targets, [1 + 0.5 * (1 + 0.5 * 8), 1 + 0.5 * 8], **CLOSE)
    targets, _ = one_unroll([1.0, 1.0], np.ones(2), True, gamma=0.5, last_value=8.0)
    np.testing.assert_allclose(targets, [1.5, 1.0], **CLOSE)


@pytest.mark.parametrize(("rho_max", "c_max"), [(1.0, 1.0), (4.0, 1.0), (100.0, 2.0), (0.5, 9.0)])
def test_a_ratio_of_9_is_clipped_by_the_thresholds(rho_max, c_max):
    targets, found = one_unroll([1.0, 2.0], np.array([9.0, 9.0]), True, 0.9, rho_max, c_max)
    rho, c = min(9, rho_max), min(9, c_max)
    np.testing.assert_allclose(targets, [rho + 0.9 * c * rho * 2, rho * 2], **CLOSE)
    np.testing.assert_allclose(found, [rho * (1 + 0.9 * rho * 2), rho * 2], **CLOSE)


def test_a_ratio_beyond_all_numbers_is_clipped_too():
    found = vtrace(*map(torch.tensor, ([1e4], [1.0], [0.0], [0.0], [True], [True])), *WITHIN)
    assert found.targets.tolist() == found.advantages.tolist() == [1.0]


WITHIN = [torch.tensor(own) for own in (0.9, 1.0, 1.0, 1.0)]


@pytest.mark.parametrize("rho_max", [0.3, 1.0, 50.0])
def test_its_fixed_point_is_the_value_of_the_policy_between_the_two(rho_max):
    """Of a small world with known chances: pi(a) ∝ min(rho_max mu(a), pi(a)), as the paper shows.

    Over all ways of three steps, as likely as the acting policy makes them, corrections cancel.
    """
    random = np.random.default_rng(5)
    states, actions, steps, gamma = 3, 2, 3, 0.9
    follows = random.integers(0, states, (states, actions))
    reward = random.normal(size=(states, actions))
    mu, pi = (own / own.sum(1, keepdims=True) for own in random.random((2, states, actions)))
    between = np.minimum(rho_max * mu, pi)
    between /= between.sum(1, keepdims=True)
    moves = np.zeros((states, states))
    for state, action in np.ndindex(states, actions):
        moves[state, follows[state, action]] += between[state, action]
    value = np.linalg.solve(np.eye(states) - gamma * moves, (between * reward).sum(1))
    for start in range(states):
        total = 0.0
        for taken in itertools.product(range(actions), repeat=steps):
            visited = [start]
            for action in taken:
                visited.append(follows[visited[-1], action])
            at = visited[:-1], list(taken)
            never = np.zeros(steps, bool)
            given_ = (np.log(pi[at] / mu[at]), reward[at], value[visited[:-1]], value[visited[1:]])
            numbers = map(np.array, (gamma, 1.0, rho_max, 1.0))
            targets, _ = traced(*given_, never, never, *numbers)
            total += mu[at].prod() * (targets[0] - value[start])
        assert total == pytest.approx(0, abs=1e-12)
