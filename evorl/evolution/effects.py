"""What a mutation brought: a child's first fitness against its parent's when it left that."""

from evorl.evolution.lineage import Birth, Lineage, left


def parent_fitness(lineage: Lineage, child: Birth) -> float | None:
    """How good the parent was when the child left it; None if it had none, or was dead."""
    if child.genome.parent is None:
        return None
    return fitness_at(lineage, child.genome.parent, left(child))


def first_fitness(lineage: Lineage, child: Birth) -> float | None:
    """How good an agent was at the end of the generation in which it was born."""
    return fitness_at(lineage, child.genome.id, child.generation)


def effect(lineage: Lineage, child: Birth) -> float | None:
    """By how much a child's first fitness differs from its parent's when it left that."""
    before, after = parent_fitness(lineage, child), first_fitness(lineage, child)
    return None if before is None or after is None else after - before


def fitness_at(lineage: Lineage, agent: int, generation: int) -> float | None:
    """An agent's fitness at a generation's end; None if it was dead, or not there."""
    own = lineage.fitness[agent]
    return next((line.fitness for line in own if line.generation == generation), None)
