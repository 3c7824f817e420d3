"""evorl lineage: how an agent came to be."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from evorl.cli.options import RUN, agent
from evorl.cli.tables import decimals, keep_together, show_estimate, table
from evorl.errors import RunError

if TYPE_CHECKING:
    from evorl.evolution import Ancestor
    from evorl.runs import RunDirectory, SavedAgent


@click.command
@click.argument("run", type=RUN)
@agent("Another agent than the best one.")
def lineage(run: Path, agent: int | None) -> None:
    """Print how the best agent of the run directory RUN came to be: ancestors, and what changed.

    Works while the run trains, too.

    \b
    evorl lineage runs/cartpole
    evorl lineage runs/cartpole --agent 17
    """
    from evorl.runs import RunDirectory

    directory = RunDirectory.open(run)
    descent = find_descent(directory, agent)
    click.echo("\n".join([*_heading(directory, descent), "", *ancestry_table(descent.ancestry)]))


@dataclass(frozen=True)
class BestFacts:
    """What is known of a run's best agent."""

    generation: int
    own_steps: int  # training steps of its line
    fitness: float
    confirmed: float | None = None  # its fitness on further episodes


class Descent(NamedTuple):
    """An agent and its ancestors."""

    ancestry: "list[Ancestor]"
    own_steps: int  # training steps of the line, up to the agent's best or its last evaluation
    best: BestFacts | None  # None: it is not the run's best agent
    scheduled: bool  # its hyperparameters changed while it lived

    @property
    def id(self) -> int:
        """The agent's."""
        return self.ancestry[-1].genome.id


def find_descent(directory: "RunDirectory", agent: int | None) -> Descent:
    """The line of an agent, or of the run's best one; RunError if the directory has none."""
    from evorl.runs import BEST

    lineage = directory.lineage()
    if agent is None or (directory.path / BEST).exists():
        best = directory.best()
        if agent is None or agent == best.genome.id:
            return _descent_of_best(directory, best)
    if agent not in lineage.births:
        ids = f"from {min(lineage.births)} to {max(lineage.births)}"
        raise RunError(f"{directory.path}: no agent {agent}; ids go {ids}")
    ancestry = lineage.ancestry(agent)
    return Descent(ancestry, ancestry[-1].end_steps, None, False)


def _descent_of_best(directory: "RunDirectory", best: "SavedAgent") -> Descent:
    facts, lineage = _facts(directory, best), directory.lineage()
    another = RunError(f"{directory.path}: best agent and lineage are not of the same run")
    born = lineage.births.get(best.genome.id)
    # hyperparameters may have followed a schedule since
    if born is None or best.genome != replace(
        born.genome, hyperparameters=best.genome.hyperparameters
    ):
        raise another
    ancestry = lineage.ancestry(best.genome.id, until=facts.generation)
    if facts.own_steps <= ancestry[-1].own_steps:
        raise another
    return Descent(ancestry, facts.own_steps, facts, scheduled=best.genome != born.genome)


def _facts(directory: "RunDirectory", best: "SavedAgent") -> BestFacts:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(BestFacts).validate_python(best.facts)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise RunError(
            f"{directory.path}: the best agent's facts are not of this version: {where}"
        ) from None


def _heading(directory: "RunDirectory", descent: Descent) -> list[str]:
    env = directory.config().env.id
    score = "not finished"
    if directory.finished:
        mean = directory.summary().mean
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


def ancestry_table(ancestry: "Sequence[Ancestor]") -> list[str]:
    """A line for each ancestor; the first says what it started with."""
    columns = zip(
        (_generations(one.generations) for one in ancestry),
        (str(one.genome.id) for one in ancestry),
        (one.genome.mutation for one in ancestry),
        (keep_together(change) for change in _changes(ancestry)),
        *zip(*_fitness(ancestry), strict=True),
        strict=True,
    )
    header = ("generations", "id", "mutation", "what changed", "fitness", "± error")
    return table(header, list(columns), ">><<>>", wraps=[3])


def _generations(lived: range) -> str:
    return f"{lived[0]}–{lived[-1]}" if len(lived) > 1 else str(lived.start)


def _changes(ancestry: "Sequence[Ancestor]") -> list[str]:
    from evorl.evolution import describe_architectures, describe_number

    first, values = ancestry[0].genome, [one.genome.hyperparameters for one in ancestry]
    moved = [name for name in first.hyperparameters if len({each[name] for each in values}) > 1]
    start = [f"{name} {describe_number(first.hyperparameters[name])}" for name in moved]
    begin = ", ".join([describe_architectures(first), *start])
    return [begin, *(one.change for one in ancestry[1:])]


def _fitness(ancestry: "Sequence[Ancestor]") -> Iterator[tuple[str, str]]:
    """First and last, and the error of the last."""
    known = [line.fitness for one in ancestry for line in one.fitness if line.fitness is not None]
    places = decimals(*known)
    for one in ancestry:
        ends = [one.fitness[0], one.fitness[-1]] if len(one.fitness) > 1 else one.fitness
        shown = ["dead" if x.fitness is None else f"{x.fitness:.{places}f}" for x in ends]
        error = one.fitness[-1].error if one.fitness else None
        yield " → ".join(shown) or "—", "" if error is None else f"± {error:.{places}f}"
