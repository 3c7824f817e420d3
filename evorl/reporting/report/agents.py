"""Every agent of a run with what was measured of it, generation by generation.

A row is a line of metrics.jsonl. An agent's lists begin with its first row, `start`.
"""

from collections.abc import Sequence
from typing import Any

from evorl.evolution.change import describe_architectures
from evorl.evolution.lineage import Birth, Lineage, left
from evorl.genome import HYPERPARAMETERS
from evorl.reporting.report.metrics import MetricsLine
from evorl.reporting.report.numbers import short

SERIES = ("fitness", "error", "loss", "exploration")


def known_rows(rows: Sequence[MetricsLine], lineage: Lineage) -> list[MetricsLine]:
    """The rows before the first that has an agent of whose birth the lineage does not know.

    While a run is resumed, its files are cut one after the other.
    """
    for place, row in enumerate(rows):
        if any(id not in lineage.births for id in row.ids):
            return list(rows[:place])
    return list(rows)


def agents(rows: Sequence[MetricsLine], lineage: Lineage, moving: Sequence[str]) -> list[Any]:
    """Plain data of every agent that was born, in the order of their births."""
    found = {id: _born(birth) for id, birth in lineage.births.items()}
    errors = {
        (line.id, line.generation): line.error
        for lines in lineage.fitness.values()
        for line in lines
    }
    for number, row in enumerate(rows):
        for place, id in enumerate(row.ids):
            agent = found[id]
            if agent["start"] is None:
                agent["start"] = number
            gap = number - agent["start"] - len(agent["fitness"])
            for name in (*SERIES, *moving):
                series = agent[name] if name in SERIES else agent["hyperparameters"][name]
                series.extend([None] * gap)
            agent["fitness"].append(short(row.fitness[place]))
            agent["error"].append(short(errors.get((id, row.generation))))
            agent["loss"].append(short(row.loss[place]))
            agent["exploration"].append(short(row.exploration[place]))
            for name in moving:
                value = row.hyperparameters.get(name, [None] * len(row.ids))[place]
                agent["hyperparameters"][name].append(short(value))
    for agent in found.values():
        agent["hyperparameters"] = {
            name: _constant(values) for name, values in agent["hyperparameters"].items()
        }
    return list(found.values())


def moving_hyperparameters(rows: Sequence[MetricsLine]) -> list[str]:
    """Those that differ between agents or over time, in the usual order."""
    values: dict[str, set[float | None]] = {}
    for row in rows:
        for name, each in row.hyperparameters.items():
            values.setdefault(name, set()).update(each)
    known = [*HYPERPARAMETERS, *sorted(set(values) - set(HYPERPARAMETERS))]
    return [name for name in known if len(values.get(name, ())) > 1]


def _born(birth: Birth) -> dict[str, Any]:
    genome = birth.genome
    return {
        "id": genome.id,
        "parent": genome.parent,
        "born": birth.generation,
        # the generation at whose end it left its parent
        "left": None if genome.parent is None else left(birth),
        "place": birth.place,
        "mutation": genome.mutation,
        "change": birth.change,
        "architecture": describe_architectures(genome),
        "start": None,
        **{name: [] for name in SERIES},
        "hyperparameters": _Lists(),
    }


class _Lists(dict[str, list[float | None]]):
    """A list for every name."""

    def __missing__(self, name: str) -> list[float | None]:
        return self.setdefault(name, [])


def _constant(values: list[float | None]) -> Any:
    """One value if it never changes, as most do not: that keeps the page small."""
    return values[0] if values and all(value == values[0] for value in values) else values
