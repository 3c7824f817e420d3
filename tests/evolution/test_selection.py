"""Selection against closed forms and what must hold for any fitness."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from evorl.config import parse_config
from evorl.errors import ConfigError, RunError
from evorl.evolution.selection import (
    MEAN,
    Fitness,
    Tournament,
    Truncation,
    iqm,
    mean,
    median,
    require_lead,
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
    st.builds(Tournament, size=st.integers(1, 5), elitism=st.booleans()),
    st.builds(Truncation, fraction=st.floats(0.01, 0.5)),
)


@given(populations, rules, seeds)
def test_what_holds_for_every_selection(fitness, rule, seed):
    before = fitness.copy()
    parents = rule.parents(fitness, np.random.default_rng(seed))
    again = rule.parents(fitness, np.random.default_rng(seed))
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
    assert (
        Tournament(size=size, elitism=True).parents(fitness, np.random.default_rng(seed))[best]
        == best
    )


@given(populations, st.floats(0.01, 0.5), seeds)
def test_truncation_replaces_the_worst_by_children_of_the_best(fitness, fraction, seed):
    parents = Truncation(fraction=fraction).parents(fitness, np.random.default_rng(seed))
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
        wins += np.bincount(
            Tournament(size=size, elitism=False).parents(fitness, random), minlength=count
        )
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
        wins += np.bincount(
            Tournament(size=size, elitism=True).parents(fitness, random), minlength=count
        )
    wins[-1] -= runs
    n, r = count - dead, np.arange(1, count - dead + 1)
    chances = ((n - r + 1) ** size - (n - r) ** size) / n**size
    assert wins[:dead].sum() == 0
    assert stats.chisquare(wins[dead:][::-1], runs * (count - 1) * chances).pvalue > 0.01


def test_without_elitism_the_best_may_vanish():
    fitness, random = np.arange(6.0), np.random.default_rng(0)
    drawn = [Tournament(size=2, elitism=False).parents(fitness, random) for _ in range(2000)]
    gone = np.mean([parents[5] != 5 for parents in drawn])
    assert gone == pytest.approx((25 / 36) ** 6, abs=0.03)  # it is in none of six tournaments


def test_surplus_winners_fill_the_places_of_those_that_won_nothing():
    fitness, random = np.arange(10.0), np.random.default_rng(0)
    for _ in range(200):
        before = random.bit_generator.state
        parents = Tournament(size=3, elitism=True).parents(fitness, random)
        random.bit_generator.state = before
        winners = [*(9 - random.integers(10, size=(9, 3)).min(axis=1)), 9]
        assert sorted(parents) == sorted(winners)
        stayed = np.flatnonzero(parents == np.arange(10))
        assert set(stayed) == set(winners)


def test_truncation_draws_parents_evenly():
    fitness, random = np.arange(12.0), np.random.default_rng(0)
    children = np.concatenate(
        [Truncation(fraction=0.25).parents(fitness, random)[:3] for _ in range(4000)]
    )
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
    parents = Truncation(fraction=0.25).parents(np.array(fitness), np.random.default_rng(0))
    assert parents.tolist() == expected


@pytest.mark.parametrize(("count", "fraction", "replaced"), [(100, 0.29, 29), (30, 0.1, 3)])
def test_a_share_is_not_lost_to_rounding(count, fraction, replaced):
    parents = Truncation(fraction=fraction).parents(
        np.arange(float(count)), np.random.default_rng(0)
    )
    assert (parents != np.arange(count)).sum() == replaced


def test_fitness_of_the_dead():
    returns = np.array([[[1.0, 3], [4, 4], [0, 0], [np.nan, 1]], [[2, 2], [6, 6], [0, 0], [1, 1]]])
    returns[0, 2] = DEAD
    assert MEAN(returns).tolist() == [2, 5, DEAD, DEAD]
    assert Fitness(median)(returns).tolist() == [2, 5, DEAD, DEAD]
    assert Fitness(median)(returns[1]).tolist() == [2, 6, 0, 1]


def test_nobody_alive():
    select = Truncation()
    with pytest.raises(ValueError, match="no agent is alive"):
        select(np.ones((1, 3, 2)), np.zeros(3, dtype=bool), np.random.default_rng(0))


def replaced_of_equals(min_gap, runs=3000, episodes=10):
    """How often one of two equally good agents is replaced, whichever ranks lower."""
    random = np.random.default_rng(0)
    select = Truncation(fraction=0.5, min_gap=min_gap)
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
        replaced = [require_lead(parents, one, min_gap)[0] == 1 for one in returns]
        assert np.mean(replaced) == pytest.approx(expected, abs=0.03)


def test_pairing_finds_a_small_lead_under_a_large_effect_of_the_episode():
    random = np.random.default_rng(0)
    episode = 100 * random.normal(size=(3, 1, 10))
    returns = episode + random.normal(size=(3, 2, 10)) + np.array([0, 2])[:, None]
    parents = np.array([1, 1])
    assert require_lead(parents, returns, 3).tolist() == [1, 1]
    unpaired = returns.copy()
    unpaired[:, 0] = returns[::-1, 0, ::-1]
    assert require_lead(parents, unpaired, 3).tolist() == [0, 1]


def test_the_lead_against_its_standard_error_by_hand():
    returns = np.array([[[0.0, 0, 0, 0], [1, 2, 3, 4]]])
    error = stats.sem([1, 2, 3, 4])
    parents = np.array([1, 1])
    assert require_lead(parents, returns, 2.5 / error * 0.999).tolist() == [1, 1]
    assert require_lead(parents, returns, 2.5 / error * 1.001).tolist() == [0, 1]
    assert require_lead(parents, -returns, 0.001).tolist() == [0, 1]
    assert require_lead(parents, -returns, 0).tolist() == [1, 1]


@pytest.mark.parametrize(("lead", "expected"), [(1.0, [1, 1]), (0.0, [0, 1]), (-1.0, [0, 1])])
@pytest.mark.parametrize("episodes", [1, 4])
def test_without_a_standard_error_any_lead_will_do(lead, expected, episodes):
    returns = np.zeros((1, 2, episodes))
    returns[:, 1] = lead
    assert require_lead(np.array([1, 1]), returns, 2).tolist() == expected


def test_the_dead_are_replaced_whatever_the_gap():
    returns = np.random.default_rng(0).normal(size=(2, 4, 5))
    returns[1, 2, 3] = np.nan
    alive = np.array([True, False, True, True])  # agent 1 died, with returns like any other's
    for select in (Truncation(min_gap=100), Tournament(min_gap=100)):
        parents = select(returns, alive, np.random.default_rng(0))
        assert set(parents[[1, 2]]) <= {0, 3}
        assert parents[[0, 3]].tolist() == [0, 3]


@given(st.integers(1, 8), st.integers(1, 3), st.integers(1, 4), st.floats(0, 5), rules, seeds)
def test_holding_only_undoes_replacements(count, evaluations, episodes, min_gap, rule, seed):
    random = np.random.default_rng(seed)
    returns = random.integers(0, 4, size=(evaluations, count, episodes)).astype(float)
    fitness = MEAN(returns)
    parents = rule.parents(fitness, random)
    held = require_lead(parents, returns, min_gap)
    assert ((held == parents) | (held == np.arange(count))).all()
    if min_gap:
        replaced = held != np.arange(count)
        assert (fitness[held[replaced]] > fitness[replaced]).all()


def test_the_draws_are_those_of_the_first_release():
    """Runs must not change: parents by a known generator."""
    fitness = np.array([3.0, DEAD, 5, 1, 4, 2, 5, 0])
    random = np.random.default_rng(7)
    assert Truncation().parents(fitness, random).tolist() == [0, 6, 2, 3, 4, 5, 6, 6]
    assert Tournament(size=3).parents(fitness, random).tolist() == [2, 2, 2, 2, 4, 5, 6, 2]


def test_a_fitness_other_than_the_mean_decides():
    returns = np.array([[[0.0, 0, 9, 0, 0], [1, 1, 1, 1, 1]]])
    alive, random = np.ones(2, dtype=bool), np.random.default_rng(0)
    select = Truncation(min_gap=0)
    assert select(returns, alive, random).tolist() == [0, 0]
    assert select(returns, alive, random, Fitness(median)).tolist() == [1, 1]


def test_fitness_functions():
    returns = np.array([4.0, 1, 100, 3, 2, -50, 5, 6])
    assert mean(returns) == returns.mean()
    assert median(returns) == 3.5
    assert iqm(returns) == 3.5  # of 2, 3, 4, 5
    assert iqm(returns[:1]) == 4


def test_fitness_of_several_evaluations_is_of_all_their_episodes():
    returns = np.arange(24.0).reshape(2, 3, 4)
    returns[0, 1, 3] = DEAD
    found = Fitness(lambda own: own.max() if len(own) == 8 else 0)(returns)
    assert found.tolist() == [15, DEAD, 23]


def jackknifed(own):
    """The mean, by another name: it has no closed form."""
    return own.mean()


@pytest.mark.parametrize("episodes", [1, 2, 3, 10])
def test_the_jackknife_of_the_mean_is_its_standard_error(episodes):
    returns = np.random.default_rng(1).normal(size=(4, episodes)) * 100
    returns[2, 0] = DEAD
    other = Fitness(jackknifed)
    np.testing.assert_allclose(other.errors(returns), MEAN.errors(returns), rtol=1e-12)
    for ahead, behind in ((returns.T[:, [0, 3]], returns.T[:, [1, 0]]), (returns[0], returns[1])):
        for mine, theirs in zip(other.lead(ahead, behind), MEAN.lead(ahead, behind), strict=True):
            assert mine.shape == theirs.shape
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_the_jackknife_of_the_lowest_return_by_hand():
    lowest = Fitness(np.min, "lowest")
    returns = np.array([[4.0, 1, 3], [0, 0, 0]])
    assert lowest(returns).tolist() == [1, 0]
    error = math.sqrt(2 * np.var([1, 3, 1]))  # without the first, the second, the third
    assert lowest.errors(returns) == pytest.approx([error, 0])
    lead, its_error = lowest.lead(*returns)
    assert (lead, its_error) == (1, pytest.approx(error))


def test_who_leads_is_a_matter_of_the_fitness():
    """One agent has the higher mean, the other the higher minimum; both lead clearly."""
    random = np.random.default_rng(0)
    bold = np.where(np.arange(20) % 2, 300.0, 10) + random.normal(size=20)
    returns = np.stack([bold, 100 + random.normal(size=20)])[None]
    select, alive = Truncation(fraction=0.5, min_gap=1.0), np.ones(2, dtype=bool)
    assert select(returns, alive, random).tolist() == [0, 0]
    assert select(returns, alive, random, Fitness(np.min, "lowest")).tolist() == [1, 1]


def test_the_median_holds_agents_that_are_equal_in_truth():
    """Its jackknife is rough, but not wrong by an order of magnitude."""
    random, alive = np.random.default_rng(3), np.ones(2, dtype=bool)
    select, fitness = Truncation(fraction=0.5, min_gap=1.0), Fitness(median)
    found = [
        select(random.normal(size=(1, 2, 10)), alive, random, fitness).tolist() for _ in range(400)
    ]
    assert 0.1 < np.mean([parents != [0, 1] for parents in found]) < 0.6


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda own: own[9], "raised IndexError: index 9 is out of bounds for axis 0 with size 2"),
        (lambda own: None, "raised TypeError: float"),
        (lambda own: own.sum() * np.nan, "must give a finite number, got nan"),
        (lambda own: np.inf, "must give a finite number, got inf"),
    ],
)
def test_a_fitness_that_is_none(function, message):
    with pytest.raises(RunError) as caught:
        Fitness(function, "mine:wrong")(np.ones((2, 2)))
    assert str(caught.value).startswith(f"evaluation.fitness: 'mine:wrong' {message}")
    assert str(caught.value).isprintable()
    if "IndexError" in message:
        line = function.__code__.co_firstlineno
        assert str(caught.value).endswith(f"(test_selection.py, line {line})")


def test_a_fitness_cannot_change_the_returns():
    def sorting(own):
        own.sort()
        return own[0]

    returns = np.array([[3.0, 1]])
    assert Fitness(sorting)(returns).tolist() == [1]
    assert returns.tolist() == [[3, 1]]


MODULE = """
import numpy as np
from evorl.config import option
from evorl.evolution.selection import Selection

