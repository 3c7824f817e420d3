"""PB2: learn from all agents which hyperparameters raise fitness, and how that changes with time.

After Parker-Holder et al. 2020, "Provably Efficient Online Hyperparameter Optimization with
Population-Based Bandits". Every agent and generation is one observation: the change of fitness. A
Gaussian process over hyperparameters, fitness before and time predicts it, and a child gets the
values with the highest upper confidence bound.

Legend: N observations, C candidates, D hyperparameters.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator
from scipy import linalg, optimize
from scipy.linalg import lapack
from scipy.spatial.distance import cdist

from evorl.config import ExploreConfig
from evorl.evolution.explore import Explore, Floats, Spaces, Values

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


def distances(points: Floats, others: Floats) -> Floats:
    """How far apart points are [3, N, C]: by x and fitness squared, by time absolute.

    Points are rows of time (the generation), fitness before it, and x in the unit cube.
    """
    (time, before), (other_time, other_before) = points.T[:2], others.T[:2]
    return np.stack(
        [
            cdist(points[:, 2:], others[:, 2:], "sqeuclidean") / (points.shape[1] - 2),
            np.subtract.outer(before, other_before) ** 2,
            np.abs(np.subtract.outer(time, other_time)),
        ]
    )


class GaussianProcess:
    """A time-varying Gaussian process, given what was seen and its kernel's parameters."""

    def __init__(self, points: Floats, changes: Floats, theta: Floats) -> None:
        self.points, self.changes, self.theta = points, changes, theta
        covariance = _covariance(distances(points, points), theta)
        covariance[np.diag_indices_from(covariance)] += math.exp(theta[1])
        self._factor = linalg.cho_factor(covariance, lower=True)
        self._weights = linalg.cho_solve(self._factor, changes)

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation [C] of the change at other points, noise apart."""
        across = _covariance(distances(self.points, points), self.theta)  # [N, C]
        solved = linalg.solve_triangular(self._factor[0], across, lower=True)
        variance = math.exp(self.theta[0]) - (solved**2).sum(axis=0)
        return across.T @ self._weights, np.sqrt(np.maximum(variance, 1e-12))

    def pretend(self, point: Floats) -> "GaussianProcess":
        """As if the predicted change had been seen: the mean stays, the uncertainty shrinks."""
        changes = np.append(self.changes, self.predict(point)[0])
        return GaussianProcess(np.vstack([self.points, point]), changes, self.theta)


def fit(points: Floats, changes: Floats) -> Floats:
    """The kernel's most likely parameters; always the same for the same observations."""
    theta: Floats = optimize.minimize(
        _misfit,
        MODE,
        (distances(points, points), changes),
        method="L-BFGS-B",
        jac=True,
        bounds=optimize.Bounds(LEAST, MOST),
        options={"maxiter": ITERATIONS, "ftol": 1e-4},
    ).x
    return theta


def _misfit(theta: Floats, apart: Floats, changes: Floats) -> tuple[float, Floats]:
    """Negative logarithm of marginal likelihood times prior, and its gradient."""
    clean, noise = _covariance(apart, theta), math.exp(theta[1])
    noisy = clean + noise * np.eye(len(changes))
    factor, _ = lapack.dpotrf(noisy, lower=1)
    inverse, _ = lapack.dpotri(factor, lower=1)  # its upper triangle is zero
    inverse += np.tril(inverse, -1).T
    weights = inverse @ changes
    # d(misfit) = 1/2 sum((inverse - weights weights^T) * d(covariance))
    slope = 0.5 * (inverse - np.outer(weights, weights))
    shared = slope * clean
    by_distance = -np.tensordot(apart, shared) * _rates(theta) * [-2, -2, 1]
    off = (theta - MODE) / SPREAD
    gradient = np.array([shared.sum(), noise * np.trace(slope), *by_distance]) + off / SPREAD
    misfit = 0.5 * changes @ weights + np.log(np.diag(factor)).sum() + 0.5 * off @ off
    return float(misfit), gradient


def _covariance(apart: Floats, theta: Floats) -> Floats:
    """Covariance [N, C] of the changes, without noise."""
    covariance: Floats = np.exp(theta[0] - np.tensordot(_rates(theta), apart, 1))
    return covariance


