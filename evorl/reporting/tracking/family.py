"""Who descends from whom, as curves and tables; and what mutations brought.

An agent's curve is that of its line of descent: its own fitness since its birth, before that its
parent's until the child left it, and so on up to the first ancestor: nothing of strangers.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from evorl.evolution.effects import effect, first_fitness, parent_fitness
from evorl.evolution.lineage import Ancestor, Birth, Fitness, Lineage, left
from evorl.genome import HYPERPARAMETERS

BIRTH_COLUMNS = [
    *("agent", "parent", "generation", "mutation", "change", "layers"),
    *("left_parent_after", "parent_fitness", "first_fitness", "effect"),
    *HYPERPARAMETERS,
]


class Point(NamedTuple):
    """One generation of a line of descent."""

    ancestor: Ancestor
    measured: Fitness
    fitness: float


def curve(lineage: Lineage, agent: int, until: int | None = None) -> list[Point]:
    """The fitness of an agent and its ancestors, generation by generation where it is known."""
    return [
        Point(ancestor, measured, measured.fitness)
        for ancestor in lineage.ancestry(agent, until)
        for measured in ancestor.fitness
        if measured.fitness is not None
    ]


class Mutations:
    """How often each kind of mutation happened, and what it brought on average."""

    def __init__(self) -> None:
        self.births: dict[str, int] = {}
        self._effects: dict[str, list[float]] = {}  # sum, and of how many

    def add(self, lineage: Lineage, child: Birth) -> None:
        """Count a child, once its first fitness is known."""
        kind = child.genome.mutation
        self.births[kind] = self.births.get(kind, 0) + 1
        brought = effect(lineage, child)
        if brought is not None:
            total = self._effects.setdefault(kind, [0.0, 0])
            total[0] += brought
            total[1] += 1

    def mean_effect(self, kind: str) -> float | None:
        """None if no child of that kind and its parent were both alive when it counted."""
        total, count = self._effects.get(kind, (0.0, 0))
        return total / count if count else None

    def values(self) -> dict[str, float]:
        """As numbers by name, for a tracker."""
        found: dict[str, float] = {}
        for kind, births in self.births.items():
            name = f"mutations/{kind.replace(' ', '_')}"
            found[f"{name}/births"] = float(births)
            mean = self.mean_effect(kind)
            if mean is not None:
                found[f"{name}/effect"] = mean
        return found

    def table(self) -> list[list[Any]]:
        """Mutation, births, mean effect; the most frequent first."""
        kinds = sorted(self.births, key=lambda kind: (-self.births[kind], kind))
        return [[kind, self.births[kind], self.mean_effect(kind)] for kind in kinds]


def births_table(lineage: Lineage) -> Iterator[list[Any]]:
    """A row for each agent ever born, with BIRTH_COLUMNS."""
    for one in lineage.births.values():
        genome = one.genome
        layers = "-".join(map(str, next(iter(genome.architectures.values())).hidden))
        yield [
            *(genome.id, genome.parent, one.generation, genome.mutation, one.change),
            f"{layers} {next(iter(genome.architectures.values())).activation}",
            None if genome.parent is None else left(one),
            *(parent_fitness(lineage, one), first_fitness(lineage, one), effect(lineage, one)),
            *(float(genome.hyperparameters[name]) for name in HYPERPARAMETERS),
        ]
