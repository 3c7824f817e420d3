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

from evorl.config.section import Fraction, Section, option
from evorl.evolution.fitness import Fitness, fitness_of, mean

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Selection(Section):
    """Who is replaced by whose child; the options that all kinds of it have."""

    kind: str = option("", "truncation, tournament, or your own as module:Class.")
    min_gap: float = option(
        1.0,
        "Standard errors of the paired difference by which a parent must lead.",
        ge=0,
        le=100,
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
        self, returns: Floats, alive: Bools, random: np.random.Generator, fitness: Fitness = mean
    ) -> Ints:
        """Parents [P] by the latest evaluations' returns [L, P, E]; ValueError if all are dead."""
        values = fitness_of(returns, alive, fitness)
        living = np.isfinite(values)
        if not living.any():
            raise ValueError("no agent is alive: none has a finite fitness")
        counted = np.where(living[None, :, None], returns, -np.inf)
        return require_lead(self.parents(values, random), counted, self.min_gap)


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


def require_lead(parents: Ints, returns: Floats, min_gap: float) -> Ints:
    """The same parents, but an agent stays unless its parent's lead in returns [L, P, E] is clear.

    All agents play the same episodes, so the lead is a mean of paired differences, and it must be
    more than `min_gap` of its standard errors. A single episode has none: any lead will do. The
    dead are replaced all the same, and min_gap = 0 holds nobody.
    """
    if min_gap == 0:
        return parents.copy()
    lead, error = _lead(parents, returns)
    dead = ~np.isfinite(returns).all(axis=(0, 2))
    return np.where(dead | (lead > min_gap * error), parents, np.arange(len(parents)))


def _lead(parents: Ints, returns: Floats) -> tuple[Floats, Floats]:
    """By how much each agent's parent is ahead of it, and the standard error of that; both [P]."""
    with np.errstate(invalid="ignore"):  # the dead, whose lead nobody asks for
        difference = (returns[:, parents] - returns).swapaxes(1, 2).reshape(-1, len(parents))
        episodes = len(difference)
        lead = difference.mean(axis=0)
        if episodes == 1:
            return lead, np.zeros_like(lead)
        return lead, difference.std(axis=0, ddof=1) / math.sqrt(episodes)
