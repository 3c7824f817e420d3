"""PB2: learn from all agents which hyperparameters raise fitness, and how that changes with time.

After Parker-Holder et al. 2020, "Provably Efficient Online Hyperparameter Optimization with
Population-Based Bandits". Every agent and generation is one observation: the change of fitness. A
Gaussian process over hyperparameters, fitness before and time predicts it, and a child gets the
values with the highest upper confidence bound.

Legend: N observations, C candidates, D hyperparameters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import linalg, optimize
from scipy.linalg import lapack
from scipy.spatial.distance import cdist

from evorl.evolution.spaces import Spaces

MEMORY = 200  # latest observations that are kept: a fit costs their number cubed
ITERATIONS = 10  # of a fit
CANDIDATES = 64  # for a child's hyperparameters
ANEW = 0.25  # share of a candidate's values that are drawn again; the rest move a little
MOVE = 0.1  # standard deviation of that, of the unit cube
BEST = 8  # candidates from which there are further, smaller moves
AROUND = 12  # moves from each of them
SMALL_MOVE = 0.03
BOLDNESS = 0.5  # standard deviations that the upper confidence bound is above the mean

# The kernel's parameters, as logarithms: most likely beforehand, spread, and bounds.
# Fitness changes have mean 0 and variance 1; the cube has sides of 1.
PRIOR = {
    "variance": (0.0, 1.0, -4.0, 3.0),
    "noise": (-3.0, 1.5, -9.0, 1.0),  # the least of it also keeps the Cholesky factor safe
    "length": (-1.5, 0.7, -3.0, 2.0),  # of all hyperparameters, times sqrt(D)
    "length_before": (0.7, 1.0, -2.0, 4.0),
    "forgetting": (-3.0, 1.5, -9.0, 1.0),  # (1 - omega)^(|dt| / 2) = exp(-exp(forgetting) |dt|)
}
MODE, SPREAD, LEAST, MOST = np.array(list(PRIOR.values())).T

Floats = npt.NDArray[np.float64]
Step = Callable[[Mapping[str, float], np.random.Generator], dict[str, float]]


class Points(NamedTuple):
    """Where fitness changes were seen, or might be."""

    time: Floats  # [N] generation
    before: Floats  # [N] fitness before it
    x: Floats  # [N, D] hyperparameters in the unit cube

    def join(self, other: "Points") -> "Points":
        """These points, then the others."""
        return Points(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))

    def distances(self, other: "Points") -> Floats:
        """How far apart points are [3, N, C]: by x and fitness squared, by time absolute."""
        return np.stack(
            [
                cdist(self.x, other.x, "sqeuclidean") / self.x.shape[1],
                np.subtract.outer(self.before, other.before) ** 2,
                np.abs(np.subtract.outer(self.time, other.time)),
            ]
        )


class GaussianProcess:
    """A time-varying Gaussian process, given what was seen and its kernel's parameters."""

    def __init__(self, points: Points, changes: Floats, theta: Floats) -> None:
        self.points, self.changes, self.theta = points, changes, theta
        covariance = _covariance(points.distances(points), theta)
        covariance[np.diag_indices_from(covariance)] += math.exp(theta[1])
        self._factor = linalg.cho_factor(covariance, lower=True)
        self._weights = linalg.cho_solve(self._factor, changes)

    def predict(self, points: Points) -> tuple[Floats, Floats]:
        """Mean and standard deviation [C] of the change at other points, noise apart."""
        across = _covariance(self.points.distances(points), self.theta)  # [N, C]
        solved = linalg.solve_triangular(self._factor[0], across, lower=True)
        variance = math.exp(self.theta[0]) - (solved**2).sum(axis=0)
        return across.T @ self._weights, np.sqrt(np.maximum(variance, 1e-12))

    def pretend(self, point: Points) -> "GaussianProcess":
        """As if the predicted change had been seen: the mean stays, the uncertainty shrinks."""
        changes = np.append(self.changes, self.predict(point)[0])
        return GaussianProcess(self.points.join(point), changes, self.theta)


