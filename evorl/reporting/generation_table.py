"""A generation as text: a headline, a table of its agents, and what evolution made of them.

Columns keep their place from one generation to the next, so that a long run reads well.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evorl.evolution.change import describe_architectures, describe_number
from evorl.genome import HYPERPARAMETERS, Genome
from evorl.reporting.colour import Ink

SHOWN = 8  # agents at the top of a table that is shortened; the worst comes after them
PLAIN = Ink()


class Evaluated(NamedTuple):
    """The agents of a generation, and how good they were."""

    generation: int
    env_steps: int
    genomes: Sequence[Genome]
    fitness: npt.NDArray[np.float64]  # -inf: dead
    errors: npt.NDArray[np.float64]  # standard error of each; nan if it is not known

    @property
    def order(self) -> npt.NDArray[np.int64]:
        """The agents' places in the population, the best first."""
        return np.argsort(-np.nan_to_num(self.fitness, nan=-np.inf), kind="stable")


def headline(found: Evaluated, best_ever: float, ink: Ink = PLAIN) -> str:
    """What one evaluation showed; `best_ever` is the score of the best agent so far, confirmed."""
    alive = found.fitness[np.isfinite(found.fitness)]
    start = ink.bold(f"generation {found.generation}") + f"  {found.env_steps:,} steps"
    if not len(alive):
        return f"{start}  {ink.bad('all agents are dead')}"
    dead = len(found.fitness) - len(alive)
    places = _places(found.fitness)
    return (
        f"{start}  mean fitness {alive.mean():.{places}f}"
        + f"  best so far {ink.good(f'{best_ever:.{places}f}')}"
        + (f"  {ink.bad(f'{dead} dead')}" if dead else "")
    )


def ranking(found: Evaluated, ink: Ink = PLAIN, everyone: bool = False) -> list[str]:
    """The agents as a table, the best first; many are shortened to the best and the worst."""
    fitness = _fitness(found)
    rows = [_row(found, rank, agent, fitness, ink) for rank, agent in enumerate(found.order, 1)]
    left_out = len(rows) - SHOWN - 1
    if left_out > 1 and not everyone:
        rows[SHOWN:-1] = [ink.dim(f"        … {left_out} more")]
    title = f"{'fitness ± error':<{len(fitness[0])}}"
    header = f"  rank  agent  parent  {'mutation':15}  {title}  {'lr':>9}  architecture"
    return [ink.dim(header), *rows]


def _fitness(found: Evaluated) -> list[str]:
    """Fitness and error of each agent, aligned."""
    places = _places(found.fitness)
    values = [f"{value:.{places}f}" if np.isfinite(value) else "dead" for value in found.fitness]
    errors = [f" ± {error:5.{places}f}" if np.isfinite(error) else "" for error in found.errors]
    wide, rest = max(7, *map(len, values)), max(8, *map(len, errors))
    return [f"{value:>{wide}}{error:<{rest}}" for value, error in zip(values, errors, strict=True)]


def _row(found: Evaluated, rank: int, agent: int, fitness: Sequence[str], ink: Ink) -> str:
    genome, own = found.genomes[agent], fitness[agent]
    origin = f"{'—' if genome.parent is None else str(genome.parent):>6}  {genome.mutation:15}"
    origin = ink.new(origin) if genome.born == found.generation > 0 else ink.dim(origin)
    if not np.isfinite(found.fitness[agent]):
        own = ink.bad(own)
    elif rank == 1:
        own = ink.good(own)
    return (
        f"  {rank:4d}  {genome.id:5d}  {origin}  {own}"
        f"  {describe_number(genome.hyperparameters['lr']):>9}"
        f"  {describe_architectures(genome)}"
    )


def time_line(seconds: Mapping[str, float], steps: int) -> str:
    """Where the time of a generation went: all of it, and the share of each stage."""
    total = sum(seconds.values())
    if not total:
        return "  time: nothing was measured"
    shares = sorted(seconds.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {100 * spent / total:.0f} %" for name, spent in shares if spent)
    return f"  time: {total:.1f} s, {steps / total:,.0f} steps/s; {parts}"


def hyperparameter_line(genomes: Sequence[Genome]) -> str:
    """Between which values the hyperparameters lie in which the agents differ."""
    ranges = []
    for name in HYPERPARAMETERS:
        values = [genome.hyperparameters[name] for genome in genomes]
        if (low := min(values)) != (high := max(values)):
            ranges.append(f"{name} {describe_number(low)} to {describe_number(high)}")
    return f"  hyperparameters: {', '.join(ranges) or 'the same for all agents'}"


def birth_lines(
    births: Sequence[Mapping[str, Any]], before: Sequence[Genome], ink: Ink = PLAIN
) -> Iterator[str]:
    """Who replaces whom: lines of the lineage as text, with the agents that were there `before`."""
    if not births:
        yield "  births: none, all agents stay"
    for born in births:
        genome = born["genome"]
        child, old = ink.new(f"agent {genome['id']}"), before[born["place"]].id
        earlier = born["copied"] < born["generation"] - 1  # the best ever, as it was then
        since = f" as of generation {born['copied']}" if earlier else ""
        yield (
            f"  birth: {child} replaces {old}, child of {genome['parent']}{since}:"
            f" {genome['mutation']} ({born['change']})"
        )


def _places(fitness: npt.NDArray[np.float64]) -> int:
    """Decimals that show what matters of fitness such as this."""
    finite = np.abs(fitness[np.isfinite(fitness)])
    return 1 if finite.max(initial=0.0) >= 2 else 3
