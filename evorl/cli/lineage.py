"""evorl lineage: how an agent came to be."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evorl.cli.completing import RUN
from evorl.cli.text import decimals, keep_together, show_estimate, table
from evorl.errors import one_line
from evorl.evolution.change import describe_architectures, describe_number
from evorl.evolution.lineage import Ancestor, Fitness
from evorl.genome import HYPERPARAMETERS

if TYPE_CHECKING:
    from evorl.cli.descent import Descent
    from evorl.runs.directory import RunDirectory


@click.command(short_help="Print how the best agent of a run came to be.")
@click.argument("run", type=RUN)
@click.option("--agent", type=int, metavar="ID", help="Another agent than the best one.")
def lineage(run: Path, agent: int | None) -> None:
    """Print how the best agent of the run directory RUN came to be: ancestors, and what changed.

    Works while the run is going on, too.

    \b
    evorl lineage runs/cartpole
    evorl lineage runs/cartpole --agent 17
    """
    from evorl.cli.descent import find_descent
    from evorl.runs.directory import RunDirectory

    directory = RunDirectory.open(run)
    descent = find_descent(directory, agent)
    click.echo("\n".join([*_heading(directory, descent), "", *ancestry_table(descent.ancestry)]))


def _heading(directory: "RunDirectory", descent: "Descent") -> list[str]:
    env = directory.config().env.id
    score = "not finished"
    if directory.finished:
        mean = directory.summary().score.mean
        score = f"held-out mean {show_estimate(mean, decimals(mean.value))}"
    lines = [f"{directory.path}: {env}, {score}"]
    if (best := descent.best) is None:
        lines.append(f"agent {descent.id}, {descent.own_steps:,} own training steps")
    else:
        fitness = best.fitness if best.confirmed is None else best.confirmed
        how = "fitness" if best.confirmed is None else "confirmed fitness"
        lines.append(
            f"agent {descent.id}, the best: {how} {fitness:.{decimals(fitness)}f}"
            f" in generation {best.generation}, after {descent.own_steps:,} own training steps"
        )
    if descent.scheduled:
        lines.append("its hyperparameters followed a schedule, which is not shown here")
    return lines


def ancestry_table(ancestry: Sequence[Ancestor]) -> list[str]:
    """A line for each ancestor; the first says what it started with."""
    columns = zip(
        (_generations(one) for one in ancestry),
        (str(one.genome.id) for one in ancestry),
        (one_line(one.genome.mutation) for one in ancestry),
        (keep_together(one_line(change)) for change in _changes(ancestry)),
        _fitness(ancestry),
        strict=True,
    )
    header = ("generations", "id", "mutation", "what changed", "fitness ± error")
    return table(header, list(columns), ">><<<", wraps=[3])


def _generations(ancestor: Ancestor) -> str:
    lived = ancestor.generations
    return f"{lived[0]}–{lived[-1]}" if len(lived) > 1 else str(lived.start)


def _changes(ancestry: Sequence[Ancestor]) -> list[str]:
    first, values = ancestry[0].genome, [one.genome.hyperparameters for one in ancestry]
    moved = [name for name in HYPERPARAMETERS if len({each[name] for each in values}) > 1]
    start = [f"{name} {describe_number(first.hyperparameters[name])}" for name in moved]
    begin = ", ".join([describe_architectures(first), *start])
    return [begin, *(one.change for one in ancestry[1:])]


def _fitness(ancestry: Sequence[Ancestor]) -> list[str]:
    """First, last and error, aligned among all rows."""
    known = [line.fitness for one in ancestry for line in one.fitness if line.fitness is not None]
    places = decimals(*known)

    def show(line: Fitness) -> str:
        return "dead" if line.fitness is None else f"{line.fitness:.{places}f}"

    parts = []
    for one in ancestry:
        first = show(one.fitness[0]) if len(one.fitness) > 1 else ""
        last = show(one.fitness[-1]) if one.fitness else "—"
        error = one.fitness[-1].error if one.fitness else None
        parts.append((first, last, "" if error is None else f"{error:.{places}f}"))
    wide = [max(map(len, column)) for column in zip(*parts, strict=True)]
    return [
        f"{first:>{wide[0]}}{' → ' if first else '   '}{last:>{wide[1]}}"
        + (f" ± {error:>{wide[2]}}" if error else "")
        for first, last, error in parts
    ]