def fit(points: Points, changes: Floats) -> Floats:
    """The kernel's most likely parameters; always the same for the same observations."""
    distances = points.distances(points)
    found = optimize.minimize(
        _misfit,
        MODE,
        (distances, changes),
        method="L-BFGS-B",
        jac=True,
        bounds=list(zip(LEAST, MOST, strict=True)),
        options={"maxiter": ITERATIONS, "ftol": 1e-4},
    )
    theta: Floats = found.x
    return theta


def _misfit(theta: Floats, distances: Floats, changes: Floats) -> tuple[float, Floats]:
    """Negative logarithm of marginal likelihood times prior, and its gradient."""
    clean, noise = _covariance(distances, theta), math.exp(theta[1])
    noisy = clean + noise * np.eye(len(changes))
    factor, _ = lapack.dpotrf(noisy, lower=1)
    inverse, _ = lapack.dpotri(factor, lower=1)  # its upper triangle is zero
    inverse += np.tril(inverse, -1).T
    weights = inverse @ changes
    # d(misfit) = 1/2 sum((inverse - weights weights^T) * d(covariance))
    slope = 0.5 * (inverse - np.outer(weights, weights))
    shared = slope * clean
    by_distance = -np.tensordot(distances, shared) * _rates(theta) * [-2, -2, 1]
    off = (theta - MODE) / SPREAD
    gradient = np.array([shared.sum(), noise * np.trace(slope), *by_distance]) + off / SPREAD
    misfit = 0.5 * changes @ weights + np.log(np.diag(factor)).sum() + 0.5 * off @ off
    return float(misfit), gradient


def _covariance(distances: Floats, theta: Floats) -> Floats:
    """Covariance [N, C] of the changes, without noise."""
    covariance: Floats = np.exp(theta[0] - np.tensordot(_rates(theta), distances, 1))
    return covariance


def _rates(theta: Floats) -> Floats:
    """How fast likeness falls with each of the three distances."""
    _, _, length, length_before, forgetting = theta
    exponents = [-2 * length, -2 * length_before, forgetting]
    return np.array([0.5, 0.5, 1.0]) * np.exp(exponents)


