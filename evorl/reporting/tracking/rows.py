"""What trackers are told of a generation: plain numbers by name, from a line of metrics.jsonl."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from evorl.config import RunConfig
from evorl.runs.statistics import interquartile_mean


class Row(NamedTuple):
    """One generation."""

    generation: int
    env_steps: int
    values: dict[str, float]


class Evolving(NamedTuple):
    """Hyperparameters that are worth a curve."""

    names: Collection[str]  # that evolve
    fixed: Mapping[str, float]  # what all agents start from; one that has another is worth it, too

    @classmethod
    def of(cls, config: RunConfig) -> "Evolving":
        """Those of a run."""
        return cls(config.drawn.keys() | config.mutated.keys(), config.algorithm.hyperparameters)

    def among(self, hyperparameters: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
        """Of all agents' values by name, those worth a curve."""
        return {
            name: values
            for name, values in hyperparameters.items()
            if name in self.names or any(value != self.fixed.get(name) for value in values)
        }


def values_of(line: Mapping[str, Any], evolving: Evolving) -> dict[str, float]:
    """A line of metrics.jsonl as numbers by name; what is not known is left out."""
    found: dict[str, float | None] = {
        "fitness/best_so_far": line["best"],
        "population/alive": sum(line["alive"]),
        "population/loss": _mean(line["loss"]),
        "population/exploration": _mean(line["exploration"]),
        "population/layers": fmean(len(hidden) for hidden in line["hidden"]),
        "population/units": fmean(sum(hidden) for hidden in line["hidden"]),
        "throughput/steps_per_second": line["steps_per_second"],
        "throughput/seconds": line["seconds"],
        "steps/evaluation": line["evaluation_steps"],
        "steps/updates": line["updates"],
        "steps/episodes": line["episodes"],
        "steps/failures": line["failures"],
    }
    found |= {f"time/{stage}": share for stage, share in line["shares"].items()}
    found |= _fitness(line, evolving)
    return {name: float(value) for name, value in found.items() if value is not None}


def _fitness(line: Mapping[str, Any], evolving: Evolving) -> dict[str, float]:
    """Of the agents that are alive, and which hyperparameters they had."""
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
    for name, values in evolving.among(line["hyperparameters"]).items():
        found[f"hyperparameters/{name}/best"] = values[place]
        found[f"hyperparameters/{name}/mean"] = fmean(values)
        found[f"hyperparameters/{name}/low"] = min(values)
        found[f"hyperparameters/{name}/high"] = max(values)
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
