"""Fitness, and by it who stays and who makes room for whose child.

A fitness is a function of returns [E], of one or more episodes, to a number, the more the better;
your own as `evaluation: {fitness: "my_module:lower_quantile"}`.

A selection gives `parents [P]`: agent i stays exactly as it is if parents[i] == i, else its place
goes to a child of agent parents[i]. So a survivor keeps its own place, and only further copies of
it are children. Agents of equal fitness are ranked by index, the lowest first: as long as nobody
has learnt anything, the same few places change and the rest keep their different weights. Your own
is a subclass, whose fields are its options: `selection: {kind: "my_module:Roulette", heat: 0.5}`.

Legend: P agents, L latest evaluations, E episodes of each (NaN: none), n episodes.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from evorl.config import Fraction, Section, option, resolve
from evorl.errors import RunError, raised

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def mean(returns: Floats) -> float:
    """The mean return."""
    return float(returns.mean())


def median(returns: Floats) -> float:
    """The median return."""
    return float(np.median(returns))


def iqm(returns: Floats) -> float:
    """The interquartile mean: of what is left without the lowest and the highest quarter."""
    cut = len(returns) // 4
    return float(np.sort(returns)[cut : len(returns) - cut].mean())


class Fitness:
    """Such a function for all agents at once, with its standard error over episodes.

    The mean has its own in closed form. For others it is the jackknife's, from the fitness without
    each of the episodes: the same for the mean, good for what is smooth, rough for a quantile.

    `paired` says that all agents have played the same episodes, so that differences count one by
    one. If not, an agent may have fewer than others: NaN is no return at all.
    """

    def __init__(
        self, function: Callable[[Floats], float] = mean, name: str = "", paired: bool = True
    ) -> None:
        self.function, self.name, self.paired = function, name or function.__name__, paired

    @classmethod
    def named(cls, name: str, paired: bool = True) -> "Fitness":
        """The one that a configuration names."""
        return cls(resolve("fitness", name), name, paired)

    def __call__(self, returns: Floats) -> Floats:
        """Each agent's [P] by returns [P, E] or [L, P, E]; -inf where one of them is not finite.

        NaN if it has none.
        """
        returns = returns.reshape(-1, *returns.shape[-2:])
        known = np.asarray(np.isfinite(returns).all(axis=(0, 2)))
        if self.function is mean and self.paired:
            values = np.where(known[None, :, None], returns, 0).mean(axis=(0, 2))
            return np.where(known & np.isfinite(values), values, -np.inf)
        return self._values(_by_episode(returns))

    def errors(self, returns: Floats) -> Floats:
        """The standard error of each agent's [P], from returns [P, E]; NaN where there is none."""
        return np.array([self._error(own) for own in returns])

    def lead(self, ahead: Floats, behind: Floats) -> tuple[Floats, Floats]:
        """The lead on episodes [n] or [n, P], and its standard error (of one that both played: 0).

        Of unpaired ones [n, P] it is Welch's, infinite where either has less than two.
        """
        with np.errstate(invalid="ignore"):  # the dead, whose lead nobody asks for
            if not self.paired:
                error = np.hypot(self.errors(ahead.T), self.errors(behind.T))
                lead = self._values(ahead) - self._values(behind)
                return lead, np.where(np.isnan(error), np.inf, error)
            if self.function is mean:
                lead = (difference := ahead - behind).mean(axis=0)
            else:
                lead = self._values(ahead) - self._values(behind)
            if len(ahead) == 1:
                return lead, np.zeros_like(lead)
            if self.function is mean:
                return lead, difference.std(axis=0, ddof=1) / math.sqrt(len(ahead))
            return lead, _jackknife(self._without_each(ahead) - self._without_each(behind))

    def stand_in(self, returns: Floats, episodes: int) -> Floats:
        """As many returns as these episodes would have given whoever had these: [n] → [E]."""
        if self.function is mean:
            return np.full(episodes, returns.mean())
        return np.resize(returns, episodes)

    def _values(self, returns: Floats) -> Floats:
        """Of returns [n], or [P] of [n, P]; RunError if the function has none."""
        found: Floats = np.apply_along_axis(self._value, 0, returns)
        return found

    def _without_each(self, returns: Floats) -> Floats:
        return np.stack([self._values(np.delete(returns, i, 0)) for i in range(len(returns))])

    def _given(self, returns: Floats) -> Floats:
        """Those that an agent has."""
        return returns if self.paired else returns[~np.isnan(returns)]

    def _error(self, returns: Floats) -> float:
        """Of returns [n]; NaN if there is none."""
        returns = self._given(returns)
        if len(returns) < 2 or not np.isfinite(returns).all():
            return np.nan
        if self.function is mean:
            return float(returns.std(ddof=1)) / math.sqrt(len(returns))
        return float(_jackknife(self._without_each(returns)))

    def _value(self, returns: Floats) -> float:
        returns = self._given(returns)
        if not len(returns):
            return np.nan
        if not np.isfinite(returns).all():
            return -np.inf
        who = f"evaluation.fitness: {self.name!r}"
        try:
            value = float(self.function(returns.copy()))
        except Exception as error:
            raise RunError(f"{who} raised {raised(error)}") from error
        if not math.isfinite(value):
            raise RunError(f"{who} must give a finite number, got {value}")
        return value


