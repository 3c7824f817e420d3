"""A generation as text: a headline, a table of its agents, and their hyperparameters.

Columns keep their place from one generation to the next, so that a long run reads well.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from evorl.evolution import describe_architectures, describe_number
from evorl.genome import Genome

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
    fitness: npt.NDArray[np.float64]  # -inf: dead
    errors: npt.NDArray[np.float64]  # standard error of each; nan if it is not known

    @property
    def places(self) -> int:
        """Decimals that show what matters of such fitness."""
        finite = np.abs(self.fitness[np.isfinite(self.fitness)])
        return 1 if finite.max(initial=0.0) >= 2 else 3


def headline(found: Evaluated, best_ever: float) -> "Text":
    """What one evaluation showed; `best_ever` is the score of the best agent so far, confirmed."""
    from rich.text import Text

    alive = found.fitness[np.isfinite(found.fitness)]
    text = Text.assemble((f"generation {found.generation}", "bold"), f"  {found.env_steps:,} steps")
    if not len(alive):
        return text.append("  all agents are dead", BAD)
    text.append(f"  mean fitness {alive.mean():.{found.places}f}  best so far ")
    text.append(f"{best_ever:.{found.places}f}", GOOD)
    if dead := len(found.fitness) - len(alive):
        text.append(f"  {dead} dead", BAD)
    return text


def ranking(found: Evaluated, everyone: bool = False) -> "Table":
    """The agents as a table, the best first; many are shortened to the best and the worst."""
    from rich.table import Table

    first = next(iter(found.genomes[0].hyperparameters), "")  # mostly the learning rate
    values = [f"{one:.{found.places}f}" if np.isfinite(one) else "dead" for one in found.fitness]
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
    alive = np.isfinite(found.fitness[agent])
    yield str(rank)
    yield str(genome.id)
    yield Text("—" if genome.parent is None else str(genome.parent), origin)
    yield Text(genome.mutation, origin)
    known = f" ± {error:5.{found.places}f}" if np.isfinite(error) else ""
    yield Text(fitness + known, BAD if not alive else GOOD if rank == 1 else "")
    yield next(map(describe_number, genome.hyperparameters.values()), "")
    yield describe_architectures(genome)


def hyperparameter_line(genomes: Sequence[Genome]) -> str:
    """Between which values the hyperparameters lie in which the agents differ."""
    ranges = []
    for name in genomes[0].hyperparameters:
        values = [genome.hyperparameters[name] for genome in genomes]
        if (low := min(values)) != (high := max(values)):
            ranges.append(f"{name} {describe_number(low)} to {describe_number(high)}")
    return f"  hyperparameters: {', '.join(ranges) or 'the same for all agents'}"
