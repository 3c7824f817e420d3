"""Inherit: after selection replays go from parents to children, also from rank to rank."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from safetensors.torch import load

from evorl.distributed import World
from evorl.experience import Sampler
from evorl.pipeline.training_context import TrainingContext
from evorl.runs import serialise

Ints = npt.NDArray[np.int64]
Resize = Callable[[range, int], None]


class Inherit:
    """After selection a child takes over what its parent, on whatever rank, has seen."""

    def __init__(self, world: World, sampler: Sampler, resize: Resize) -> None:
        """`resize` makes room for these agents on this rank, of so many in all."""
        self.world, self.sampler, self.resize = world, sampler, resize
        self.agents: int | None = None  # of all ranks

    def __call__(self, context: TrainingContext) -> None:
        """All ranks learn who is left and which parent each child has, and hand replays on."""
        world, snapshot = self.world, context.snapshot if self.world.main else None
        sent = snapshot and [snapshot.kept.tolist(), snapshot.parents.tolist()]
        kept, parents = map(np.array, world.trainers.broadcast_json(sent))
        self._keep(kept)
        own = world.own_agents(len(parents))
        local = np.array([p - own.start if p in own else i for i, p in enumerate(parents[own])])
        self.sampler.inherit(local)
        for place in np.flatnonzero(parents != np.arange(len(parents))):
            self._transfer(int(place), int(parents[place]), len(parents))

    def keep_first(self, context: TrainingContext) -> None:
        """A run resumes: there are as many agents as there were, and nothing is remembered yet."""
        agents = self.world.trainers.broadcast_json(
            context.snapshot.agents if self.world.main else None
        )
        self._keep(np.arange(agents))

    def _keep(self, kept: Ints) -> None:
        """Those that are left move together; some to other ranks, with what they remember."""
        world, before = self.world, self.agents or len(kept)
        self.agents = len(kept)
        if len(kept) == before:
            return
        old, own = world.own_agents(before), world.own_agents(len(kept))
        arrived: dict[int, bytes] = {}
        for place, agent in enumerate(kept.tolist()):  # in one order: none waits for another
            source = world.mesh.owner(before, agent) + world.data_rank
            target = world.mesh.owner(len(kept), place) + world.data_rank
            if source != target and world.rank == source:
                world.send(serialise(self.sampler.export(agent - old.start)), target)
            elif source != target and world.rank == target:
                arrived[place - own.start] = world.receive(source)
        rows = [agent - old.start if agent in old else -1 for agent in kept[own].tolist()]
        self.sampler.keep(np.array(rows))
        for row, state in arrived.items():
            self.sampler.load_state_dict(load(state), row)
        self.resize(own, len(kept))

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
