"""What is drawn of a run on W&B: curves by line of descent, and tables."""

from collections.abc import Iterable, Sequence
from typing import Any

from evorl.reporting.tracking.family import BIRTH_COLUMNS, Point, births_table, curve
from evorl.reporting.tracking.story import Story

POINTS = 10_000  # that W&B shows of a chart, and rows of a table


def charts(story: Story) -> dict[str, Any]:
    """Everything that is drawn, by name."""
    found = {
        "births": _table(BIRTH_COLUMNS, list(births_table(story.lineage))[-POINTS:]),
        "mutations": _table(["mutation", "births", "mean_effect"], story.mutations.table()),
    }
    alive = story.alive()
    if alive:
        found["lineages/fitness"] = _fitness_of_all(story, alive)
    best = story.best()
    if best is not None:
        line = _thinned(curve(story.lineage, *best), POINTS)
        found |= _best_lineage(line, story)
    return found


def _fitness_of_all(story: Story, agents: Sequence[int]) -> Any:
    """A curve for each agent of the latest generation, which is that of its line of descent."""
    import wandb

    agents = agents[: POINTS // 10]
    lines = [_thinned(curve(story.lineage, agent), POINTS // len(agents)) for agent in agents]
    return wandb.plot.line_series(
        xs=[[point.measured.env_steps for point in line] for line in lines],
        ys=[[point.fitness for point in line] for line in lines],
        keys=[f"agent {agent}" for agent in agents],
        title="fitness of each agent and its ancestors",
        xname="env_steps",
    )


def _best_lineage(line: Sequence[Point], story: Story) -> dict[str, Any]:
    """The best agent so far and its ancestors: fitness, and the hyperparameters they had."""
    import wandb

    genomes = [point.ancestor.genome for point in line]
    every = {
        name: [float(genome.hyperparameters[name]) for genome in genomes]
        for name in genomes[0].hyperparameters
    }
    schedules = story.evolving.among(every)
    columns = ["env_steps", "own_steps", "generation", "agent", "mutation", "fitness", *schedules]
    rows = [
        [
            *(point.measured.env_steps, point.measured.own_steps, point.measured.generation),
            *(genome.id, genome.mutation, point.fitness),
            *(values[place] for values in schedules.values()),
        ]
        for place, (point, genome) in enumerate(zip(line, genomes, strict=True))
    ]
    found = {"best_lineage/ancestors": _table(columns, rows)}
    for name in ("fitness", *schedules):
        place = columns.index(name)
        table = _table(["env_steps", name], [[row[0], row[place]] for row in rows])
        title = f"{name} of the best agent and its ancestors"
        found[f"best_lineage/{name}"] = wandb.plot.line(table, "env_steps", name, title=title)
    return found


def _table(columns: Iterable[str], rows: list[list[Any]]) -> Any:
    import wandb

    return wandb.Table(columns=[*columns], data=rows)


def _thinned(line: Sequence[Point], most: int) -> list[Point]:
    """So many points at most, evenly, with the last one."""
    stride = max(1, -(-len(line) // most))
    return list(line[::-1][::stride][::-1])
