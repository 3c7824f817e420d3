"""A random forest of regression trees, and what it loses where a feature is shuffled.

All trees grow at once, in a few array operations a level.

Legend: T trees, S samples, F features, C codes of a feature, W nodes of a level.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from evorl.seeding import generator

BAGS, TREES = 40, 4  # bags, and trees of each
DEPTH, CODES = 5, 16  # splits from root to leaf; values told apart of a feature, at most
LEAST_LEAF = 4  # samples in a leaf
MOST_SAMPLES = 800  # with more some are left out
INTERVAL = (0.025, 0.975)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]
# of each level [T, W]: by which feature a node splits, and the last code that goes left
Trees = list[tuple[Ints, Ints]]
Interval = tuple[float, float, float]  # mean of the bags, and where most of them lie
Found = tuple[Interval, dict[str, Interval], int, int]


def permutation_importance(
    features: Mapping[str, Sequence[float]], target: Sequence[float], owner: Sequence[int]
) -> Found:
    """How much is explained, how much by each feature, of how many owners and samples.

    Owners are drawn, with all of their samples.
    """
    table = np.array(list(features.values()), np.float64)
    given = (table.tobytes(), np.array(target, np.float64).tobytes())
    return _importance(tuple(features), *given, np.array(owner, np.int64).tobytes())


@lru_cache(maxsize=32)  # the dashboard asks for the same again and again
def _importance(names: tuple[str, ...], table: bytes, target: bytes, owner: bytes) -> Found:
    values = np.frombuffer(table, np.float64).reshape(len(names), -1)
    y, agents = np.frombuffer(target, np.float64), np.frombuffer(owner, np.int64)
    random = generator(0, "importance")
    if len(y) > MOST_SAMPLES:
        kept = np.sort(random.permutation(len(y))[:MOST_SAMPLES])
        values, y, agents = values[:, kept], y[kept], agents[kept]
    codes = np.stack([coded(own) for own in values], 1)
    weight = _drawn(agents, random)  # [bags, S]
    trees, leaves = grow(codes, y, np.repeat(weight, TREES, 0), random)

    def error(codes_of: Codes) -> Floats:
        """Of each bag, on the samples of agents that it left out; codes_of [bags, S, F]."""
        predicted = predict(trees, leaves, np.repeat(codes_of, TREES, 0))
        squared = (predicted.reshape(BAGS, TREES, -1).mean(1) - y) ** 2
        mean: Floats = np.where(out, squared, 0).sum(1) / counts
        return mean

    out = weight == 0
    counts = np.maximum(out.sum(1), 1)
    known = np.broadcast_to(codes, (BAGS, *codes.shape))
    variance = max(float(y.var()), 1e-12)
    plain = error(known)
    found = {}
    for k, name in enumerate(names):
        shuffled = known.copy()
        for bag, there in enumerate(out):
            own = np.flatnonzero(there)
            shuffled[bag, own, k] = codes[random.permutation(own), k]
        found[name] = _interval((error(shuffled) - plain) / (2 * variance))
    ordered = dict(sorted(found.items(), key=lambda one: -one[1][0]))
    explained = _interval(1 - plain / variance)
    return explained, ordered, len(np.unique(agents)), len(y)


def _drawn(agents: Ints, random: np.random.Generator) -> Floats:
    """How often each sample is in each bag, [bags, S]: as often as its agent was drawn."""
    known, place = np.unique(agents, return_inverse=True)
    chances = np.full(len(known), 1 / len(known))
    drawn = random.multinomial(len(known), chances, size=BAGS)
    weight: Floats = drawn[:, place].astype(np.float64)
    return weight


def _interval(bags: Floats) -> Interval:
    low, high = np.quantile(bags, INTERVAL)
    return float(bags.mean()), float(low), float(high)


def coded(values: Floats) -> Codes:
    """Numbers as codes in their order, as many of each as can be."""
    distinct = np.unique(values)
    if len(distinct) > CODES:
        distinct = np.unique(np.quantile(values, np.arange(CODES) / CODES, method="lower"))
    return (np.searchsorted(distinct, values, side="right") - 1).astype(np.uint8)


def grow(
    codes: Codes, y: Floats, weight: Floats, random: np.random.Generator
) -> tuple[Trees, Floats]:
    """All trees at once, level by level: [S, F] and weights [T, S] → splits, and leaves [T, W].

    Each node may split by two thirds of the features, drawn for it, where that makes the variance
    on both sides least.
    """
    (samples, features), count = codes.shape, len(weight)
    tree, node = np.arange(count)[:, None], np.zeros((count, samples), np.int64)
    allowed = max(1, -(-2 * features // 3))
    trees: Trees = []
    for level in range(DEPTH):
        width = 2**level
        place = ((tree * width + node)[:, :, None] * features + np.arange(features)) * CODES + codes
        shape = (count, width, features, CODES)
        n, total = (
            np.cumsum(_sums(place, np.broadcast_to(own[:, :, None], place.shape), shape), -1)
            for own in (weight, weight * y)
        )
        rest_n, rest = n[..., -1:] - n, total[..., -1:] - total
        with np.errstate(invalid="ignore", divide="ignore"):
            gain = total**2 / n + rest**2 / rest_n
        drawn = random.random((count, width, features)).argsort(-1) < allowed
        possible = (n >= LEAST_LEAF) & (rest_n >= LEAST_LEAF) & drawn[..., None]
        flat = np.where(possible, gain, -np.inf).reshape(count, width, -1)
        best = flat.argmax(-1)
        splits = np.take_along_axis(flat, best[..., None], -1)[..., 0] > -np.inf
        feature, last = best // CODES, np.where(splits, best % CODES, CODES)  # else all go left
        trees.append((feature, last))
        node = _next(node, feature, last, np.broadcast_to(codes, (count, *codes.shape)))
    leaf, ends = tree * 2**DEPTH + node, (count, 2**DEPTH)
    n, total = (_sums(leaf, own, ends) for own in (weight, weight * y))
    mean = (weight * y).sum(1, keepdims=True) / weight.sum(1, keepdims=True)
    return trees, np.where(n > 0, total / np.maximum(n, 1), mean)


def predict(trees: Trees, leaves: Floats, codes: Codes) -> Floats:
    """What each tree says of samples that may be others for each, [T, S, F] → [T, S]."""
    node = np.zeros(codes.shape[:2], np.int64)
    for feature, last in trees:
        node = _next(node, feature, last, codes)
    said: Floats = np.take_along_axis(leaves, node, 1)
    return said


def _next(node: Ints, feature: Ints, last: Ints, codes: Codes) -> Ints:
    """The node of the next level that each sample is in."""
    asked = np.take_along_axis(feature, node, 1)[..., None]
    code = np.take_along_axis(codes, asked, 2)[..., 0]
    return 2 * node + (code > np.take_along_axis(last, node, 1))


def _sums(place: Ints, weight: Floats, shape: tuple[int, ...]) -> Floats:
    sums: Any = np.bincount(place.ravel(), weight.ravel(), minlength=int(np.prod(shape)))
    found: Floats = sums.reshape(shape)
    return found
