"""Figures with their uncertainty: means, interquartile means, and who is better than whom.

Intervals are 95 % bootstrap intervals by the percentile method, not by BCa, which divides by zero
when all samples are alike (CartPole's 500). On a handful of samples they are too narrow.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:  # here and below: whoever reads figures need not load what computes them
    import numpy as np
    import numpy.typing as npt

RESAMPLES = 10_000
BATCH = 1000  # resamples in memory at once

Floats: TypeAlias = "npt.NDArray[np.float64]"
Statistic = Callable[..., Any]


class Estimate(NamedTuple):
    """A figure and its 95 % interval, which is NaN where a single sample says nothing about it."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)


class GroupSummary(NamedTuple):
    """The scores of a group's runs, summed up."""

    runs: int
    iqm: Estimate  # mean of the middle half: outliers on either side don't move it
    mean: Estimate


def interquartile_mean(samples: Floats, axis: int = -1) -> Floats:
    """The mean without the lowest and the highest quarter."""
    from scipy import stats

    trimmed: Floats = stats.trim_mean(samples, 0.25, axis=axis)
    return trimmed


def interval(
    samples: Sequence[Floats], random: "np.random.Generator", statistic: Statistic
) -> Estimate:
    """A statistic of one or several samples, each of which is resampled by itself."""
    from scipy import stats

    value = float(statistic(*samples, axis=-1))
    if min(len(sample) for sample in samples) < 2:
        return Estimate(value, math.nan, math.nan)
    low, high = stats.bootstrap(
        tuple(samples),
        statistic,
        n_resamples=RESAMPLES,
        batch=BATCH,
        vectorized=True,
        method="percentile",
        rng=random,
    ).confidence_interval
    return Estimate(value, float(low), float(high))


def summarise_group(scores: "npt.ArrayLike") -> GroupSummary:
    """The scores of one group, one a run; the same scores always give the same intervals."""
    import numpy as np

    from evorl.seeding import generator

    samples, random = np.asarray(scores, dtype=np.float64), generator(0, "summarise")
    iqm = interval([samples], random, interquartile_mean)
    return GroupSummary(len(samples), iqm, interval([samples], random, np.mean))


def probability_of_improvement(
    pairs: "Sequence[tuple[npt.ArrayLike, npt.ArrayLike]]", random: "np.random.Generator"
) -> Estimate:
    """P(X > Y) + ½ P(X = Y) for one run of each: 1 if every x is higher, ½ if they are alike.

    Averaged over pairs of samples, one an environment. The bootstrap is stratified: x and y of
    every pair are resampled by themselves.
    """
    import numpy as np

    def average(*samples: Floats, axis: int) -> Floats:
        """Of samples x1, y1, x2, y2, … [..., N], over the last dimension."""
        assert axis == -1
        wins = [_wins(x, y) for x, y in zip(samples[::2], samples[1::2], strict=True)]
        mean: Floats = np.mean(wins, axis=0)
        return mean

    samples = [np.asarray(sample, dtype=np.float64) for pair in pairs for sample in pair]
    return interval(samples, random, average)


def _wins(x: Floats, y: Floats) -> Floats:
    x, y = x[..., :, None], y[..., None, :]
    wins: Floats = ((x > y) + 0.5 * (x == y)).mean((-2, -1))
    return wins
