"""What is drawn of a run on W&B: curves by line of descent, and tables.

An agent's curve is that of its line of descent: its own fitness since its birth, before that its
parent's until the child left it, and so on up to the first ancestor: nothing of strangers.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from evorl.evolution import Ancestor, FitnessLine, Lineage, describe_architectures, left
from evorl.reporting.tracking.run_reader import RunReader, mean_change

POINTS = 10_000  # that W&B shows of a chart, and rows of a table
BIRTH_COLUMNS = (
    *("agent", "parent", "generation", "mutation", "change", "layers"),
    *("left_parent_after", "parent_fitness", "first_fitness", "effect"),
)  # and the hyperparameters


class Point(NamedTuple):
    """One generation of a line of descent."""

    ancestor: Ancestor
    measured: FitnessLine
    fitness: float


def curve(lineage: Lineage, agent: int, until: int | None = None) -> list[Point]:
    """The fitness of an agent and its ancestors, generation by generation where it is known."""
    return [
        Point(ancestor, measured, measured.fitness)
        for ancestor in lineage.ancestry(agent, until)
        for measured in ancestor.fitness
        if measured.fitness is not None
    ]


def births_table(lineage: Lineage) -> Iterator[list[Any]]:
    """A row for each agent ever born: BIRTH_COLUMNS and the hyperparameters."""
    for born in lineage.births.values():
        genome, effect = born.genome, lineage.effect(born)
        yield [
            *(genome.id, genome.parent, born.generation, genome.mutation, born.change),
            describe_architectures(genome),
            None if genome.parent is None else left(born),
            *(effect.parent, effect.first, effect.change),
            *map(float, genome.hyperparameters.values()),
        ]


def mutations_table(run: RunReader) -> list[list[Any]]:
    """Mutation, births, mean effect; the most frequent first."""
    kinds = sorted(run.effects, key=lambda kind: (-len(run.effects[kind]), kind))
    return [[kind, len(run.effects[kind]), mean_change(run.effects[kind])] for kind in kinds]


def charts(run: RunReader) -> dict[str, Any]:
    """Everything that is drawn, by name."""
    names = next(iter(run.lineage.births.values())).genome.hyperparameters
    births = list(births_table(run.lineage))[-POINTS:]
    found = {
        "births": _table([*BIRTH_COLUMNS, *names], births),
        "mutations": _table(["mutation", "births", "mean_effect"], mutations_table(run)),
    }
    if alive := run.alive():
        found["lineages/fitness"] = _fitness_of_all(run, alive[: POINTS // 10])
    if (best := run.best()) is not None:
        found |= _best_lineage(run, thinned(curve(run.lineage, *best), POINTS))
    return found


def _fitness_of_all(run: RunReader, agents: Sequence[int]) -> Any:
    """A curve for each agent of the latest generation, which is that of its line of descent."""
    import wandb

    lines = [thinned(curve(run.lineage, agent), POINTS // len(agents)) for agent in agents]
    return wandb.plot.line_series(
        xs=[[point.measured.env_steps for point in line] for line in lines],
        ys=[[point.fitness for point in line] for line in lines],
        keys=[f"agent {agent}" for agent in agents],
        title="fitness of each agent and its ancestors",
        xname="env_steps",
    )


def _best_lineage(run: RunReader, line: Sequence[Point]) -> dict[str, Any]:
    """The best agent so far and its ancestors: fitness, and the hyperparameters they had."""
    import wandb

    genomes = [point.ancestor.genome for point in line]
    moving = run.moving(
        {
            name: [float(genome.hyperparameters[name]) for genome in genomes]
            for name in genomes[0].hyperparameters
        }
    )
    columns: dict[str, Sequence[Any]] = {
        "env_steps": [point.measured.env_steps for point in line],
        "own_steps": [point.measured.own_steps for point in line],
        "generation": [point.measured.generation for point in line],
        "agent": [genome.id for genome in genomes],
        "mutation": [genome.mutation for genome in genomes],
        "fitness": [point.fitness for point in line],
        **moving,
    }
    found = {"best_lineage/ancestors": _table(columns, zip(*columns.values(), strict=True))}
    for name in ("fitness", *moving):
        table = _table(["env_steps", name], zip(columns["env_steps"], columns[name], strict=True))
        title = f"{name} of the best agent and its ancestors"
        found[f"best_lineage/{name}"] = wandb.plot.line(table, "env_steps", name, title=title)
    return found


def _table(columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> Any:
    import wandb

    return wandb.Table(columns=[*columns], data=[list(row) for row in rows])


def thinned(line: Sequence[Point], most: int) -> list[Point]:
    """At most this many points, evenly, with the last one."""
    stride = max(1, -(-len(line) // most))
    return list(line[::-1][::stride][::-1])