class PB2:
    """Proposes by upper confidence bound; steps like `fallback` until it has seen enough."""

    def __init__(self, spaces: Spaces, fallback: Step) -> None:
        self.spaces, self.fallback = spaces, fallback
        self._seen: list[list[float]] = []  # generation, fitness before, change, *x; oldest first
        self._model: _Model | None = None  # of what was seen, and of this generation's children
        self._generation = 0  # of those children

    def observe(
        self,
        generation: int,
        hyperparameters: Sequence[Mapping[str, float]],
        before: Floats,
        after: Floats,
    ) -> None:
        """Remember the changes of fitness; death counts as the worst change of its generation."""
        known = np.isfinite(before) & ~np.isnan(after)
        lived = known & np.isfinite(after)
        if not lived.any():
            return
        changes = np.where(lived, after, 0) - np.where(lived, before, 0)
        changes[~lived] = changes[lived].min()
        for agent in np.flatnonzero(known).tolist():
            x = self._to_cube(hyperparameters[agent]).tolist()
            self._seen.append([float(generation), float(before[agent]), float(changes[agent]), *x])
        self.restore(self._seen[-MEMORY:])

    def propose(
        self,
        hyperparameters: Mapping[str, float],
        fitness: float,
        generation: int,
        random: np.random.Generator,
    ) -> dict[str, float]:
        """The values that promise most, given what this generation's other children got."""
        if not self._enough or not math.isfinite(fitness):
            return self.fallback(hyperparameters, random)
        if self._model is None or generation != self._generation:
            self._model, self._generation = _Model(np.array(self._seen)), generation
        scores = partial(self._model.scores, generation, fitness)
        x = self._best(scores, self._to_cube(hyperparameters), random)
        self._model.expect(generation, fitness, x)
        values = zip(self.spaces.items(), x, strict=True)
        new = {name: space.from_unit(float(unit)) for (name, space), unit in values}
        return dict(hyperparameters) | new

    def state(self) -> list[list[float]]:
        """The observations; children are forgotten, as their own observations follow."""
        return [list(row) for row in self._seen]

    def restore(self, state: list[list[float]]) -> None:
        """Go on from earlier observations."""
        self._seen, self._model = [list(row) for row in state], None

    @property
    def _enough(self) -> bool:
        generations = {row[0] for row in self._seen}
        enough = len(self._seen) >= max(4, 2 * len(self.spaces))
        return enough and len(generations) > 1 and bool(self.spaces)

    def _best(
        self, scores: Callable[[Floats], Floats], parent: Floats, random: np.random.Generator
    ) -> Floats:
        """The best of some candidates: the parent with a few values drawn again and the rest moved.

        The whole cube is not searched: far from all that was seen the bound is wide everywhere, and
        the corners are farthest. With many hyperparameters and noise, children then went there.
        """
        shape = CANDIDATES, len(parent)
        anew = random.random(shape) < max(ANEW, 1 / (2 * len(parent)))
        moved = parent + random.normal(scale=MOVE, size=shape)
        points = np.vstack([parent, np.where(anew, random.random(shape), moved)])
        points = self._snap(np.clip(points, 0, 1))
        values = scores(points)
        centres = points[np.argsort(-values, kind="stable")[:BEST]]
        moves = random.normal(scale=SMALL_MOVE, size=(AROUND, *centres.shape))
        near = self._snap(np.clip(centres + moves, 0, 1).reshape(-1, len(parent)))
        points, values = np.vstack([points, near]), np.append(values, scores(near))
        best: Floats = points[int(values.argmax())]
        return best

    def _to_cube(self, hyperparameters: Mapping[str, float]) -> Floats:
        return np.array(
            [space.to_unit(hyperparameters[name]) for name, space in self.spaces.items()]
        )

    def _snap(self, x: Floats) -> Floats:
        """The nearest points whose values exist: whole numbers and choices have gaps."""
        x = x.copy()
        for column, space in enumerate(self.spaces.values()):
            if space.whole or space.values:
                x[:, column] = [
                    space.to_unit(space.from_unit(float(unit))) for unit in x[:, column]
                ]
        return x


class _Model:
    """A Gaussian process in the units of fitness, and what it is expected to see next."""

    def __init__(self, seen: Floats) -> None:
        time, before, changes, x = seen[:, 0], seen[:, 1], seen[:, 2], seen[:, 3:]
        self._centre, self._scale = before.mean(), _spread(before)
        points = Points(time, (before - self._centre) / self._scale, x)
        changes = (changes - changes.mean()) / _spread(changes)
        self.process = GaussianProcess(points, changes, fit(points, changes))

    def scores(self, generation: int, fitness: float, x: Floats) -> Floats:
        """Upper confidence bounds [C] of the change, in standard deviations."""
        mean, deviation = self.process.predict(self._points(generation, fitness, x))
        return mean + BOLDNESS * deviation

    def expect(self, generation: int, fitness: float, x: Floats) -> None:
        """A child will be seen there."""
        self.process = self.process.pretend(self._points(generation, fitness, x[None]))

    def _points(self, generation: int, fitness: float, x: Floats) -> Points:
        before = (fitness - self._centre) / self._scale
        return Points(np.full(len(x), float(generation)), np.full(len(x), before), x)


def _spread(values: Floats) -> float:
    """Their standard deviation, or 1 if they are equal but for rounding."""
    spread = float(values.std())
    return spread if spread > 1e-12 * float(np.abs(values).max()) else 1.0
