"""Who stays, and who makes room for whose child: pure functions of fitness and a generator.

A selection is `parents [P]`: agent i stays exactly as it is if parents[i] == i, else its place goes
to a child of agent parents[i]. So a survivor keeps its own place, and only further copies of it are
children. Agents of equal fitness are ranked by index, the lowest first: as long as nobody has
learnt anything, the same few places change and the rest keep their different weights.

Legend: P agents, L latest evaluations, E episodes of each.
"""

import math

import numpy as np
import numpy.typing as npt

from evorl.config import SelectionConfig

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Selection:
    """The selection that a configuration describes."""

    def __init__(self, config: SelectionConfig) -> None:
        self.config = config

    def __call__(self, returns: Floats, alive: Bools, random: np.random.Generator) -> Ints:
        """Parents [P] by the latest evaluations' returns [L, P, E]; ValueError if all are dead."""
        config = self.config
        fitness = mean_fitness(returns, alive)
        if config.kind == "tournament":
            parents = tournament(fitness, random, config.size, config.elitism)
        else:
            parents = truncation(fitness, random, config.fraction)
        living = np.isfinite(fitness)[None, :, None]
        return hold_noise(parents, np.where(living, returns, -np.inf), config.min_gap)


def mean_fitness(returns: Floats, alive: Bools) -> Floats:
    """The mean [P] of returns [L, P, E]; -inf for the dead, and where a return is not finite."""
    known = alive & np.isfinite(returns).all(axis=(0, 2))
    return np.where(known, np.where(known[None, :, None], returns, 0).mean(axis=(0, 2)), -np.inf)


def tournament(fitness: Floats, random: np.random.Generator, size: int, elitism: bool) -> Ints:
    """Each place goes to the best of `size` living agents, drawn with replacement.

    With elitism the best agent has one place for certain; without, it may win nothing and vanish.
    """
    ranked = _ranked(fitness)
    contests = len(fitness) - elitism
    # the best of several ranks is the lowest of them
    winners = ranked[random.integers(len(ranked), size=(contests, size)).min(axis=1)]
    if elitism:
        winners = np.append(winners, ranked[0])
    copies = np.bincount(winners, minlength=len(fitness))
    parents = np.arange(len(fitness))
    parents[copies == 0] = np.repeat(parents, np.maximum(copies - 1, 0))
    return parents


def truncation(fitness: Floats, random: np.random.Generator, fraction: float) -> Ints:
    """The worst share is replaced by children of the equally many best, each drawn evenly.

    The share is one agent at least and half of them at most. All the dead are replaced, even if
    they are more than that.
    """
    ranked = _ranked(fitness)
    share = max(1, math.floor(fraction * len(fitness) + 1e-9))  # 0.29 * 100 is a little under 29
    share = min(share, len(fitness) // 2)
    parents = np.arange(len(fitness))
    replaced = np.setdiff1d(parents, ranked[: len(fitness) - share])
    best = ranked[: max(share, 1)]
    parents[replaced] = best[random.integers(len(best), size=len(replaced))]
    return parents


def hold_noise(parents: Ints, returns: Floats, min_gap: float) -> Ints:
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


def _ranked(fitness: Floats) -> Ints:
    """The living, the best first."""
    living = np.isfinite(fitness)
    if not living.any():
        raise ValueError("no agent is alive: none has a finite fitness")
    order = np.argsort(np.where(living, -fitness, np.inf), kind="stable")
    return order[: int(living.sum())]
