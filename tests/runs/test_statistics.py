"""Figures with their intervals, against closed forms, brute force and how often they are right."""

import itertools
import math
import warnings

import numpy as np
import pytest
from scipy import stats

from evorl.runs import compare
from evorl.runs.compare import interquartile_mean, probability_of_improvement, summarise_group


def random(seed=0):
    return np.random.default_rng(seed)


def by_hand(samples):
    """The mean of what is left when the lowest and the highest quarter are gone."""
    ordered = np.sort(samples)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut].mean()


def wins(x, y):
    """P(X > Y) + ½ P(X = Y), pair by pair."""
    pairs = list(itertools.product(x, y))
    return sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8, 100, 101])
def test_interquartile_mean(count):
    samples = random(count).normal(size=count) * 50
    assert interquartile_mean(samples) == pytest.approx(by_hand(samples))


def test_interquartile_mean_ignores_outliers_on_either_side():
    samples = np.arange(8.0)
    spoiled = np.array([-1e9, 1, 2, 3, 4, 5, 6, 1e9])
    assert interquartile_mean(samples) == interquartile_mean(spoiled) == 3.5


def test_summarise():
    scores = {"a": random(1).exponential(100, size=12), "b": [1.0, 2.0, 3.0]}
    found = {name: summarise_group(samples) for name, samples in scores.items()}
    for name, samples in scores.items():
        assert found[name].runs == len(samples)
        for got, statistic in ((found[name].mean, np.mean), (found[name].iqm, by_hand)):
            assert got.value == pytest.approx(statistic(np.asarray(samples)))
            drawn = random(2).choice(samples, size=(20_000, len(samples)))
            low, high = np.percentile([statistic(row) for row in drawn], [2.5, 97.5])
            assert got.low == pytest.approx(low, abs=0.05 * (high - low))
            assert got.high == pytest.approx(high, abs=0.05 * (high - low))


@pytest.mark.parametrize("count", [2, 3, 7, 100])
def test_intervals_are_those_of_scipy_to_the_last_bit(count):
    """Which takes a second to import: longer than most lists of runs."""

    def trimmed(samples, axis):
        return stats.trim_mean(samples, 0.25, axis=axis)

    samples = random().normal(size=count) * 50
    for own, other in ((np.mean, np.mean), (interquartile_mean, trimmed)):
        found = compare.interval([samples], random(3), own)
        how = {"n_resamples": compare.RESAMPLES, "batch": compare.BATCH, "method": "percentile"}
        expected = stats.bootstrap((samples,), other, rng=random(3), **how).confidence_interval
        assert tuple(found)[1:] == pytest.approx(tuple(expected), rel=1e-15)


def test_the_mean_of_two_has_a_known_interval():
    """Of the resamples a quarter are (a, a) and a quarter (b, b)."""
    found = summarise_group([10.0, 20.0])
    assert tuple(found.mean) == (15.0, 10.0, 20.0)


def test_summaries_do_not_depend_on_their_company():
    scores = random().normal(size=9)
    alone = summarise_group(scores)
    summarise_group(scores + 1)
    assert summarise_group(scores) == alone


def test_one_run_has_no_interval():
    found = summarise_group([7.5])
    for estimate in (found.mean, found.iqm):
        assert estimate.value == 7.5
        assert not estimate.known
        assert math.isnan(estimate.high)


def test_equal_scores_have_an_interval_of_width_zero():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = summarise_group([500.0] * 5)
    assert tuple(found.mean) == tuple(found.iqm) == (500.0, 500.0, 500.0)


@pytest.mark.parametrize(
    ("x", "y", "value"),
    [
        ([2.0, 3.0], [0.0, 1.0], 1.0),
        ([0.0, 1.0], [2.0, 3.0], 0.0),
        ([5.0, 5.0], [5.0, 5.0, 5.0], 0.5),
        ([1.0, 3.0], [2.0, 2.0], 0.5),
        ([1.0, 2.0], [1.0, 2.0], 0.5),
        ([2.0, 3.0, 4.0], [1.0, 3.0], (1 + 0 + 1 + 0.5 + 1 + 1) / 6),
    ],
)
def test_probability_of_improvement(x, y, value):
    found = probability_of_improvement(x, y)
    assert found.value == pytest.approx(value)
    assert found.low <= found.value <= found.high


def test_probability_of_improvement_is_mann_whitneys_u():
    x, y = random(0).integers(0, 9, 15).astype(float), random(1).integers(2, 11, 11).astype(float)
    u = stats.mannwhitneyu(x, y).statistic
    assert probability_of_improvement(x, y).value == pytest.approx(u / (15 * 11))
    back = probability_of_improvement(y, x).value
    assert back == pytest.approx(1 - u / (15 * 11))


def test_its_interval_against_all_resamples():
    """Three and three: all 27 x 27 resamples, which are equally probable."""
    x, y = [1.0, 4.0, 6.0], [2.0, 3.0, 5.0]
    every = [
        wins(a, b) for a in itertools.product(x, repeat=3) for b in itertools.product(y, repeat=3)
    ]
    found = probability_of_improvement(x, y)
    low, high = np.percentile(every, [2.5, 97.5])
    assert found.value == pytest.approx(wins(x, y))
    assert found.low == pytest.approx(low, abs=1 / 9)  # ninths are all there is
    assert found.high == pytest.approx(high, abs=1 / 9)


def test_a_single_run_leaves_no_interval():
    found = probability_of_improvement([1.0], [0.0, 2.0])
    assert found.value == pytest.approx(0.5)
    assert not found.known


def test_intervals_cover_the_truth_about_as_often_as_they_say(monkeypatch):
    monkeypatch.setattr(compare, "RESAMPLES", 400)
    stream, trials, covered = random(0), 300, 0
    truth = stats.norm.cdf(0.5 / math.sqrt(2))  # of X > Y, for two normals half a deviation apart
    for _ in range(trials):
        x, y = stream.normal(0.5, 1, 25), stream.normal(0, 1, 25)
        found = probability_of_improvement(x, y)
        covered += found.low <= truth <= found.high
    # 95 % nominal; the percentile method loses a little, and 300 trials have an error of 1.3 %
    assert 0.90 < covered / trials < 0.985


def test_intervals_over_runs_cover_the_truth(monkeypatch):
    monkeypatch.setattr(compare, "RESAMPLES", 400)
    stream, trials, covered = random(0), 300, np.zeros(2)
    for _ in range(trials):
        found = summarise_group(stream.normal(10, 3, size=30))
        covered += [part.low <= 10 <= part.high for part in (found.mean, found.iqm)]
    assert ((covered / trials > 0.90) & (covered / trials < 0.985)).all(), covered / trials
