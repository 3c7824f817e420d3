"""Who stays, and who makes room for whose child: pure functions of fitness and a generator.

A selection gives `parents [P]`: agent i stays exactly as it is if parents[i] == i, else its place
goes to a child of agent parents[i]. So a survivor keeps its own place, and only further copies of
it are children. Agents of equal fitness are ranked by index, the lowest first: as long as nobody
has learnt anything, the same few places change and the rest keep their different weights.

A selection of your own is a subclass with `parents`, and with fields of its own as options:

    class Roulette(Selection):
        temperature: float = option(1.0, "How little fitness counts.", gt=0)

        def parents(self, fitness, random): ...

    evolution: {selection: {kind: "my_module:Roulette", temperature: 0.5}}

Legend: P agents, L latest evaluations, E episodes of each.
"""

import math

import numpy as np
import numpy.typing as npt

from evorl.config import Fraction, Section, option
from evorl.errors import RunError, one_line, raised
from evorl.evolution.fitness import MEAN, Fitness, by_episode

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Selection(Section):
    """Who is replaced by whose child; the options that all kinds of it have."""

    kind: str = option("", "truncation, tournament, or your own as module:Class.")
    min_gap: float = option(
        1.0, "Standard errors of the paired difference by which a parent must lead.", ge=0, le=100
    )
    eval_loop: int = option(
        1,
        "Evaluations over which fitness is averaged; until then all that live stay.",
        ge=1,
        le=1000,
    )
    champion: Fraction = option(
        1.0,
        "Probability that a child descends from the best agent ever seen instead, if its confirmed"
        " score is above the parent's fitness; the best has at most as many children this way as"
        " there are agents.",
    )

    def parents(self, fitness: Floats, random: np.random.Generator) -> Ints:
        """Parents [P] by fitness [P], which is -inf for the dead; somebody is alive."""
        raise NotImplementedError(f"{type(self).__name__} selects no parents")

    def __call__(
        self, returns: Floats, alive: Bools, random: np.random.Generator, fitness: Fitness = MEAN
    ) -> Ints:
        """Parents [P] by the latest evaluations' returns [L, P, E]; ValueError if all are dead."""
        counted = np.where(alive[None, :, None], returns, -np.inf)
        values = fitness(counted)
        living = np.isfinite(values)
        if not living.any():
            raise ValueError("no agent is alive: none has a finite fitness")
        counted = np.where(living[None, :, None], counted, -np.inf)
        return require_lead(self._parents(values, random), counted, self.min_gap, fitness)

    def _parents(self, fitness: Floats, random: np.random.Generator) -> Ints:
        """What `parents` gives; the dead that it leaves in place become children of the best."""
        try:
            found = np.array(self.parents(fitness.copy(), random))
        except Exception as error:
            raise RunError(one_line(f"{self._who} raised {raised(error)}")) from error
        count, living = len(fitness), np.isfinite(fitness)
        if found.shape != (count,) or found.dtype.kind not in "iu":
            what = f"{found.dtype} of shape {found.shape}"
            raise RunError(f"{self._who} must give {count} whole numbers as parents, got {what}")
        found = np.where(~living & (found == np.arange(count)), fitness.argmax(), found)
        if not np.isin(found, np.flatnonzero(living)).all():
            rule = f"must choose parents of the living, {np.flatnonzero(living).tolist()}"
            raise RunError(f"{self._who} {rule}, got {found.tolist()}")
        return found.astype(np.int64)

    @property
    def _who(self) -> str:
        return f"evolution.selection: {self.kind or type(self).__name__!r}"


class Truncation(Selection):
    """The worst share is replaced by children of the equally many best, each drawn evenly.

    The share is one agent at least and half of them at most. All the dead are replaced, even if
    they are more than that.
    """

    kind: str = option("truncation", "truncation, tournament, or your own as module:Class.")
    fraction: float = option(0.25, "Share of agents replaced, and of parents.", gt=0, le=0.5)

    def parents(self, fitness: Floats, random: np.random.Generator) -> Ints:
        """Children of the best in the places of the worst."""
        ranked, count = ranking(fitness), len(fitness)
        share = max(1, math.floor(self.fraction * count + 1e-9))  # 0.29 * 100 is just under 29
        share = min(share, count // 2)
        parents = np.arange(count)
        replaced = np.setdiff1d(parents, ranked[: count - share])
        best = ranked[: max(share, 1)]
        parents[replaced] = best[random.integers(len(best), size=len(replaced))]
        return parents


class Tournament(Selection):
    """Each place goes to the best of `size` living agents, drawn with replacement.

    With elitism the best agent has one place for certain; without, it may win nothing and vanish.
    """

    kind: str = option("tournament", "truncation, tournament, or your own as module:Class.")
    size: int = option(2, "Agents per tournament.", ge=1, le=4096)
    elitism: bool = option(True, "Whether the best agent always stays.")

    def parents(self, fitness: Floats, random: np.random.Generator) -> Ints:
        """The winners stay; those that won more than once have children."""
        ranked = ranking(fitness)
        contests = len(fitness) - self.elitism
        # the best of several ranks is the lowest of them
        winners = ranked[random.integers(len(ranked), size=(contests, self.size)).min(axis=1)]
        if self.elitism:
            winners = np.append(winners, ranked[0])
        copies = np.bincount(winners, minlength=len(fitness))
        parents = np.arange(len(fitness))
        parents[copies == 0] = np.repeat(parents, np.maximum(copies - 1, 0))
        return parents


def ranking(fitness: Floats) -> Ints:
    """The living, the best first."""
    living = np.isfinite(fitness)
    order = np.argsort(np.where(living, -fitness, np.inf), kind="stable")
    return order[: int(living.sum())]


def require_lead(parents: Ints, returns: Floats, min_gap: float, fitness: Fitness = MEAN) -> Ints:
    """The same parents, but an agent stays unless its parent's lead in returns [L, P, E] is clear.

    All agents play the same episodes, so the lead is a paired difference of fitness, and it must be
    more than `min_gap` of its standard errors. A single episode has none: any lead will do. The
    dead are replaced all the same, and min_gap = 0 holds nobody.
    """
    if min_gap == 0:
        return parents.copy()
    episodes = by_episode(returns)
    lead, error = fitness.lead(episodes[:, parents], episodes)
    dead = ~np.isfinite(returns).all(axis=(0, 2))
    return np.where(dead | (lead > min_gap * error), parents, np.arange(len(parents)))
