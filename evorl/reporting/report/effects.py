"""Which mutations helped: how a child's first fitness differs from its parent's.

The parent's is that of the generation at whose end the child was copied from it, the child's is its
first. In between lies a generation of training, and a parent is chosen for a fitness that may have
been luck. So what the parents themselves gained over the same time is given beside it.
"""

import math
from collections.abc import Sequence
from typing import Any

from evorl.evolution.change import NOISE
from evorl.evolution.lineage import Lineage
from evorl.reporting.report.numbers import short

INITIAL = "initial"
WORDS = {"none": "copy, no mutation", NOISE: "noise on the weights"}


def mutation_effects(lineage: Lineage) -> dict[str, Any]:
    """By kind, the best mean first: count, mean, standard error, and the change of every child."""
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
    error = None
    if count > 1:
        variance = sum((change - mean) ** 2 for change in changes) / (count - 1)
        error = math.sqrt(variance / count)
    return {
        "count": count,
        "mean": short(mean),
        "error": short(error),
        "helped": sum(change > 0 for change in changes),
        "changes": [short(change) for change in changes],
    }
