"""Every agent of a run with what was measured of it, and which mutations helped.

A row is a line of metrics.jsonl. An agent's lists begin with its first row, `start`.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from evorl.evolution import NOISE, Birth, Lineage, describe_architectures, left
from evorl.reporting.report.metrics import MetricsLine
from evorl.reporting.report.page import short

WORDS = {"none": "copy, no mutation", NOISE: "noise on the weights"}


def known_rows(rows: Sequence[MetricsLine], lineage: Lineage) -> list[MetricsLine]:
    """The rows before the first that has an agent of whose birth the lineage does not know.

    While a run is resumed, its files are cut one after the other.
    """
    for place, row in enumerate(rows):
        if any(id not in lineage.births for id in row.ids):
            return list(rows[:place])
    return list(rows)


def moving_hyperparameters(rows: Sequence[MetricsLine]) -> list[str]:
    """Those that differ between agents or over time, in the order of the file."""
    values: dict[str, set[float | None]] = {}
    for row in rows:
        for name, each in row.hyperparameters.items():
            values.setdefault(name, set()).update(each)
    return [name for name, each in values.items() if len(each) > 1]


def agents(rows: Sequence[MetricsLine], lineage: Lineage, moving: Sequence[str]) -> list[Any]:
    """Plain data of every agent that was born, in the order of their births."""
    lines = [line for own in lineage.fitness.values() for line in own]
    errors = {(line.id, line.generation): line.error for line in lines}
    starts: dict[int, int] = {}
    series: dict[int, dict[str, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for number, row in enumerate(rows):
        for place, id in enumerate(row.ids):
            gap = number - starts.setdefault(id, number) - len(series[id]["fitness"])
            values = {
                "fitness": row.fitness[place],
                "error": errors.get((id, row.generation)),
                "loss": row.loss[place],
                "exploration": row.exploration[place],
            } | {f"/{name}": _value(row, name, place) for name in moving}
            for name, value in values.items():
                series[id][name] += [*[None] * gap, short(value)]
    return [
        _agent(birth, starts.get(id), series[id], moving) for id, birth in lineage.births.items()
    ]


def _value(row: MetricsLine, name: str, place: int) -> float | None:
    values = row.hyperparameters.get(name)
    return None if values is None else values[place]


def _agent(
    birth: Birth, start: int | None, series: dict[str, list[float | None]], moving: Sequence[str]
) -> dict[str, Any]:
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
        "start": start,
        **{name: series[name] for name in ("fitness", "error", "loss", "exploration")},
        "hyperparameters": {
            name: _constant(series[f"/{name}"]) for name in moving if start is not None
        },
    }


def _constant(values: list[float | None]) -> Any:
    """One value if it never changes, as most do not: that keeps the page small."""
    return values[0] if values and all(value == values[0] for value in values) else values


def mutation_effects(lineage: Lineage) -> dict[str, Any]:
    """Which mutations helped, by kind, the best mean first.

    Between a parent's fitness and its child's lies a generation of training, and a parent is chosen
    for a fitness that may have been luck: so `parents` is what these gained over the same time.
    """
    kinds: dict[str, list[tuple[int, float]]] = {}
    parents: list[float] = []
    for id, birth in lineage.births.items():
        effect = lineage.effect(birth)
        if effect.change is None or effect.parent is None:
            continue  # not evaluated, or dead
        kinds.setdefault(birth.genome.mutation, []).append((id, effect.change))
        if effect.stayed is not None:
            parents.append(effect.stayed - effect.parent)
    found = [
        {"kind": kind, "label": WORDS.get(kind, kind), "ids": [id for id, _ in children]}
        | _summary([change for _, change in children])
        for kind, children in kinds.items()
    ]
    found.sort(key=lambda one: (-one["mean"], one["kind"]))
    return {"kinds": found, "parents": _summary(parents) if parents else None}


def _summary(changes: Sequence[float]) -> dict[str, Any]:
    count, mean = len(changes), sum(changes) / len(changes)
    variance = sum((change - mean) ** 2 for change in changes) / max(1, count - 1)
    return {
        "count": count,
        "mean": short(mean),
        "error": short(math.sqrt(variance / count)) if count > 1 else None,
        "helped": sum(change > 0 for change in changes),
        "changes": [short(change) for change in changes],
    }
