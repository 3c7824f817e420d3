"""A live population as the main rank sees it at a generation's end; and the world of one rank."""

from functools import cache

from evorl.distributed.world import World
from evorl.pipeline.snapshot import Snapshot
from evorl.pipeline.training_context import TrainingContext


@cache
def alone():
    """The world of this process."""
    return World.start(1)


def snapshot_of(population, generation=0):
    """At the end of this generation."""
    states = [population.state(i) for i in range(population.size)]
    snapshot = Snapshot(population.genomes, states, population.alive)
    snapshot.generation = generation + 1
    return snapshot


def context_of(population, generation=0):
    """The main rank's context, with a snapshot."""
    context = TrainingContext(population.size, generation=generation)
    context.snapshot = snapshot_of(population, generation)
    return context
