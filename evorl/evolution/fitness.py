"""Fitness: what counts of the returns of an agent's episodes.

A fitness of your own is a function of returns [E] to a number, the more the better:

    def lower_quantile(returns):
        return np.quantile(returns, 0.25)

    evaluation: {fitness: "my_module:lower_quantile"}

Legend: P agents, L latest evaluations, E episodes of each.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Fitness = Callable[[Floats], float]


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


def fitness_of(returns: Floats, alive: npt.NDArray[np.bool_], fitness: Fitness = mean) -> Floats:
    """Each agent's fitness [P] by the latest evaluations' returns [L, P, E] together.

    It is -inf for the dead, and where a return, or what the function makes of them, is not finite.
    """
    known = alive & np.isfinite(returns).all(axis=(0, 2))
    counted = np.where(known[None, :, None], returns, 0)
    if fitness is mean:
        values = counted.mean(axis=(0, 2))
    else:
        each = [float(fitness(own.ravel())) for own in counted.swapaxes(0, 1)]
        values = np.array(each)
    return np.where(known & np.isfinite(values), values, -np.inf)
