"""What trackers are given of a run: the numbers of each generation, and on W&B curves and tables.

An agent's curve is that of its line of descent: its own fitness since its birth, before that its
parent's until the child left it, and so on up to the first ancestor: nothing of strangers.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from evorl.config import RunConfig
from evorl.evolution import FitnessLine, Lineage, describe_architectures, left, parse_line
from evorl.genome import Genome
from evorl.reporting.run_data import read_best
from evorl.runs import LINEAGE, METRICS, interquartile_mean, read_lines

POINTS = 10_000  # that W&B shows of a chart, and rows of a table
BIRTH_COLUMNS = (
    *("agent", "parent", "generation", "mutation", "change", "layers"),
    *("left_parent_after", "parent_fitness", "first_fitness", "effect"),
)  # and the hyperparameters

Curve = Sequence[tuple[Genome, FitnessLine]]


class RunReader:
    """Reads metrics.jsonl and lineage.jsonl as they grow."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        self.path = path
        self.lineage = Lineage()
        self.latest: dict[str, Any] = {}  # line of metrics.jsonl
        self._effects: dict[str, list[float | None]] = {}  # of all children, by kind of mutation
        self._lines = {METRICS: 0, LINEAGE: 0}  # that were read
        self._evolving = config.drawn.keys() | config.mutated.keys()
        self._common = config.algorithm.model_dump()  # what all agents start from

    def new_rows(self) -> Iterator[dict[str, float]]:
        """The generations that were not read yet, as numbers by name."""
        for line in self._new_lines(LINEAGE):
            self.lineage.add(parse_line(line))
        for line in self._new_lines(METRICS):
            self.latest = json.loads(line)
            yield self.values(self.latest) | self._mutations(self.latest)

    def _new_lines(self, name: str) -> list[bytes]:
        """Whole lines of a file that were not there at the last call."""
        new = read_lines(self.path / name)[self._lines[name] :]
        self._lines[name] += len(new)
        return new

    def values(self, line: Mapping[str, Any]) -> dict[str, float]:
        """A line of metrics.jsonl as numbers by name; what is not known is left out."""
        found: dict[str, float | None] = {
            "generation": line["generation"],
            "env_steps": line["env_steps"],
            "fitness/best_so_far": line["best"],
            "population/alive": sum(line["alive"]),
            "population/loss": _mean(line["loss"]),
            "population/exploration": _mean(line["exploration"]),
            "throughput/steps_per_second": line["steps_per_second"],
            "throughput/seconds": line["seconds"],
            "steps/evaluation": line["evaluation_steps"],
            "steps/updates": line["updates"],
            "steps/episodes": line["episodes"],
            "steps/failures": line["failures"],
        }
        for network, each in line["hidden"].items():
            name = "population" if len(line["hidden"]) == 1 else f"population/{network}"
            found[f"{name}/layers"] = fmean(map(len, each))
            found[f"{name}/units"] = fmean(map(sum, each))
        found |= {f"time/{stage}": share for stage, share in line["shares"].items()}
        found |= self._fitness(line)
        return {name: float(value) for name, value in found.items() if value is not None}

    def _fitness(self, line: Mapping[str, Any]) -> dict[str, float]:
        """Of the agents that are alive, and which hyperparameters all have."""
        fitness = [value for value in line["fitness"] if value is not None]
        if not fitness:
            return {}
        place = line["fitness"].index(max(fitness))
        found = {
            "fitness/best": max(fitness),
            "fitness/mean": fmean(fitness),
            "fitness/worst": min(fitness),
            "fitness/iqm": float(interquartile_mean(np.array(fitness))),
            "fitness/best_agent": line["ids"][place],
        }
        for name, values in self.moving(line["hyperparameters"]).items():
            found[f"hyperparameters/{name}/best"] = values[place]
            found[f"hyperparameters/{name}/mean"] = fmean(values)
            found[f"hyperparameters/{name}/low"] = min(values)
            found[f"hyperparameters/{name}/high"] = max(values)
        return found

    def _mutations(self, line: Mapping[str, Any]) -> dict[str, float]:
        """How many children there are by kind of mutation, and what it brought on average."""
        for born in (self.lineage.births[agent] for agent in line["ids"]):
            if born.generation == line["generation"] and born.genome.parent is not None:
                effects = self._effects.setdefault(born.genome.mutation, [])
                effects.append(self.lineage.effect(born).change)
        found: dict[str, float] = {}
        for kind, effects in self._effects.items():
            name = f"mutations/{kind.replace(' ', '_')}"
            found[f"{name}/births"] = float(len(effects))
            if (mean := _mean(effects)) is not None:
                found[f"{name}/effect"] = mean
        return found

    def moving(self, hyperparameters: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
        """Those worth a curve: that evolve, or of which an agent has a value of its own."""
        return {
            name: values
            for name, values in hyperparameters.items()
            if name in self._evolving or any(value != self._common.get(name) for value in values)
        }


def charts(run: RunReader) -> dict[str, Any]:
    """Everything that W&B draws of a run, by name."""
    names = next(iter(run.lineage.births.values())).genome.hyperparameters
    births = list(births_table(run.lineage))[-POINTS:]
    found = {"births": _table([*BIRTH_COLUMNS, *names], births)}
    pairs = zip(run.latest["ids"], run.latest["fitness"], strict=True)
    if alive := [agent for agent, fitness in pairs if fitness is not None]:
        found["lineages/fitness"] = _fitness_of_all(run.lineage, alive[: POINTS // 10])
    if (best := read_best(run.path, run.lineage)) is not None:
        line = curve(run.lineage, best["id"], best["generation"])
        found |= _best_lineage(run, thinned(line, POINTS))
    return found


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


def curve(lineage: Lineage, agent: int, until: int | None = None) -> Curve:
    """The fitness of an agent and its ancestors, generation by generation where it is known."""
    return [
        (ancestor.genome, line)
        for ancestor in lineage.ancestry(agent, until)
        for line in ancestor.fitness
        if line.fitness is not None
    ]


def thinned(line: Curve, most: int) -> Curve:
    """At most this many points, evenly, with the last one."""
    stride = max(1, -(-len(line) // most))
    return line[::-1][::stride][::-1]


def _fitness_of_all(lineage: Lineage, agents: Sequence[int]) -> Any:
    """A curve for each agent of the latest generation, which is that of its line of descent."""
    import wandb

    lines = [thinned(curve(lineage, agent), POINTS // len(agents)) for agent in agents]
    return wandb.plot.line_series(
        xs=[[point.env_steps for _, point in line] for line in lines],
        ys=[[point.fitness for _, point in line] for line in lines],
        keys=[f"agent {agent}" for agent in agents],
        title="fitness of each agent and its ancestors",
        xname="env_steps",
    )


def _best_lineage(run: RunReader, line: Curve) -> dict[str, Any]:
    """The best agent so far and its ancestors: fitness, and the hyperparameters they had."""
    import wandb

    genomes = [genome for genome, _ in line]
    names = genomes[0].hyperparameters
    moving = run.moving({n: [float(one.hyperparameters[n]) for one in genomes] for n in names})
    columns: dict[str, Sequence[Any]] = {
        "env_steps": [point.env_steps for _, point in line],
        "own_steps": [point.own_steps for _, point in line],
        "generation": [point.generation for _, point in line],
        "agent": [genome.id for genome in genomes],
        "mutation": [genome.mutation for genome in genomes],
        "fitness": [point.fitness for _, point in line],
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


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
