"""Fitness: what counts of the returns of an agent's episodes.

A fitness of your own is a function of returns [E], of one or more episodes, to a number, the more
the better:

    def lower_quantile(returns):
        return np.quantile(returns, 0.25)

    evaluation: {fitness: "my_module:lower_quantile"}

Legend: P agents, L latest evaluations, E episodes of each, n episodes.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from evorl.config import resolve
from evorl.errors import RunError, one_line, raised

Floats = npt.NDArray[np.float64]
Function = Callable[[Floats], float]


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
    """

    def __init__(self, function: Function = mean, name: str = "") -> None:
        self.function, self.name = function, name or function.__name__

    @classmethod
    def named(cls, name: str) -> "Fitness":
        """The one that a configuration names."""
        return cls(resolve("fitness", name), name)

    def __call__(self, returns: Floats) -> Floats:
        """Each agent's [P], by returns [P, E], or by those of several evaluations [L, P, E].

        It is -inf for the dead, and wherever a return is not finite.
        """
        returns = returns.reshape(-1, *returns.shape[-2:])
        known = np.asarray(np.isfinite(returns).all(axis=(0, 2)))
        if self.function is mean:
            values = np.where(known[None, :, None], returns, 0).mean(axis=(0, 2))
            return np.where(known & np.isfinite(values), values, -np.inf)
        return self._values(by_episode(returns))

    def errors(self, returns: Floats) -> Floats:
        """The standard error of each agent's [P], from returns [P, E]; NaN where there is none."""
        agents, episodes = returns.shape
        if episodes < 2:
            return np.full(agents, np.nan)
        known = np.asarray(np.isfinite(returns).all(1))
        if self.function is mean:
            spread: Floats = np.where(known[:, None], returns, np.nan).std(1, ddof=1)
            return spread / math.sqrt(episodes)
        return np.where(known, _jackknife(self._without_each(returns.T)), np.nan)

    def lead(self, ahead: Floats, behind: Floats) -> tuple[Floats, Floats]:
        """By how much one leads on episodes that both played, and the standard error of that.

        From returns [n], or [n, P] for P pairs. A single episode has no error: it is 0.
        """
        with np.errstate(invalid="ignore"):  # the dead, whose lead nobody asks for
            if self.function is mean:
                lead = (difference := ahead - behind).mean(axis=0)
            else:
                lead = self._values(ahead) - self._values(behind)
            if (n := len(ahead)) == 1:
                return lead, np.zeros_like(lead)
            if self.function is mean:
                return lead, difference.std(axis=0, ddof=1) / math.sqrt(n)
            return lead, _jackknife(self._without_each(ahead) - self._without_each(behind))

    def stand_in(self, returns: Floats, episodes: int) -> Floats:
        """As many returns as these episodes would have given whoever had these: [n] → [E]."""
        if self.function is mean:
            return np.full(episodes, returns.mean())
        return np.resize(returns, episodes)

    def _values(self, returns: Floats) -> Floats:
        """Of returns [n], or [P] of [n, P]."""
        found: Floats = np.apply_along_axis(self._value, 0, returns)
        return found

    def _without_each(self, returns: Floats) -> Floats:
        """The same [n] or [n, P] without each of the n episodes."""
        return np.stack([self._values(np.delete(returns, i, 0)) for i in range(len(returns))])

    def _value(self, returns: Floats) -> float:
        """Of one agent; RunError if the function has none."""
        if not np.isfinite(returns).all():
            return -np.inf
        try:
            found = self.function(returns.copy())
            value = float(found)
        except Exception as error:
            raise RunError(one_line(f"{self._who} raised {raised(error)}")) from error
        if not math.isfinite(value):
            raise RunError(f"{self._who} must give a finite number, got {value}")
        return value

    @property
    def _who(self) -> str:
        return f"evaluation.fitness: {self.name!r}"


def by_episode(returns: Floats) -> Floats:
    """All episodes of every agent: [n, P] of [L, P, E]."""
    return returns.swapaxes(1, 2).reshape(-1, returns.shape[1])


def _jackknife(without: Floats) -> Floats:
    """The standard error of what is [n] or [n, P] when each of n episodes is left out."""
    with np.errstate(invalid="ignore"):
        error: Floats = math.sqrt(len(without) - 1) * without.std(axis=0)
    return error


MEAN = Fitness()
