"""Selection against closed forms and what must hold for any fitness."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evorl.config import SelectionConfig
from evorl.evolution.selection import (
    Selection,
    hold_noise,
    mean_fitness,
    tournament,
    truncation,
)

DEAD = -np.inf
values = st.one_of(
    st.integers(-3, 3).map(float),  # ties
    st.floats(-1e6, 1e6),
    st.just(DEAD),
)
populations = (
    st.lists(values, min_size=1, max_size=12).filter(lambda f: max(f) > DEAD).map(np.array)
)
seeds = st.integers(0, 2**32 - 1)
rules = st.one_of(
    st.tuples(st.just(tournament), st.tuples(st.integers(1, 5), st.booleans())),
    st.tuples(st.just(truncation), st.tuples(st.floats(0.01, 0.5))),
)


@given(populations, rules, seeds)
def test_what_holds_for_every_selection(fitness, rule, seed):
    select, arguments = rule
    before = fitness.copy()
    parents = select(fitness, np.random.default_rng(seed), *arguments)
    again = select(fitness, np.random.default_rng(seed), *arguments)
    np.testing.assert_array_equal(parents, again)
    np.testing.assert_array_equal(fitness, before)
    assert parents.shape == fitness.shape
    assert parents.dtype == np.int64
    assert ((parents >= 0) & (parents < len(fitness))).all()
    assert np.isfinite(fitness[parents]).all()  # the dead are replaced, and are no parents
    assert (parents[parents] == parents).all()  # who has a child also stays


@given(populations, st.integers(1, 5), seeds)
def test_elitism_keeps_the_best_in_its_place(fitness, size, seed):
    best = int(fitness.argmax())  # the lowest index of equals
    assert tournament(fitness, np.random.default_rng(seed), size, True)[best] == best


@given(populations, st.floats(0.01, 0.5), seeds)
def test_truncation_replaces_the_worst_by_children_of_the_best(fitness, fraction, seed):
    parents = truncation(fitness, np.random.default_rng(seed), fraction)
    count, places = len(fitness), np.arange(len(fitness))
    share = min(max(1, int(fraction * count + 1e-9)), count // 2)
    replaced = places[parents != places]
    dead = places[~np.isfinite(fitness)]
    assert len(replaced) == max(share, len(dead))
    assert set(dead) <= set(replaced)
    stay = np.setdiff1d(places, replaced)
    if len(replaced):
        assert fitness[replaced].max() <= fitness[stay].min()
        assert np.sum(fitness > fitness[parents[replaced]].min()) < max(share, 1)


def test_tournaments_follow_their_closed_form():
    """P(rank r wins) = ((n - r + 1)^k - (n - r)^k) / n^k, rank 1 being the best."""
    count, size, runs = 8, 3, 4000
    random = np.random.default_rng(0)
    fitness = random.permutation(np.arange(float(count)))
    ranked = np.argsort(-fitness)
    wins = np.zeros(count)
    for _ in range(runs):
        wins += np.bincount(tournament(fitness, random, size, False), minlength=count)
    n, r = count, np.arange(1, count + 1)
    chances = ((n - r + 1) ** size - (n - r) ** size) / n**size
    assert chances.sum() == pytest.approx(1)
    assert stats.chisquare(wins[ranked], runs * count * chances).pvalue > 0.01


def test_tournaments_are_among_the_living_and_the_elite_has_one_more_place():
    count, dead, size, runs = 8, 3, 2, 4000
    random = np.random.default_rng(1)
    fitness = np.where(np.arange(count) < dead, DEAD, np.arange(float(count)))
    wins = np.zeros(count)
    for _ in range(runs):
        wins += np.bincount(tournament(fitness, random, size, True), minlength=count)
    wins[-1] -= runs
    n, r = count - dead, np.arange(1, count - dead + 1)
    chances = ((n - r + 1) ** size - (n - r) ** size) / n**size
    assert wins[:dead].sum() == 0
    assert stats.chisquare(wins[dead:][::-1], runs * (count - 1) * chances).pvalue > 0.01


def test_without_elitism_the_best_may_vanish():
    fitness, random = np.arange(6.0), np.random.default_rng(0)
    drawn = [tournament(fitness, random, 2, False) for _ in range(2000)]
    gone = np.mean([parents[5] != 5 for parents in drawn])
    assert gone == pytest.approx((25 / 36) ** 6, abs=0.03)  # it is in none of six tournaments


def test_surplus_winners_fill_the_places_of_those_that_won_nothing():
    fitness, random = np.arange(10.0), np.random.default_rng(0)
    for _ in range(200):
        before = random.bit_generator.state
        parents = tournament(fitness, random, 3, True)
        random.bit_generator.state = before
        winners = [*(9 - random.integers(10, size=(9, 3)).min(axis=1)), 9]
        assert sorted(parents) == sorted(winners)
        stayed = np.flatnonzero(parents == np.arange(10))
        assert set(stayed) == set(winners)


def test_truncation_draws_parents_evenly():
    fitness, random = np.arange(12.0), np.random.default_rng(0)
    children = np.concatenate([truncation(fitness, random, 0.25)[:3] for _ in range(4000)])
    counts = np.bincount(children, minlength=12)
    assert counts[:9].sum() == 0
    assert stats.chisquare(counts[9:]).pvalue > 0.01


@pytest.mark.parametrize(
    ("fitness", "expected"),
    [
        ([1.0], [0]),
        ([1.0, 2.0], [1, 1]),
        ([2.0, 2.0], [0, 0]),  # equal: the lowest index ranks first
        ([1.0, 3.0, 2.0], [1, 1, 2]),
        ([DEAD, DEAD, 2.0], [2, 2, 2]),
        ([DEAD, DEAD, DEAD, DEAD, 0.0, 1.0], [5, 5, 5, 5, 4, 5]),
    ],
)
def test_truncation_of_the_smallest_populations(fitness, expected):
    parents = truncation(np.array(fitness), np.random.default_rng(0), 0.25)
    assert parents.tolist() == expected


@pytest.mark.parametrize(("count", "fraction", "replaced"), [(100, 0.29, 29), (30, 0.1, 3)])
def test_a_share_is_not_lost_to_rounding(count, fraction, replaced):
    parents = truncation(np.arange(float(count)), np.random.default_rng(0), fraction)
    assert (parents != np.arange(count)).sum() == replaced


def test_mean_fitness():
    returns = np.array([[[1.0, 3], [4, 4], [0, 0], [np.nan, 1]], [[2, 2], [6, 6], [0, 0], [1, 1]]])
    alive = np.array([True, True, False, True])
    assert mean_fitness(returns, alive).tolist() == [2, 5, DEAD, DEAD]


def test_nobody_alive():
    select = Selection(SelectionConfig())
    with pytest.raises(ValueError, match="no agent is alive"):
        select(np.ones((1, 3, 2)), np.zeros(3, dtype=bool), np.random.default_rng(0))


def replaced_of_equals(min_gap, runs=3000, episodes=10):
    """How often one of two equally good agents is replaced, whichever ranks lower."""
    random = np.random.default_rng(0)
    select = Selection(SelectionConfig(kind="truncation", fraction=0.5, min_gap=min_gap))
    alive = np.ones(2, dtype=bool)
    drawn = [select(random.normal(size=(1, 2, episodes)), alive, random) for _ in range(runs)]
    return np.mean([parents.tolist() != [0, 1] for parents in drawn])


def test_min_gap_holds_agents_that_are_equal_in_truth():
    assert replaced_of_equals(0) == 1
    two_sided = 2 * stats.t.sf(2, df=9)  # a lead of 2 standard errors, by either of them
    assert replaced_of_equals(2) == pytest.approx(two_sided, abs=0.02)


def test_one_of_two_equals_is_replaced_half_the_time_by_luck_alone():
    random, parents = np.random.default_rng(0), np.array([1, 1])  # always the same challenger
    returns = random.normal(size=(2000, 1, 2, 10))
    for min_gap, expected in ((1e-9, 0.5), (2, stats.t.sf(2, df=9))):
        replaced = [hold_noise(parents, one, min_gap)[0] == 1 for one in returns]
        assert np.mean(replaced) == pytest.approx(expected, abs=0.03)


def test_pairing_finds_a_small_lead_under_a_large_effect_of_the_episode():
    random = np.random.default_rng(0)
    episode = 100 * random.normal(size=(3, 1, 10))
    returns = episode + random.normal(size=(3, 2, 10)) + np.array([0, 2])[:, None]
    parents = np.array([1, 1])
    assert hold_noise(parents, returns, 3).tolist() == [1, 1]
    unpaired = returns.copy()
    unpaired[:, 0] = returns[::-1, 0, ::-1]
    assert hold_noise(parents, unpaired, 3).tolist() == [0, 1]


def test_the_lead_against_its_standard_error_by_hand():
    returns = np.array([[[0.0, 0, 0, 0], [1, 2, 3, 4]]])
    error = stats.sem([1, 2, 3, 4])
    parents = np.array([1, 1])
    assert hold_noise(parents, returns, 2.5 / error * 0.999).tolist() == [1, 1]
    assert hold_noise(parents, returns, 2.5 / error * 1.001).tolist() == [0, 1]
    assert hold_noise(parents, -returns, 0.001).tolist() == [0, 1]
    assert hold_noise(parents, -returns, 0).tolist() == [1, 1]


@pytest.mark.parametrize(("lead", "expected"), [(1.0, [1, 1]), (0.0, [0, 1]), (-1.0, [0, 1])])
@pytest.mark.parametrize("episodes", [1, 4])
def test_without_a_standard_error_any_lead_will_do(lead, expected, episodes):
    returns = np.zeros((1, 2, episodes))
    returns[:, 1] = lead
    assert hold_noise(np.array([1, 1]), returns, 2).tolist() == expected


def test_the_dead_are_replaced_whatever_the_gap():
    returns = np.random.default_rng(0).normal(size=(2, 4, 5))
    returns[1, 2, 3] = np.nan
    alive = np.array([True, False, True, True])  # agent 1 died, with returns like any other's
    for kind in ("truncation", "tournament"):
        select = Selection(SelectionConfig(kind=kind, min_gap=100))
        parents = select(returns, alive, np.random.default_rng(0))
        assert set(parents[[1, 2]]) <= {0, 3}
        assert parents[[0, 3]].tolist() == [0, 3]


@given(st.integers(1, 8), st.integers(1, 3), st.integers(1, 4), st.floats(0, 5), rules, seeds)
def test_holding_only_undoes_replacements(count, evaluations, episodes, min_gap, rule, seed):
    random = np.random.default_rng(seed)
    returns = random.integers(0, 4, size=(evaluations, count, episodes)).astype(float)
    fitness = mean_fitness(returns, np.ones(count, dtype=bool))
    select, arguments = rule
    parents = select(fitness, random, *arguments)
    held = hold_noise(parents, returns, min_gap)
    assert ((held == parents) | (held == np.arange(count))).all()
    if min_gap:
        replaced = held != np.arange(count)
        assert (fitness[held[replaced]] > fitness[replaced]).all()