def _rates(theta: Floats) -> Floats:
    """How fast likeness falls with each of the three distances."""
    _, _, length, length_before, forgetting = theta
    exponents = [-2 * length, -2 * length_before, forgetting]
    return np.array([0.5, 0.5, 1.0]) * np.exp(exponents)


class PB2(Explore):
    """Proposes by upper confidence bound; grows or shrinks values until it has seen enough."""

    def __init__(self, config: ExploreConfig, spaces: Spaces) -> None:
        super().__init__(config, spaces)
        self._seen: list[list[float]] = []  # generation, fitness before, change, *x; oldest first
        self._process: GaussianProcess | None = None  # of them, and of this generation's children
        self._generation = 0  # of those children
        self._centre, self._scale = 0.0, 1.0  # of fitness before

    def observe(
        self, generation: int, values: Sequence[Values], before: Floats, after: Floats
    ) -> None:
        """Remember the changes of fitness; death counts as the worst change of its generation."""
        known = np.isfinite(before) & ~np.isnan(after)
        lived = known & np.isfinite(after)
        if not lived.any():
            return
        changes = np.where(lived, after, 0) - np.where(lived, before, 0)
        changes[~lived] = changes[lived].min()
        for agent in np.flatnonzero(known).tolist():
            x = self._to_cube(values[agent]).tolist()
            self._seen.append([float(generation), float(before[agent]), float(changes[agent]), *x])
        self.restore(self._seen[-MEMORY:])

    def propose(
        self, values: Values, fitness: float, generation: int, random: Generator
    ) -> dict[str, float]:
        """The values that promise most, given what this generation's other children got."""
        enough = len(self._seen) >= max(4, 2 * len(self.spaces)) and bool(self.spaces)
        generations = {row[0] for row in self._seen}
        if not enough or len(generations) < 2 or not math.isfinite(fitness):
            return super().propose(values, fitness, generation, random)
        if self._process is None or generation != self._generation:
            self._process, self._generation = self._learned(), generation
        process, before = self._process, (fitness - self._centre) / self._scale

        def points(x: Floats) -> Floats:
            return np.column_stack([np.full((len(x), 2), (float(generation), before)), x])

        def scores(x: Floats) -> Floats:
            """Upper confidence bounds [C] of the change, in standard deviations."""
            mean, deviation = process.predict(points(x))
            return mean + BOLDNESS * deviation

        x = self._best(scores, self._to_cube(values), random)
        self._process = process.pretend(points(x[None]))  # a child will be seen there
        pairs = zip(self.spaces.items(), x, strict=True)
        new = {name: space.from_unit(float(unit)) for (name, space), unit in pairs}
        return dict(values) | new

    def state(self) -> list[list[float]]:
        """The observations; children are forgotten, as their own observations follow."""
        return [list(row) for row in self._seen]

    def restore(self, state: list[list[float]]) -> None:
        """Continue from earlier observations."""
        self._seen, self._process = [list(row) for row in state], None

    def _learned(self) -> GaussianProcess:
        """Of all that was seen, in units in which fitness and its changes have a spread of 1."""
        seen = np.array(self._seen)
        points, changes = np.delete(seen, 2, axis=1), seen[:, 2]
        self._centre, self._scale = points[:, 1].mean(), _spread(points[:, 1])
        points[:, 1] = (points[:, 1] - self._centre) / self._scale
        changes = (changes - changes.mean()) / _spread(changes)
        return GaussianProcess(points, changes, fit(points, changes))

    def _best(
        self, scores: Callable[[Floats], Floats], parent: Floats, random: Generator
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

    def _to_cube(self, values: Values) -> Floats:
        return np.array([space.to_unit(values[name]) for name, space in self.spaces.items()])

    def _snap(self, x: Floats) -> Floats:
        """The nearest points whose values exist: whole numbers and choices have gaps."""
        x = x.copy()
        for column, space in enumerate(self.spaces.values()):
            if space.whole or space.values:
                x[:, column] = [
                    space.to_unit(space.from_unit(float(unit))) for unit in x[:, column]
                ]
        return x


def _spread(values: Floats) -> float:
    """Their standard deviation, or 1 if they are equal but for rounding."""
    spread = float(values.std())
    return spread if spread > 1e-12 * float(np.abs(values).max()) else 1.0


def make_explore(config: ExploreConfig, spaces: Spaces) -> Explore:
    """The strategy that a configuration names."""
    return (PB2 if config.strategy == "pb2" else Explore)(config, spaces)
