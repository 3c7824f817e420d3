"""Which hyperparameter mattered: permutation importance of a random forest, with its uncertainty.

The forest predicts an agent's standing from what it trained with. Agents are drawn with replacement
into bags, each with a few trees; those that a bag left out say what its trees are worth. A
hyperparameter's importance is half of what the error grows by when its values are shuffled among
them, as a share of the variance: the total-effect index of Sobol by Jansen's formula. Its interval
is that of the bags: what another draw of the same agents would have said.

Children inherit weights and most values, so agents are no independent samples: intervals are too
narrow, and what a good line happened to carry looks important.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite, nan
from typing import Any, NamedTuple

from evorl.evolution import Lineage, left
from evorl.genome import Genome

LEAST_AGENTS, LEAST_SAMPLES = 10, 30  # with fewer nothing is said


class Importance(NamedTuple):
    """What values tell of the standing of agents that the forest has not seen."""

    explained: tuple[float, float, float]  # share of the variance, and its interval
    features: dict[str, tuple[float, float, float]]  # likewise, the most important first
    agents: int
    samples: int


class Sample(NamedTuple):
    """An agent at a generation's end."""

    agent: int
    row: int
    fitness: float  # -inf: it is dead
    gain: float | None  # since its line's evaluation before; None: there is none


def find_importance(
    rows: Sequence[Mapping[str, Any]], lineage: Lineage, names: Sequence[str]
) -> dict[str, Importance | None]:
    """By `fitness` and by what it `gain`ed in a generation: places among those of one generation.

    `rows` are lines of metrics.jsonl. Beside the hyperparameters of these names, sizes of networks.
    """
    samples = list(_samples(rows, lineage))
    found: dict[str, Importance | None] = {}
    for what in ("fitness", "gain"):
        placed = _placed(samples, what)
        features: dict[str, list[float]] = defaultdict(list)
        for own, _ in placed:
            for name in names:
                place = rows[own.row]["ids"].index(own.agent)
                features[name].append(float(rows[own.row]["hyperparameters"][name][place]))
            for name, size in sizes_of(lineage.births[own.agent].genome).items():
                features[name].append(size)
        agents = [own.agent for own, _ in placed]
        found[what] = importance(features, [place for _, place in placed], agents)
    return found


def _samples(rows: Sequence[Mapping[str, Any]], lineage: Lineage) -> Iterator[Sample]:
    fitness: dict[tuple[int, int], float] = {}  # by agent and generation
    for number, row in enumerate(rows):
        lives = row.get("alive") or [True] * len(row["ids"])
        for id, value, alive in zip(row["ids"], row["fitness"], lives, strict=True):
            if value is None and alive:
                continue  # no episode of it has ended yet
            own = -inf if value is None else float(value)
            fitness[id, row["generation"]] = own
            birth = lineage.births[id]
            before = (id, row["generation"] - 1)
            if birth.generation == row["generation"] and birth.genome.parent is not None:
                before = (birth.genome.parent, left(birth))
            known = isfinite(fitness.get(before, nan))
            yield Sample(id, number, own, own - fitness[before] if known else None)


def _placed(samples: Sequence[Sample], what: str) -> list[tuple[Sample, float]]:
    """Those who can be compared with others of their generation, and their places among them."""
    rows: dict[int, list[Sample]] = defaultdict(list)
    for own in samples:
        if getattr(own, what) is not None:
            rows[own.row].append(own)
    each = (row for row in rows.values() if len(row) > 1)
    return [
        both
        for row in each
        for both in zip(row, standing([getattr(own, what) for own in row]), strict=True)
    ]


def sizes_of(genome: Genome) -> dict[str, float]:
    """Layers and units of each network."""
    found = {}
    for name, own in genome.architectures.items():
        of = "" if len(genome.architectures) == 1 else f"{name} "
        found[f"{of}layers"] = float(len(own.hidden))
        found[f"{of}units"] = float(sum(own.hidden))
    return found


def standing(values: Sequence[float]) -> list[float]:
    """Places among those of one generation, evenly from -1 to 1; equals share theirs."""
    ordered, most = sorted(values), max(len(values) - 1, 1)
    places = {own: ordered.index(own) + (ordered.count(own) - 1) / 2 for own in set(values)}
    return [2 * places[own] / most - 1 for own in values]


def importance(
    features: Mapping[str, Sequence[float]], target: Sequence[float], agents: Sequence[int]
) -> Importance | None:
    """Of samples: their features, their target and whose they are. None: there are too few."""
    moving = {name: own for name, own in features.items() if len(set(own)) > 1}
    if len(set(agents)) < LEAST_AGENTS or len(target) < LEAST_SAMPLES or not moving:
        return None
    if len(set(target)) < 2:
        return None
    from evorl.reporting.forest import permutation_importance  # numpy

    return Importance(*permutation_importance(moving, target, agents))