class Best(Selection):
    spare: int = option(1, "Agents that stay in any case.", ge=0)

    def parents(self, fitness, random):
        parents = np.arange(len(fitness))
        parents[self.spare:] = fitness.argmax()
        return parents
"""


def test_a_selection_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_selection.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"kind": "own_selection:Best", "spare": 2, "min_gap": 0.0}
    config = parse_config({"env": {"id": "X"}, "evolution": {"selection": own}})
    select = config.evolution.selection
    assert config.evolution.selection.model_dump()["kind"] == "own_selection:Best"
    returns = np.array([[[1.0], [2], [3], [0]]])
    random = np.random.default_rng(0)
    assert select(returns, np.ones(4, dtype=bool), random).tolist() == [0, 1, 2, 2]
    with pytest.raises(ConfigError, match="spare: must be at least 0, got -1"):
        parse_config(
            {"env": {"id": "X"}}, [f"evolution.selection={{kind: {own['kind']}, spare: -1}}"]
        )


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([0, 1], "must give 3 parents, of the living, [0, 1], got [0, 1]"),
        ([0, 1, 0.5], "must give 3 parents, of the living, [0, 1], got [0.0, 1.0, 0.5]"),
        ([0, 1, 3], "must give 3 parents, of the living, [0, 1], got [0, 1, 3]"),
        ([0, 2, 0], "must give 3 parents, of the living, [0, 1], got [0, 2, 0]"),
        ([0, -1, 0], "must give 3 parents, of the living, [0, 1], got [0, -1, 0]"),
        ("none", "raised ZeroDivisionError: division by zero (test_selection.py, line "),
    ],
)
def test_a_selection_that_cannot_be(returned, message):
    class Wrong(Truncation):
        def parents(self, fitness, random):
            return 1 / 0 if returned == "none" else np.array(returned)

    alive = np.array([True, True, False])
    with pytest.raises(RunError) as caught:
        Wrong(kind="mine:Wrong")(np.ones((1, 3, 2)), alive, np.random.default_rng(0))
    assert str(caught.value).startswith(f"evolution.selection: 'mine:Wrong' {message}")


def test_a_selection_need_not_think_of_the_dead():
    class Nobody(Truncation):
        def parents(self, fitness, random):
            return np.arange(len(fitness))

    returns = np.array([[[1.0, 2], [3, 4], [9, 9], [9, 9]]])
    alive = np.array([True, True, False, False])
    assert Nobody()(returns, alive, np.random.default_rng(0)).tolist() == [0, 1, 1, 1]


NONE = np.nan  # no episode


def ragged(*rows):
    """Returns of one evaluation [1, P, E]."""
    widest = max(map(len, rows))
    return np.array([[[*row, *[NONE] * (widest - len(row))] for row in rows]])


def test_agents_may_have_different_numbers_of_episodes():
    returns = ragged([1.0, 2, 3, 6], [4.0], [], [5.0, DEAD])
    for function, expected in ((mean, 3), (median, 2.5)):
        fitness = Fitness(function, paired=False)
        np.testing.assert_array_equal(fitness(returns), [expected, 4, NONE, DEAD])
        np.testing.assert_array_equal(
            np.isnan(fitness.errors(returns[0])), [False, True, True, True]
        )
    both = np.concatenate([returns, ragged([9.0, 9, 9, 0], [], [2.0], [1.0])])
    np.testing.assert_array_equal(Fitness(paired=False)(both), [39 / 8, 4, 2, DEAD])


def test_without_common_episodes_a_lead_is_judged_by_both_errors():
    random = np.random.default_rng(5)
    one, other = random.normal(3, 2, 12), random.normal(1, 5, 30)
    error = np.hypot(one.std(ddof=1) / np.sqrt(12), other.std(ddof=1) / np.sqrt(30))
    gap = (one.mean() - other.mean()) / error
    returns, alive = ragged(one, other), np.ones(2, dtype=bool)
    fitness = Fitness(paired=False)
    for min_gap, expected in ((gap - 1e-6, [0, 0]), (gap + 1e-6, [0, 1])):
        select = Truncation(fraction=0.5, min_gap=min_gap)
        assert select(returns, alive, random, fitness).tolist() == expected
    # the error of a single episode is not known, so no lead over it is clear
    select = Truncation(fraction=0.5, min_gap=0.001)
    assert select(ragged(one, [-99.0]), alive, random, fitness).tolist() == [0, 1]


@pytest.mark.parametrize("select", [Truncation(fraction=0.5, min_gap=0), Tournament(min_gap=0)])
def test_an_agent_without_an_episode_neither_replaces_nor_is_replaced(select):
    returns = ragged([1.0, 1], [], [5.0, 5], [DEAD], [], [9.0, 9])
    for seed in range(20):
        alive, random = np.ones(6, dtype=bool), np.random.default_rng(seed)
        parents = select(returns, alive, random, Fitness(paired=False))
        assert parents[[1, 4]].tolist() == [1, 4]
        assert not set(parents[[0, 2, 3, 5]]) & {1, 3, 4}
        assert parents[5] == 5
