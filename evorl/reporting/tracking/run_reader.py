"""What the files of a run say so far, generation by generation: plain numbers by name."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from evorl.config import RunConfig
from evorl.evolution import Effect, Lineage, parse_line
from evorl.runs import BEST, FACTS, LINEAGE, METRICS, RunDirectory, interquartile_mean, read_lines


class Row(NamedTuple):
    """One generation."""

    generation: int
    env_steps: int
    values: dict[str, float]


class RunReader:
    """Reads metrics.jsonl and lineage.jsonl as they grow."""

    def __init__(self, directory: RunDirectory, config: RunConfig) -> None:
        self.path = directory.path
        self.lineage = Lineage()
        self.effects: dict[str, list[Effect]] = {}  # of all children so far, by kind of mutation
        self.latest: dict[str, Any] = {}  # line of metrics.jsonl
        self._lines = {METRICS: 0, LINEAGE: 0}  # that were read
        self._evolving = config.drawn.keys() | config.mutated.keys()
        self._common = config.algorithm.model_dump()  # what all agents start from

    def new_rows(self) -> Iterator[Row]:
        """The generations that were not read yet."""
        for line in self._new_lines(LINEAGE):
            self.lineage.add(parse_line(line))
        for text in self._new_lines(METRICS):
            yield self._row(json.loads(text))

    def _new_lines(self, name: str) -> list[bytes]:
        """Whole lines of a file that were not there at the last call."""
        new = read_lines(self.path / name)[self._lines[name] :]
        self._lines[name] += len(new)
        return new

    def _row(self, line: dict[str, Any]) -> Row:
        self.latest = line
        for agent in line["ids"]:
            born = self.lineage.births[agent]
            if born.generation == line["generation"] and born.genome.parent is not None:
                effects = self.effects.setdefault(born.genome.mutation, [])
                effects.append(self.lineage.effect(born))
        values = self.values(line) | _mutations(self.effects)
        return Row(line["generation"], line["env_steps"], values)

    def values(self, line: Mapping[str, Any]) -> dict[str, float]:
        """A line of metrics.jsonl as numbers by name; what is not known is left out."""
        found: dict[str, float | None] = {
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
        known = [(one, place) for place, one in enumerate(line["fitness"]) if one is not None]
        if not known:
            return {}
        fitness = [value for value, _ in known]
        best, place = max(known, key=lambda one: one[0])
        found = {
            "fitness/best": best,
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

    def moving(self, hyperparameters: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
        """Those worth a curve: that evolve, or of which an agent has a value of its own."""
        return {
            name: values
            for name, values in hyperparameters.items()
            if name in self._evolving or any(value != self._common.get(name) for value in values)
        }

    def alive(self) -> list[int]:
        """The agents of the latest generation, the best first; the dead are left out."""
        pairs = zip(self.latest["fitness"], self.latest["ids"], strict=True)
        known = [(fitness, agent) for fitness, agent in pairs if fitness is not None]
        return [agent for _, agent in sorted(known, reverse=True)]

    def best(self) -> tuple[int, int] | None:
        """The best agent so far, and the generation at whose end it was seen."""
        path = self.path / BEST / FACTS
        if not path.exists():
            return None
        known = json.loads(path.read_bytes())
        return known["genome"]["id"], known["facts"]["generation"]


def mean_change(effects: Iterable[Effect]) -> float | None:
    """What mutations brought on average; None if no child and its parent were both alive."""
    return _mean(effect.change for effect in effects)


def _mutations(effects: Mapping[str, Sequence[Effect]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind, children in effects.items():
        name = f"mutations/{kind.replace(' ', '_')}"
        found[f"{name}/births"] = float(len(children))
        if (mean := mean_change(children)) is not None:
            found[f"{name}/effect"] = mean
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
