"""Spread: the next generation goes from the main rank to all others, and each proves what it has.

Legend: P agents of the run, p of this rank.
"""

import json
from typing import Any

import numpy as np
import torch
from safetensors.torch import load

from evorl.distributed.world import World
from evorl.errors import RunError
from evorl.experience import Sampler
from evorl.genome import Genome
from evorl.pipeline.context import Context
from evorl.pipeline.everybody import Everybody, digests, pack, unpack
from evorl.population.group import AgentState
from evorl.population.grouping import kinds_of
from evorl.population.population import Population
from evorl.runs.checkpoint import digest, serialise


class Inherit:
    """Replays follow the agents: a child takes over what its parent, on whatever rank, has seen."""

    def __init__(self, world: World, everybody: Everybody, sampler: Sampler) -> None:
        self.world, self.everybody, self.sampler = world, everybody, sampler

    def __call__(self, context: Context) -> None:
        """After selection."""
        world = self.world
        told = json.dumps(self.everybody.parents.tolist()).encode() if world.main else None
        parents = np.array(json.loads(world.broadcast(told)), dtype=np.int64)
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
            self.sampler.take_over(place - first, load(world.receive(source)))


class Spread:
    """Every rank takes its rows of the new population, and checks that it really has them."""

    def __init__(self, world: World, population: Population, everybody: Everybody) -> None:
        self.world, self.population, self.everybody = world, population, everybody

    def __call__(self, context: Context) -> None:
        """The same bytes on all ranks."""
        message = weights = None
        if self.world.main:
            packed = pack(self.everybody.states)
            message = json.dumps(self._message(context)).encode()
            weights = serialise(packed | context.tensors())
        self._take(
            context, json.loads(self.world.broadcast(message)), self.world.broadcast(weights)
        )

    def _message(self, context: Context) -> dict[str, Any]:
        everybody = self.everybody
        return {
            "genomes": [genome.to_json() for genome in everybody.genomes],
            "alive": everybody.alive.tolist(),
            "steps": [state.steps for state in everybody.states],
            "digests": digests(everybody.states),
            "context": context.numbers(),
        }

    def _take(self, context: Context, message: dict[str, Any], weights: bytes) -> None:
        tensors = load(weights)
        genomes = [Genome.from_json(genome) for genome in message["genomes"]]
        own = self.world.places(len(genomes))
        context.take(message["context"], tensors, slice(own.start, own.stop))
        weights_only = {name: value for name, value in tensors.items() if name[0].isdigit()}
        found = unpack(weights_only, {place: message["steps"][place] for place in own})
        self._rebuild(genomes, [found[place] for place in own], message)

    def _rebuild(
        self, genomes: list[Genome], states: list[AgentState], message: dict[str, Any]
    ) -> None:
        population, rank = self.population, self.world.rank
        own = self.world.places(len(genomes))
        kinds = kinds_of(population.specs, genomes, population.compiled is not None)
        ours = slice(own.start, own.stop)
        population.rebuild(genomes[ours], states, kinds[ours])
        population.alive = np.array(message["alive"][ours], dtype=bool)
        try:
            population.check(states)
        except RuntimeError as error:
            raise RunError(f"rank {rank} does not have what the main rank sent: {error}") from None
        live = [population.state(i) for i in range(population.size)]
        for name, value in digests(live, own.start).items():
            if value != message["digests"][name]:
                agent, _, tensor = name.partition(".")
                raise RunError(
                    f"rank {rank}: {tensor} of agent {genomes[int(agent)].id} is not what the main"
                    " rank has written down"
                )


def digest_of(state: AgentState) -> str:
    """A hash of weights, target, moments and step count."""
    return digest(pack([state]) | {"steps": torch.tensor([state.steps])})
