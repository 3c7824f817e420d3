"""evorl lineage and schedule: how an agent came to be, and the hyperparameters that made it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from evorl.cli.shared import AGENT, JSON, RUN, echo_json, table
from evorl.errors import RunError

if TYPE_CHECKING:
    from evorl.evolution import Ancestor
    from evorl.runs import RunDirectory


@click.command
@RUN
@AGENT
@JSON
def lineage(run: Path, agent: int | None, as_json: bool) -> None:
    """Print how the best agent of the run directory RUN came to be: ancestors, and what changed.

    Works while the run trains, too.

    \b
    evorl lineage runs/cartpole
    evorl lineage runs/cartpole --agent 17
    """
    from evorl.runs import RunDirectory

    directory = RunDirectory.open(run)
    descent = _find_descent(directory, agent)
    if as_json:
        echo_json({"path": str(run)} | descent.to_json())
        return
    score = "not finished"
    if directory.finished:
        score = f"held-out mean {directory.summary().mean}"
    click.echo(f"{run}: {directory.option('env.id')}, {score}")
    click.echo("\n".join([descent.title, "", *_ancestry_table(descent.ancestry)]))


@click.command
@RUN
@AGENT
def schedule(run: Path, agent: int | None) -> None:
    """Print the hyperparameters that the best agent of the run directory RUN trained with, as YAML.

    They go by the agent's own environment steps, over all of its ancestors, up to where it was at
    its best (another agent: up to its last evaluation). Train by them again with --replay-schedule.

    \b
    evorl schedule runs/cartpole > schedule.yaml
    evorl train configs/dqn/cartpole.yaml --replay-schedule schedule.yaml seed=101
    """
    from evorl.evolution import schedule_of
    from evorl.runs import RunDirectory

    directory = RunDirectory.open(run)
    if directory.schedule() is not None:
        raise RunError(f"{run}: the run followed a schedule itself; use that one again")
    descent = _find_descent(directory, agent)
    last = descent.ancestry[-1]
    if not last.fitness:
        raise RunError(f"{run}: agent {last.genome.id} was not evaluated yet")
    names = directory.option("env.id"), directory.option("algorithm.name")
    found = schedule_of(*names, descent.ancestry, descent.own_steps)
    heading = (
        f"The schedule of agent {last.genome.id} of {run}: what it trained with,"
        " by its own environment steps."
    )
    click.echo(found.to_yaml(heading), nl=False)


class Descent(NamedTuple):
    """An agent and its ancestors."""

    ancestry: "list[Ancestor]"
    own_steps: int  # training steps of the line, up to the agent's best or its last evaluation
    title: str

    def to_json(self) -> dict[str, Any]:
        """For scripts: the first ancestor first."""
        ancestors = [
            {
                "id": one.genome.id,
                "generations": [one.generations.start, one.generations.stop - 1],
                "mutation": one.genome.mutation,
                "change": change,
                "fitness": [line.fitness for line in one.fitness],
                "errors": [line.error for line in one.fitness],
                "genome": one.genome.to_json(),
            }
            for one, change in zip(self.ancestry, _changes(self.ancestry), strict=True)
        ]
        return {"own_steps": self.own_steps, "ancestors": ancestors}


def _find_descent(directory: "RunDirectory", agent: int | None) -> Descent:
    """The line of an agent, or of the run's best one; RunError if the directory has none."""
    from evorl.runs import decimals

    known = directory.lineage()
    best = directory.best_agent() if agent is None else None
    if agent is None and best is None:
        raise RunError(f"{directory.path}: has no best agent yet")
    id = agent if best is None else best.id
    if id is None or id not in known.births:
        ids = f"from {min(known.births)} to {max(known.births)}"
        raise RunError(f"{directory.path}: no agent {id} in its lineage; ids go {ids}")
    if best is None:
        ancestry = known.ancestry(id)
        steps = ancestry[-1].end_steps
        return Descent(ancestry, steps, f"agent {id}, {steps:,} own training steps")
    fitness = best.fitness if best.confirmed is None else best.confirmed
    how = "fitness" if best.confirmed is None else "confirmed fitness"
    ancestry = known.ancestry(id, until=best.generation)
    places = decimals([fitness], _errors(ancestry))
    title = (
        f"agent {id}, the best: {how} {fitness:.{places}f}"
        f" in generation {best.generation}, after {best.own_steps:,} own training steps"
    )
    return Descent(ancestry, best.own_steps, title)


def _ancestry_table(ancestry: "Sequence[Ancestor]") -> list[str]:
    """A line for each ancestor; the first says what it started with."""
    rows = []
    for one, change, fitness in zip(ancestry, _changes(ancestry), _fitness(ancestry), strict=True):
        lived = one.generations
        when = f"{lived[0]}–{lived[-1]}" if len(lived) > 1 else str(lived.start)
        rows.append((when, str(one.genome.id), one.genome.mutation, change, *fitness))
    header = ("generations", "id", "mutation", "what changed", "fitness", "± error")
    return table(header, rows, ">><<>>", wraps=[3])


def _changes(ancestry: "Sequence[Ancestor]") -> list[str]:
    from evorl.evolution import describe_architectures, describe_number

    first, values = ancestry[0].genome, [one.genome.hyperparameters for one in ancestry]
    moved = [name for name in first.hyperparameters if len({each[name] for each in values}) > 1]
    start = [f"{name} {describe_number(first.hyperparameters[name])}" for name in moved]
    begin = ", ".join([describe_architectures(first), *start])
    return [begin, *(one.change for one in ancestry[1:])]


def _fitness(ancestry: "Sequence[Ancestor]") -> Iterator[tuple[str, str]]:
    """First and last, and the error of the last."""
    from evorl.runs import decimals

    known = [line.fitness for one in ancestry for line in one.fitness if line.fitness is not None]
    places = decimals(known, _errors(ancestry))
    for one in ancestry:
        ends = [one.fitness[0], one.fitness[-1]] if len(one.fitness) > 1 else one.fitness
        shown = ["dead" if x.fitness is None else f"{x.fitness:.{places}f}" for x in ends]
        error = one.fitness[-1].error if one.fitness else None
        yield " → ".join(shown) or "—", "" if error is None else f"± {error:.{places}f}"


def _errors(ancestry: "Sequence[Ancestor]") -> list[float]:
    """Those that are shown, as far as they are known."""
    last = [one.fitness[-1].error for one in ancestry if one.fitness]
    return [error for error in last if error is not None]