def _by_episode(returns: Floats) -> Floats:
    """All episodes of every agent: [n, P] of [L, P, E]."""
    return returns.swapaxes(1, 2).reshape(-1, returns.shape[1])


def _jackknife(without: Floats) -> Floats:
    """The standard error, from what is [n] or [n, P] when each of n episodes is left out."""
    with np.errstate(invalid="ignore"):
        error: Floats = math.sqrt(len(without) - 1) * without.std(axis=0)
    return error


MEAN = Fitness()


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
        "Probability that a child descends from the champion, the best agent ever seen as it was"
        " then, and not from the parent selected, if the champion's confirmed score is above that"
        " parent's fitness; it has at most as many children this way as there are agents.",
    )

    def parents(self, fitness: Floats, random: Generator) -> Ints:
        """Parents [P] by fitness [P], which is -inf for the dead; somebody is alive."""
        raise NotImplementedError(f"{type(self).__name__} selects no parents")

    def __call__(
        self, returns: Floats, alive: Bools, random: Generator, fitness: Fitness = MEAN
    ) -> Ints:
        """Parents [P] by the latest evaluations' returns [L, P, E]; ValueError if all are dead."""
        counted = np.where(alive[None, :, None], returns, -np.inf)
        values = fitness(counted)
        if not np.isfinite(values).any():
            raise ValueError("no agent is alive: none has a finite fitness")
        parents = np.arange(len(values))
        known = parents[~np.isnan(values)]  # others neither replace nor are replaced
        parents[known] = known[self._parents(values[known], random)]
        return require_lead(parents, counted, self.min_gap, fitness)

    def _parents(self, fitness: Floats, random: Generator) -> Ints:
        """What `parents` gives; the dead that it leaves in place become children of the best."""
        who = f"evolution.selection: {self.kind or type(self).__name__!r}"
        try:
            found = np.array(self.parents(fitness.copy(), random))
        except Exception as error:
            raise RunError(f"{who} raised {raised(error)}") from error
        count, living = len(fitness), np.flatnonzero(np.isfinite(fitness))
        if found.shape == (count,):
            stays = ~np.isfinite(fitness) & (found == np.arange(count))
            found = np.where(stays, fitness.argmax(), found)
        if found.shape != (count,) or found.dtype.kind not in "iu" or set(found) - set(living):
            rule = f"must give {count} parents, of the living, {living.tolist()}"
            raise RunError(f"{who} {rule}, got {found.tolist()}")
        return found.astype(np.int64)


class Truncation(Selection):
    """The worst share is replaced by children of the equally many best, each drawn evenly.

    The share is one agent at least and half of them at most. All the dead are replaced, even if
    they are more than that.
    """

    kind: str = option("truncation", "truncation, tournament, or your own as module:Class.")
    fraction: float = option(0.25, "Share of agents replaced, and of parents.", gt=0, le=0.5)

    def parents(self, fitness: Floats, random: Generator) -> Ints:
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

    def parents(self, fitness: Floats, random: Generator) -> Ints:
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

    If all play the same episodes, it is a paired difference. It must be more than `min_gap` of its
    standard errors. The dead are replaced all the same, and min_gap = 0 holds nobody.
    """
    if min_gap == 0:
        return parents.copy()
    episodes = _by_episode(returns)
    lead, error = fitness.lead(episodes[:, parents], episodes)
    dead = fitness(returns) == -np.inf
    return np.where(dead | (lead > min_gap * error), parents, np.arange(len(parents)))
