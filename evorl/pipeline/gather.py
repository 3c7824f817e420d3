"""Gather and Broadcast: from all ranks to one snapshot on the main rank, and back to all.

In one process the snapshot is handed on. Over several ranks it travels as bytes, and every rank
proves by hash that it has its rows.

Legend: P agents of the run, p of this rank, E episodes.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load

from evorl.distributed import World
from evorl.errors import RunError
from evorl.evolution import MEAN, Fitness
from evorl.pipeline.context import Context
from evorl.pipeline.snapshot import ARRAYS, COUNTS, Snapshot, digests
from evorl.population import AgentState, Population, kinds_of
from evorl.runs import serialise

FACTS = "facts"  # JSON, as bytes

Floats = npt.NDArray[np.float64]


class Gather:
    """At a generation's end: weights, moments, fitness and counts of all ranks, on the main one."""

    def __init__(self, world: World, population: Population, fitness: Fitness = MEAN) -> None:
        self.world, self.population, self.fitness = world, population, fitness

    def __call__(self, context: Context) -> None:
        """Send; on the main rank, put together what all have sent."""
        self.world.barrier(f"the end of generation {context.generation}")
        own = self._own(context)
        if self.world.size > 1:
            sent = self.world.gather(self._message(own, context))
            if sent is None:
                return
            own = self._join(own, [_read(payload) for payload in sent])
        own.generation += 1
        own.fitness = self.fitness(own.returns)  # of all episodes, whoever played them
        context.snapshot = own

    def _own(self, context: Context) -> Snapshot:
        """This rank's part."""
        population = self.population
        states = [_on_cpu(population.state(i)) for i in range(population.size)]
        own = Snapshot(population.genomes, states, population.alive)
        own.take(context.numbers(), context.arrays())
        return own

    def _message(self, own: Snapshot, context: Context) -> bytes:
        facts = own.to_json() | {
            "counted": context.counted(),
            "digests": digests(own.states) if self.world.data > 1 else {},
        }
        tensors = own.tensors()
        if self.world.data_rank > 0:  # the first of those that hold the same agents sends them
            tensors = {k: v for k, v in tensors.items() if not k[0].isdigit()}
        tensors[FACTS] = torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)
        return serialise(tensors)

    def _join(self, own: Snapshot, sent: list[tuple[Snapshot, dict[str, Any]]]) -> Snapshot:
        data, parts = self.world.data, [part for part, _ in sent]
        for rank, (_, facts) in enumerate(sent):
            refuse_other(rank, facts["digests"], sent[rank - rank % data][1]["digests"])
        rows = [parts[row : row + data] for row in range(0, len(parts), data)]  # the same agents
        joined = Snapshot(
            [genome for row in rows for genome in row[0].genomes],
            [state for row in rows for state in row[0].states],
            # an agent that died on one of them is dead
            np.concatenate([np.all([part.alive for part in row], 0) for row in rows]),
        )
        arrays = {name: np.concatenate([getattr(row[0], name) for row in rows]) for name in ARRAYS}
        arrays["returns"] = np.concatenate([_interleaved([p.returns for p in row]) for row in rows])
        here, everywhere = sent[0][1], [facts["counted"] for _, facts in sent]
        new = {n: sum(c[n] for c in everywhere) - here["counted"][n] for n in COUNTS}
        numbers = own.numbers()
        joined.take(numbers | {n: numbers[n] + new[n] for n in COUNTS}, arrays)
        return joined


class Broadcast:
    """Every rank takes its rows of the next generation, and proves that it really has them."""

    def __init__(self, world: World, population: Population) -> None:
        self.world, self.population = world, population

    def __call__(self, context: Context) -> None:
        """The same bytes on all ranks."""
        proof: dict[str, str] = {}
        if self.world.size == 1:
            snapshot = context.snapshot
        else:
            snapshot, proof = self._receive(context)
        own = self.world.places(snapshot.agents)
        context.begin_generation(snapshot, slice(own.start, own.stop))
        self._rebuild(snapshot, own)
        self._prove(snapshot, own, proof)

    def _receive(self, context: Context) -> tuple[Snapshot, dict[str, str]]:
        values = tensors = None
        if self.world.main:
            snapshot = context.snapshot
            facts = snapshot.to_json() | {"digests": digests(snapshot.states)}
            values, tensors = json.dumps(facts).encode(), snapshot.packed()
        facts = json.loads(self.world.broadcast(values))
        return Snapshot.unpacked(facts, load(self.world.broadcast(tensors))), facts["digests"]

    def _rebuild(self, snapshot: Snapshot, own: range) -> None:
        population, ours = self.population, slice(own.start, own.stop)
        kinds = kinds_of(population.specs, snapshot.genomes, population.compiled is not None)
        population.rebuild(snapshot.genomes[ours], snapshot.states[ours], kinds[ours])
        population.alive = snapshot.alive[ours].copy()

    def _prove(self, snapshot: Snapshot, own: range, proof: dict[str, str]) -> None:
        population, rank = self.population, self.world.rank
        if not proof:  # in one process there are no bytes that could be others
            return
        live = [population.state(i) for i in range(population.size)]
        for name, value in digests(live, own.start).items():
            if value != proof[name]:
                agent, _, tensor = name.partition(".")
                raise RunError(
                    f"rank {rank}: {tensor} of agent {snapshot.genomes[int(agent)].id} is not what"
                    " the main rank has written down"
                )


def refuse_other(rank: int, found: dict[str, str], first: dict[str, str]) -> None:
    """Ranks that train the same agents must have the same weights, to the bit."""
    for name, value in found.items():
        if value != first.get(name):
            raise RunError(
                f"rank {rank} has other weights than the ranks that train the same agents: {name}"
            )


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


def _read(payload: bytes) -> tuple[Snapshot, dict[str, Any]]:
    tensors = load(payload)
    facts = json.loads(tensors.pop(FACTS).numpy().tobytes())
    return Snapshot.unpacked(facts, tensors), facts
