"""What trackers are given of a run: the numbers of each generation, by name."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from evorl.config import RunConfig
from evorl.evolution import Lineage, parse_line
from evorl.reporting.importance import find_importance, sizes_of
from evorl.reporting.training_data import CURVES
from evorl.runs import LINEAGE, METRICS, interquartile_mean, read_lines

MOST_ROWS = 10_000  # of W&B's tables


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

    def points(self) -> list[dict[str, float]]:
        """Training curves within the generation read last: means of all agents, by steps."""
        told = self.latest.get("training", {"env_steps": []})
        found = []
        for k, step in enumerate(told["env_steps"]):
            means = {f"training/{name}": _mean(told[name][k]) for name in CURVES}
            known = {name: value for name, value in means.items() if value is not None}
            found.append({"env_steps": float(step)} | known)
        return found

    def evaluations(self) -> tuple[list[str | int], list[list[Any]]]:
        """Names of columns, and a row for every evaluation of an agent: for parallel coordinates.

        Of too many some are left out, evenly.
        """
        lines, found = self._all_lines(), list[dict[str, Any]]()
        moving = self._names(lines)
        for line in lines:
            for place, id in enumerate(line["ids"]):
                genome = self.lineage.births[id].genome
                own = {name: line["hyperparameters"][name][place] for name in moving}
                about = {"generation": line["generation"], "agent": id, "parent": genome.parent}
                fitness = {"fitness": line["fitness"][place]}
                found.append(about | own | sizes_of(genome) | fitness)
        kept = found[:: -(-len(found) // MOST_ROWS) or 1]
        return list(found[0]) if found else [], [list(one.values()) for one in kept]

    def importance(self) -> dict[str, float]:
        """What each hyperparameter tells of fitness, with its interval, by name."""
        lines, found = self._all_lines(), dict[str, float]()
        for what, own in find_importance(lines, self.lineage, self._names(lines)).items():
            if own is not None:
                for name, values in {"explained": own.explained, **own.features}.items():
                    place = f"importance/{what}/{name}"
                    found |= zip((place, f"{place}_low", f"{place}_high"), values, strict=True)
        return found

    def _all_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in read_lines(self.path / METRICS)]

    def _names(self, lines: Sequence[Mapping[str, Any]]) -> list[str]:
        """Hyperparameters that are not the same for all agents at all times."""
        known = lines[0]["hyperparameters"] if lines else {}
        return [
            name
            for name in known
            if len({value for line in lines for value in line["hyperparameters"][name]}) > 1
        ]

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
        found |= _actors(line)
        measured = line.get("training", {}).get("measured", {})
        found |= {f"training/{name}": _mean(values) for name, values in measured.items()}
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
        for name, values in self._moving(line["hyperparameters"]).items():
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

    def _moving(self, hyperparameters: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
        """Those worth a curve: that evolve, or of which an agent has a value of its own."""
        return {
            name: values
            for name, values in hyperparameters.items()
            if name in self._evolving or any(value != self._common.get(name) for value in values)
        }


def _actors(line: Mapping[str, Any]) -> dict[str, float]:
    """What there is to tell of actors, where there are any."""
    told = dict(line.get("actors") or {})
    refused = told.pop("refused", {})
    found = {f"actors/{name}": value for name, value in told.items()}
    if told:
        found["actors/refused"] = sum(refused.values())
    return found | {f"actors/refused_{reason}": count for reason, count in refused.items()}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
