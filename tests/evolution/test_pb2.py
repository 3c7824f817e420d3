"""The Gaussian process against plain formulas, and what PB2 makes of known problems."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import optimize, stats as scipy_stats

from evorl.config import ExploreConfig
from evorl.evolution import pb2
from evorl.evolution.explore import Space
from evorl.evolution.pb2 import GaussianProcess, fit, make_explore
from tests.evolution.test_spaces import allows

SPACES = {
    "lr": Space("log", 1e-4, 1e-2),
    "batch_size": Space("power_of_two", 16, 256, whole=True),
    "target_period": Space("choice", 1, 100, (1, 10, 100), whole=True),
}
UNIT = {"a": Space("linear", 0.0, 1.0), "b": Space("linear", 0.0, 1.0)}


def scattered(count, dimensions=2, seed=0):
    random = np.random.default_rng(seed)
    time = random.integers(0, 6, size=count).astype(float)
    before = random.normal(size=count)
    return np.column_stack([time, before, random.random((count, dimensions))])


def slow_kernel(a, b, theta):
    """The kernel point by point, with omega as the paper has it."""
    variance, _, length, length_before, forgetting = np.exp(theta)
    omega = 1 - np.exp(-2 * forgetting)
    table = np.empty((len(a), len(b)))
    for i, (t, before, *x) in enumerate(a):
        for j, (u, other, *y) in enumerate(b):
            by_x = np.sum(np.subtract(x, y) ** 2) / len(x)
            near = by_x / length**2 + (before - other) ** 2 / length_before**2
            table[i, j] = variance * np.exp(-near / 2) * (1 - omega) ** (abs(t - u) / 2)
    return table


THETA = np.log([1.3, 0.05, 0.4, 1.5, 0.1])


def test_prediction_is_the_textbook_formula():
    seen, asked = scattered(15), scattered(7, seed=1)
    changes = np.random.default_rng(2).normal(size=15)
    mean, deviation = GaussianProcess(seen, changes, THETA).predict(asked)
    noisy = slow_kernel(seen, seen, THETA) + 0.05 * np.eye(15)
    across = slow_kernel(seen, asked, THETA)
    solved = np.linalg.solve(noisy, across)
    np.testing.assert_allclose(mean, solved.T @ changes)
    variance = np.diag(slow_kernel(asked, asked, THETA) - across.T @ solved)
    np.testing.assert_allclose(deviation, np.sqrt(variance))


def test_the_misfit_is_the_marginal_likelihood_and_its_gradient_is_right():
    seen, changes = scattered(15), np.random.default_rng(2).normal(size=15)
    distances = pb2.distances(seen, seen)
    noisy = slow_kernel(seen, seen, THETA) + 0.05 * np.eye(15)
    likelihood = scipy_stats.multivariate_normal(np.zeros(15), noisy).logpdf(changes)
    prior = scipy_stats.norm(pb2.MODE, pb2.SPREAD).logpdf(THETA).sum()
    constants = 15 / 2 * np.log(2 * np.pi) + np.log(pb2.SPREAD * np.sqrt(2 * np.pi)).sum()
    value, gradient = pb2._misfit(THETA, distances, changes)
    assert value == pytest.approx(-likelihood - prior - constants)
    numeric = optimize.approx_fprime(
        THETA, lambda theta: pb2._misfit(theta, distances, changes)[0], 1e-6
    )
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-4)


def test_an_expected_child_leaves_the_mean_and_takes_away_uncertainty():
    seen, asked = scattered(15), scattered(30, seed=1)
    changes = np.random.default_rng(2).normal(size=15)
    process = GaussianProcess(seen, changes, THETA)
    after = process.pretend(asked[:1])
    np.testing.assert_allclose(after.predict(asked)[0], process.predict(asked)[0], atol=1e-9)
    fall = process.predict(asked)[1] - after.predict(asked)[1]
    assert (fall > -1e-9).all()
    assert fall.argmax() == 0


def test_a_fit_tells_what_changes_with_time_from_what_does_not():
    random = np.random.default_rng(0)
    x = random.random((90, 1))
    time = np.repeat(np.arange(9.0), 10)
    points = np.column_stack([time, np.zeros(90), x])
    wave = np.sin(6 * x[:, 0])
    steady = fit(points, wave)
    flips = fit(points, wave * random.choice([-1, 1], size=9)[time.astype(int)])
    assert flips[4] > steady[4] + 1
    noisy = fit(points, random.normal(size=90))
    assert noisy[1] > steady[1] + 1


def observed(explore, change, generations=6, count=6, seed=0):
    """An explore that saw agents drawn from its spaces, with a given change of fitness."""
    random = np.random.default_rng(seed)
    for generation in range(generations):
        values = [
            {name: space.sample(random) for name, space in explore.spaces.items()}
            for _ in range(count)
        ]
        before = random.normal(size=count)
        gain = np.array([change(value, generation) for value in values])
        explore.observe(generation, values, before, before + gain)
    return explore


def make(spaces):
    return make_explore(ExploreConfig(strategy="pb2"), spaces)


def children(explore, parent, generation=6, count=10):
    return [
        explore.propose(parent, 0.0, generation, np.random.default_rng(seed))
        for seed in range(count)
    ]


def test_it_finds_the_best_values():
    explore = observed(make(UNIT), lambda v, t: -((v["a"] - 0.7) ** 2) - (v["b"] - 0.2) ** 2)
    found = np.array([[c["a"], c["b"]] for c in children(explore, {"a": 0.5, "b": 0.5}, count=30)])
    assert np.median(np.abs(found - [0.7, 0.2]), axis=0).max() < 0.1


def test_it_follows_the_best_values():
    explore = observed(make({"a": UNIT["a"]}), lambda v, t: -((v["a"] - 0.15 * t) ** 2), 6)
    found = [child["a"] for child in children(explore, {"a": 0.5}, generation=6)]
    assert np.median(found) > 0.7  # 0.9 is best now; over all that was seen it was 0.375


def test_children_of_one_generation_spread():
    """Each child takes the others into account; b, of which nothing is known, shows it."""

    def half(value, generation):
        return float(value["a"] > 0.5)

    parent = {"a": 0.8, "b": 0.5}
    together = children(observed(make(UNIT), half), parent)
    alone = [
        observed(make(UNIT), half).propose(parent, 0.0, 6, np.random.default_rng(seed))
        for seed in range(10)
    ]
    assert together[0] == alone[0]
    assert np.std([child["b"] for child in together]) > 1.3 * np.std(
        [child["b"] for child in alone]
    )
    assert len({child["b"] for child in together}) == 10


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_values_are_in_their_spaces_and_the_rest_is_inherited(seed):
    explore = observed(make(SPACES), lambda v, t: np.log(v["lr"]) + v["batch_size"] / 99, seed=seed)
    parent = {name: space.sample(np.random.default_rng(seed)) for name, space in SPACES.items()}
    child = explore.propose(parent | {"gamma": 0.9}, 0.0, 6, np.random.default_rng(seed))
    assert list(child) == [*parent, "gamma"]
    assert child["gamma"] == 0.9
    assert all(allows(space, child[name]) for name, space in SPACES.items())
    assert child["batch_size"] in (16, 32, 64, 128, 256)
    assert all(isinstance(child[name], int) for name in ("batch_size", "target_period"))


def test_until_it_has_seen_enough_it_perturbs():
    parent = {"a": 0.5, "b": 0.5}
    perturbed = make_explore(ExploreConfig(strategy="perturb"), UNIT).propose(
        parent, 0.0, 1, np.random.default_rng(0)
    )
    for generations, count, learns in ((0, 0, 0), (1, 20, 0), (2, 1, 0), (3, 1, 0), (2, 2, 1)):
        explore = observed(make(UNIT), lambda v, t: v["a"], generations, count)
        child = explore.propose(parent, 0.0, generations, np.random.default_rng(0))
        assert (child != perturbed) == learns
    assert explore.propose(parent, -np.inf, 2, np.random.default_rng(0)) == perturbed


def test_unknown_changes_are_left_out_and_death_is_the_worst_change():
    explore = make(UNIT)
    values = [{"a": x, "b": 0.5} for x in (0.1, 0.2, 0.3, 0.4, 0.5)]
    before = np.array([1.0, np.nan, 1.0, -np.inf, 1.0])
    after = np.array([3.0, 1.0, -np.inf, 1.0, 0.5])
    explore.observe(4, values, before, after)
    assert explore.state() == [[4, 1, 2, 0.1, 0.5], [4, 1, -0.5, 0.3, 0.5], [4, 1, -0.5, 0.5, 0.5]]
    explore.observe(5, values, before, np.full(5, -np.inf))  # all dead: no change to compare with
    explore.observe(6, values, before, np.full(5, np.nan))
    assert len(explore.state()) == 3


def test_only_the_latest_are_kept():
    explore = observed(make(UNIT), lambda v, t: 0.0, generations=50, count=8)
    rows = explore.state()
    assert len(rows) == pb2.MEMORY
    assert rows[-1][0] == 49
    assert rows[0][0] == 50 - pb2.MEMORY // 8


@pytest.mark.parametrize(
    "change",
    [lambda v, t: 0.0, lambda v, t: 1e12 * v["a"], lambda v, t: 1e-12 * v["a"]],
    ids=["constant", "huge", "tiny"],
)
def test_it_survives_odd_numbers_and_duplicates(change):
    explore = make(UNIT)
    same = [{"a": 0.3, "b": 0.3}] * 5 + [{"a": 0.9, "b": 0.1}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for generation in range(8):
            gain = np.array([change(value, generation) for value in same])
            explore.observe(generation, same, np.full(6, 7.0), 7.0 + gain)
        for child in children(explore, same[0], generation=8, count=20):
            assert all(allows(space, child[name]) for name, space in UNIT.items())


def test_a_restored_one_goes_on_exactly():
    explore = observed(make(SPACES), lambda v, t: np.log(v["lr"]))
    parent = {"lr": 1e-3, "batch_size": 64, "target_period": 10}
    state = json.loads(json.dumps(explore.state(), allow_nan=False))
    children(explore, parent, count=3)  # pending ones are not part of the state
    restored = make(SPACES)
    restored.restore(state)
    for one in (explore, restored):
        values, changes = [parent, parent | {"lr": 2e-3}], np.array([0.5, 0.7])
        one.observe(6, values, np.zeros(2), changes)
    assert explore.state() == restored.state()
    assert children(explore, parent, 7, 4) == children(restored, parent, 7, 4)
