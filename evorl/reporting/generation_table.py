"""A generation as text: a headline, a table of its agents, and their hyperparameters.

Columns keep their place from one generation to the next, so that a long run reads well.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evorl.evolution import describe_architectures, describe_number
from evorl.genome import Genome
from evorl.runs import decimals

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

SHOWN = 8  # agents at the top of a table that is shortened; the worst comes after them
GOOD, BAD, NEW, LESS = "green", "red", "cyan", "dim"


class Evaluated(NamedTuple):
    """The agents of a generation, and how good they were."""

    generation: int
    env_steps: int
    genomes: Sequence[Genome]
    fitness: npt.NDArray[np.float64]  # -inf: dead; NaN: no episode of it has ended
    errors: npt.NDArray[np.float64]  # standard error of each; nan if it is not known

    @property
    def places(self) -> int:
        """Decimals of such fitness."""
        return decimals(self.fitness.tolist(), self.errors.tolist())


def headline(found: Evaluated, best_ever: float) -> "Text":
    """What one evaluation showed; `best_ever` is the score of the best agent so far, confirmed."""
    from rich.text import Text

    alive = found.fitness[np.isfinite(found.fitness)]
    text = Text.assemble((f"generation {found.generation}", "bold"), f"  {found.env_steps:,} steps")
    dead = int((found.fitness == -np.inf).sum())
    if dead == len(found.fitness):
        return text.append("  all agents are dead", BAD)
    if not len(alive):
        return text.append("  no episode has ended")
    text.append(f"  mean fitness {alive.mean():.{found.places}f}  best so far ")
    text.append(f"{best_ever:.{found.places}f}", GOOD)
    if dead:
        text.append(f"  {dead} dead", BAD)
    return text


def ranking(found: Evaluated, everyone: bool = False) -> "Table":
    """The agents as a table, the best first; many are shortened to the best and the worst."""
    from rich.table import Table

    first = next(iter(found.genomes[0].hyperparameters), "")  # mostly the learning rate
    values = [f"{one:.{found.places}f}" for one in found.fitness]
    values = [{"-inf": "dead", "nan": "—"}.get(one, one) for one in values]
    wide = max(7, *map(len, values))  # of a fitness
    table = Table(box=None, padding=(0, 0, 0, 2), header_style="dim")
    for name in ("rank", "agent", "parent"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("mutation", no_wrap=True, min_width=15)
    table.add_column(f"{'fitness':>{wide}} ± error", no_wrap=True)
    table.add_column(first, justify="right", no_wrap=True, min_width=9)
    table.add_column("architecture", min_width=len("architecture"))
    left_out = 0 if everyone else len(found.genomes) - SHOWN - 1
    order = np.argsort(-np.nan_to_num(found.fitness, nan=-np.inf), kind="stable")
    for rank, agent in enumerate(order, 1):
        if left_out <= 1 or not SHOWN < rank < len(found.genomes):
            table.add_row(*_row(found, rank, agent, f"{values[agent]:>{wide}}"))
        elif rank == SHOWN + 1:
            table.add_row("", "", "", f"… {left_out} more", style=LESS)
    return table


def _row(found: Evaluated, rank: int, agent: int, fitness: str) -> Iterator["str | Text"]:
    from rich.text import Text

    genome, error = found.genomes[agent], found.errors[agent]
    origin = NEW if genome.born == found.generation > 0 else LESS
    dead = found.fitness[agent] == -np.inf
    yield str(rank)
    yield str(genome.id)
    yield Text("—" if genome.parent is None else str(genome.parent), origin)
    yield Text(genome.mutation, origin)
    known = f" ± {error:5.{found.places}f}" if np.isfinite(error) else ""
    yield Text(fitness + known, BAD if dead else GOOD if rank == 1 else "")
    yield next(map(describe_number, genome.hyperparameters.values()), "")
    yield describe_architectures(genome)


def actors_line(told: Mapping[str, Any], wanted: int, always: bool = False) -> "Text | None":
    """What the learner tells of its actors; without `always` only if something is off.

    That some messages are under way when a generation ends is as it should be.
    """
    from rich.text import Text

    refused = {name: count for name, count in told["refused"].items() if name != "generation"}
    missing = told["alive"] < wanted or told["gone"] > 0
    if not (missing or refused or always):
        return None
    among = f" of {wanted}" if told["alive"] <= wanted else ""  # more have joined
    text = Text.assemble("  actors: ", (f"{told['alive']}{among} alive", BAD * missing))
    if told["gone"]:
        text.append(f" ({told['gone']} gone)", BAD)
    text.append(f", lag {told['lag']:.1f} (at most {told['max_lag']}), queue {told['queue']:.1f}")
    text.append(f", {told['frames_per_second']:,.0f} frames per second")
    if refused:
        reasons = ", ".join(f"{count} {name}" for name, count in refused.items())
        text.append(f", refused: {reasons}", BAD)
    return text


def hyperparameter_line(genomes: Sequence[Genome]) -> str:
    """Between which values the hyperparameters lie in which the agents differ."""
    ranges = []
    for name in genomes[0].hyperparameters:
        values = [genome.hyperparameters[name] for genome in genomes]
        if (low := min(values)) != (high := max(values)):
            ranges.append(f"{name} {describe_number(low)} to {describe_number(high)}")
    return f"  hyperparameters: {', '.join(ranges) or 'the same for all agents'}"
