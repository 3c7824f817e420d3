"""Experience between ranks: new transitions for all, and replays that follow their agents."""

import json

import numpy as np
import torch
from safetensors.torch import load

from evorl.distributed import World
from evorl.experience import Sampler, Transitions
from evorl.pipeline.context import Context
from evorl.runs import serialise


class Exchange:
    """With `replay.share: world` every rank stores what all have seen, in the order of ranks."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __call__(self, own: Transitions) -> Transitions:
        """What all ranks have collected in this round, whatever each has."""
        if self.world.size == 1:
            return own
        fields = {
            name: torch.from_numpy(np.ascontiguousarray(field))
            for name, field in own._asdict().items()
        }
        parts = [load(payload) for payload in self.world.share(serialise(fields))]
        joined = {name: torch.cat([part[name] for part in parts]).numpy() for name in fields}
        return Transitions(**joined)


class Inherit:
    """After selection a child takes over what its parent, on whatever rank, has seen."""

    def __init__(self, world: World, sampler: Sampler) -> None:
        self.world, self.sampler = world, sampler

    def __call__(self, context: Context) -> None:
        """All ranks learn who follows whom, and hand replays on."""
        world = self.world
        sent = json.dumps(context.snapshot.parents.tolist()).encode() if world.main else None
        parents = np.array(json.loads(world.broadcast(sent)), dtype=np.int64)
        own = world.places(len(parents))
        local = np.array([p - own.start if p in own else i for i, p in enumerate(parents[own])])
        self.sampler.inherit(local)
        for place in np.flatnonzero(parents != np.arange(len(parents))):
            self._transfer(int(place), int(parents[place]), len(parents))

    def _transfer(self, place: int, parent: int, agents: int) -> None:
        """All ranks go through all transfers in one order, so that nobody waits for another."""
        world = self.world
        source, target = (world.owner(agents, agent) + world.data_rank for agent in (parent, place))
        first = world.places(agents).start
        if source == target:
            return
        if world.rank == source:
            world.send(serialise(self.sampler.export(parent - first)), target)
        elif world.rank == target:
            self.sampler.load_state_dict(load(world.receive(source)), place - first)
