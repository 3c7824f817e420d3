"""Inherit: after selection replays go from parents to children, also from rank to rank."""

import numpy as np
from safetensors.torch import load

from evorl.distributed import World
from evorl.experience import Sampler
from evorl.pipeline.training_context import TrainingContext
from evorl.runs import serialise


class Inherit:
    """After selection a child takes over what its parent, on whatever rank, has seen."""

    def __init__(self, world: World, sampler: Sampler) -> None:
        self.world, self.sampler = world, sampler

    def __call__(self, context: TrainingContext) -> None:
        """All ranks learn which parent each child has, and hand replays on."""
        world = self.world
        sent = context.snapshot.parents.tolist() if world.main else None
        parents = np.array(world.trainers.broadcast_json(sent), dtype=np.int64)
        own = world.own_agents(len(parents))
        local = np.array([p - own.start if p in own else i for i, p in enumerate(parents[own])])
        self.sampler.inherit(local)
        for place in np.flatnonzero(parents != np.arange(len(parents))):
            self._transfer(int(place), int(parents[place]), len(parents))

    def _transfer(self, place: int, parent: int, agents: int) -> None:
        """All ranks go through all transfers in one order, so that none waits for another."""
        world, first = self.world, self.world.own_agents(agents).start
        source, target = (
            world.mesh.owner(agents, agent) + world.data_rank for agent in (parent, place)
        )
        if source == target:
            return
        if world.rank == source:
            world.send(serialise(self.sampler.export(parent - first)), target)
        elif world.rank == target:
            self.sampler.load_state_dict(load(world.receive(source)), place - first)
