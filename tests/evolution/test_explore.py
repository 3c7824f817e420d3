"""New hyperparameter values stay in their spaces and move as the strategy says."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from evorl.config import ExploreConfig
from evorl.evolution.explore import Space
from evorl.evolution.pb2 import make_explore
from tests.evolution.test_spaces import allows

SPACES = {
    "lr": Space("log", 1e-4, 1e-2),
    "gamma": Space("reverse_log", 0.9, 0.999),
    "batch_size": Space("power_of_two", 16, 256, whole=True),
    "learn_step": Space("integer", 1, 10, whole=True),
    "tau": Space("linear", 0.0, 1.0),
    "target_period": Space("choice", 1, 100, (1, 10, 100), whole=True),
}
strategies = st.sampled_from(["perturb", "resample", "pb2"])
seeds = st.integers(0, 2**32 - 1)


def propose(strategy, values, seed, spaces=SPACES, **options):
    explore = make_explore(ExploreConfig(strategy=strategy, **options), spaces)
    return explore.propose(values, 1.0, 1, np.random.default_rng(seed))


def drawn(seed):
    random = np.random.default_rng(seed)
    return {name: space.sample(random) for name, space in SPACES.items()} | {"epsilon_end": 0.05}


@given(strategies, seeds, seeds)
def test_a_child_is_within_the_spaces_and_the_rest_is_inherited(strategy, first, second):
    parent = drawn(first)
    before = dict(parent)
    child = propose(strategy, parent, second)
    assert parent == before
    assert list(child) == list(parent)
    assert child["epsilon_end"] == 0.05
    assert all(allows(space, child[name]) for name, space in SPACES.items())
    assert child != parent
    assert child == propose(strategy, parent, second)
    whole = [name for name, space in SPACES.items() if space.whole]
    assert all(isinstance(child[name], int) for name in whole)


def test_perturb_grows_or_shrinks_each_with_equal_chance():
    parent = {"lr": 1e-3, "tau": 0.5}
    spaces = {name: SPACES[name] for name in parent}
    children = [
        propose("perturb", parent, seed, spaces, grow=2, shrink=0.25) for seed in range(800)
    ]
    assert {child["lr"] for child in children} == {2e-3, 0.25e-3}
    assert {child["tau"] for child in children} == {1.0, 0.125}
    table = np.zeros((2, 2))
    for child in children:
        table[int(child["lr"] > 1e-3), int(child["tau"] > 0.5)] += 1
    assert stats.chisquare(table.ravel()).pvalue > 0.01  # even, and independent of each other


@pytest.mark.parametrize("ends", ["low", "high"])
def test_a_child_of_a_parent_in_a_corner_differs(ends):
    corner = {name: getattr(space, ends) for name, space in SPACES.items()}
    for seed in range(200):
        child = propose("perturb", corner, seed)
        assert child != corner
        assert all(allows(space, child[name]) for name, space in SPACES.items())


def test_the_one_that_steps_back_is_any_of_them():
    spaces = {"lr": SPACES["lr"], "tau": SPACES["tau"], "stuck": Space("choice", 3, 3, (3,))}
    corner = {"lr": 1e-2, "tau": 1.0, "stuck": 3}
    children = [propose("perturb", corner, seed, spaces) for seed in range(400)]
    only = [{name for name in corner if child[name] != corner[name]} for child in children]
    # half the lr shrink and half the tau; where neither does, one of them does all the same
    for name, chance in (("lr", 3 / 8), ("tau", 3 / 8)):
        assert np.mean([moved == {name} for moved in only]) == pytest.approx(chance, abs=0.07)


def test_what_cannot_move_stays():
    spaces = {"stuck": Space("choice", 3, 3, (3,))}
    for strategy in ("perturb", "resample", "pb2"):
        assert propose(strategy, {"stuck": 3, "free": 1}, 0, spaces) == {"stuck": 3, "free": 1}
        assert propose(strategy, {"free": 1}, 0, {}) == {"free": 1}


@pytest.mark.parametrize("chance", [0.0, 0.3, 1.0])
def test_resample_draws_anew_with_its_probability(chance):
    parent = drawn(0)
    children = [propose("resample", parent, seed, resample=chance) for seed in range(600)]
    steps = {parent["lr"] * 1.25, parent["lr"] * 0.8}
    anew = np.array([child["lr"] for child in children if child["lr"] not in steps])
    assert len(anew) / 600 == pytest.approx(chance, abs=0.06)
    if chance == 1:
        units = [SPACES["lr"].to_unit(value) for value in anew]
        assert stats.kstest(units, "uniform").pvalue > 0.01


@pytest.mark.parametrize("strategy", ["perturb", "resample"])
def test_strategies_that_do_not_learn_have_no_state(strategy):
    explore = make_explore(ExploreConfig(strategy=strategy), SPACES)
    explore.observe(0, [drawn(0), drawn(1)], np.zeros(2), np.ones(2))
    assert explore.state() == []
    explore.restore([])
    random = np.random.default_rng(0)
    assert explore.propose(drawn(0), 1.0, 1, random) == propose(strategy, drawn(0), 0)
