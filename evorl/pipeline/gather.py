"""Gather, Broadcast, Inherit: from all ranks to one snapshot on the main rank, and back to all.

In one process the snapshot is handed on. Over several ranks it travels as bytes, and every rank
proves by hash that it has its rows.
"""

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from safetensors.torch import load

from evorl.distributed import World
from evorl.errors import RunError
from evorl.evolution import MEAN, Fitness
from evorl.experience import Sampler
from evorl.pipeline.context import Context
from evorl.pipeline.snapshot import ARRAYS, Snapshot, digests
from evorl.population import AgentState, Population, kinds_of
from evorl.runs import serialise

Floats = npt.NDArray[np.float64]


class Gather:
    """At a generation's end: weights, moments, fitness and counts of all ranks, on the main one."""

    def __init__(self, world: World, population: Population, fitness: Fitness = MEAN) -> None:
        self.world, self.population, self.fitness = world, population, fitness

    def __call__(self, context: Context) -> None:
        """Send; on the main rank, put together what all have sent."""
        world = self.world
        world.barrier(f"the end of generation {context.generation}")
        snapshot = self._own(context)
        if world.size > 1:
            # the first of those that hold the same agents sends their weights
            sent = world.gather(snapshot.to_bytes(weights=world.data_rank == 0))
            if sent is not None:
                snapshot = self._join(context, [Snapshot.from_bytes(part) for part in sent])
        if world.data > 1:
            prove(world, self.population, snapshot)
        if world.main:
            snapshot.generation += 1
            snapshot.fitness = self.fitness(snapshot.returns)  # of all episodes, whoever played
            context.snapshot = snapshot

    def _own(self, context: Context) -> Snapshot:
        """This rank's part."""
        population = self.population
        states = [_on_cpu(population.state(i)) for i in range(population.size)]
        own = Snapshot(population.genomes, states, population.alive)
        own.take(context)
        return own

    def _join(self, context: Context, parts: list[Snapshot]) -> Snapshot:
        """Of each agent what its first rank has, the episodes of all, and everybody's counts."""
        data = self.world.data
        rows = [parts[row : row + data] for row in range(0, len(parts), data)]  # the same agents
        joined = Snapshot(
            [genome for row in rows for genome in row[0].genomes],
            [state for row in rows for state in row[0].states],
            # an agent that died on one of them is dead
            np.concatenate([np.all([part.alive for part in row], 0) for row in rows]),
        )
        joined.take(context, slice(0))
        for name in ARRAYS:
            setattr(joined, name, np.concatenate([getattr(row[0], name) for row in rows]))
        joined.returns = np.concatenate([_interleaved([p.returns for p in row]) for row in rows])
        for name, before in context.before.items():
            setattr(joined, name, before + sum(getattr(part, name) - before for part in parts))
        return joined


class Broadcast:
    """Every rank takes its rows of the next generation, and proves that it really has them."""

    def __init__(self, world: World, population: Population) -> None:
        self.world, self.population = world, population

    def __call__(self, context: Context) -> None:
        """The same bytes on all ranks."""
        world, population = self.world, self.population
        if world.size > 1:
            sent = world.broadcast(context.snapshot.to_bytes() if world.main else None)
            snapshot = Snapshot.from_bytes(sent)
        else:
            snapshot = context.snapshot
        own = world.places(snapshot.agents)
        ours = slice(own.start, own.stop)
        context.begin_generation(snapshot, ours)
        kinds = kinds_of(population.specs, snapshot.genomes, population.compiled is not None)
        population.rebuild(snapshot.genomes[ours], snapshot.states[ours], kinds[ours])
        population.alive = snapshot.alive[ours].copy()
        if world.size > 1:
            prove(world, population, context.snapshot if world.main else snapshot)


def prove(world: World, population: Population, snapshot: Snapshot) -> None:
    """All ranks send hashes of their agents; the main rank compares them with its snapshot."""
    live = digests([population.state(i) for i in range(population.size)])
    sent = world.gather(json.dumps(live).encode())
    if sent is None:
        return
    expected = digests(snapshot.states)
    for rank, own in enumerate(sent):
        places = world.mesh.places(snapshot.agents, rank)
        for place, found in zip(places, json.loads(own), strict=True):
            if found != expected[place]:
                agent = snapshot.genomes[place].id
                raise RunError(
                    f"rank {rank}: agent {agent} has other weights than on the main rank"
                )


class Inherit:
    """After selection a child takes over what its parent, on whatever rank, has seen."""

    def __init__(self, world: World, sampler: Sampler) -> None:
        self.world, self.sampler = world, sampler

    def __call__(self, context: Context) -> None:
        """All ranks learn who follows whom, and hand replays on."""
        world = self.world
        sent = context.snapshot.parents.tolist() if world.main else None
        parents = np.array(world.broadcast_json(sent), dtype=np.int64)
        own = world.places(len(parents))
        local = np.array([p - own.start if p in own else i for i, p in enumerate(parents[own])])
        self.sampler.inherit(local)
        for place in np.flatnonzero(parents != np.arange(len(parents))):
            self._transfer(int(place), int(parents[place]), len(parents))

    def _transfer(self, place: int, parent: int, agents: int) -> None:
        """All ranks go through all transfers in one order, so that nobody waits for another."""
        world, first = self.world, self.world.places(agents).start
        source, target = (
            world.mesh.owner(agents, agent) + world.data_rank for agent in (parent, place)
        )
        if source == target:
            return
        if world.rank == source:
            world.send(serialise(self.sampler.export(parent - first)), target)
        elif world.rank == target:
            self.sampler.load_state_dict(load(world.receive(source)), place - first)


def _on_cpu(state: AgentState) -> AgentState:
    online, target, m, v = ({name: each.cpu() for name, each in own.items()} for own in state[:4])
    return AgentState(online, target, m, v, state.steps)


def _interleaved(parts: Sequence[Floats]) -> Floats:
    """Rank d of the data axis played episodes d, d + data, …"""
    agents, episodes = len(parts[0]), sum(part.shape[1] for part in parts)
    found = np.empty((agents, episodes))
    for d, part in enumerate(parts):
        found[:, d :: len(parts)] = part
    return found
