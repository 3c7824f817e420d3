"""The reported figures against plain numpy."""

import warnings

import numpy as np
import pytest

from evorl.runs import compare
from evorl.training.score import estimate


def by_hand(returns):
    """The mean of what is left when the lowest and the highest quarter are gone."""
    ordered = np.sort(returns)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut].mean()


def resampled(returns, statistic, random, count=20_000):
    drawn = random.choice(returns, size=(count, len(returns)))
    return np.percentile([statistic(row) for row in drawn], [2.5, 97.5])


def test_values_and_intervals():
    returns = np.random.default_rng(0).exponential(100, size=40)
    found = estimate(returns, np.random.default_rng(1), steps=7)
    assert (found.episodes, found.steps) == (40, 7)
    for got, statistic in ((found.mean, np.mean), (found.iqm, by_hand)):
        assert got.value == pytest.approx(statistic(returns))
        low, high = resampled(returns, statistic, np.random.default_rng(2))
        width = high - low  # an end's own Monte-Carlo error is about 1 % of the width
        assert got.low == pytest.approx(low, abs=0.05 * width)
        assert got.high == pytest.approx(high, abs=0.05 * width)
        assert got.low < got.value < got.high


def test_the_same_stream_gives_the_same_interval():
    returns = np.random.default_rng(0).normal(size=20)
    same = [estimate(returns, np.random.default_rng(5)) for _ in range(2)]
    other = estimate(returns, np.random.default_rng(6))
    assert same[0] == same[1] != other


@pytest.mark.parametrize("count", [2, 100])
def test_constant_returns_have_an_interval_of_width_zero(count):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = estimate(np.full(count, 500.0), np.random.default_rng(0))
    assert tuple(found.mean) == tuple(found.iqm) == (500.0, 500.0, 500.0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(compare, "RESAMPLES", 400)
    random = np.random.default_rng(0)
    trials, covered = 300, np.zeros(2)
    for _ in range(trials):
        found = estimate(random.normal(10, 3, size=100), random)
        covered += [part.low <= 10 <= part.high for part in (found.mean, found.iqm)]
    # 95 % nominal; the percentile method loses a little, and 300 trials have an error of 1.3 %
    assert ((covered / trials > 0.90) & (covered / trials < 0.985)).all(), covered / trials
