"""Gather: at a generation's end every rank tells the main rank what it has.

From here until `Spread` the main rank's context is about all agents of all ranks.

Legend: P agents of the run, p of this rank, E episodes.
"""

import json
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from evorl.distributed.world import World
from evorl.errors import RunError
from evorl.genome import Genome
from evorl.pipeline.context import ARRAYS, COUNTS, Context
from evorl.pipeline.evaluate import fitness_of
from evorl.pipeline.everybody import Everybody, digests, pack, unpack
from evorl.population.group import AgentState
from evorl.population.population import Population
from evorl.runs.checkpoint import serialise

FACTS = "facts"  # JSON, as bytes


class Gather:
    """Brings weights, moments, fitness and counts of all ranks to the main rank."""

    def __init__(self, world: World, population: Population, everybody: Everybody) -> None:
        self.world, self.population, self.everybody = world, population, everybody
        self._before = dict.fromkeys(COUNTS, 0)  # of all ranks at the generation's beginning

    def begin(self, context: Context) -> None:
        """A generation begins: what this rank counts from now on is its own."""
        self._before = {name: getattr(context, name) for name in COUNTS}

    def __call__(self, context: Context) -> None:
        """Send; on the main rank, put together what all have sent."""
        self.world.barrier(f"the end of generation {context.generation}")
        sent = self.world.gather(self._message(context))
        if sent is not None:
            self._assemble(context, [_read(payload) for payload in sent])

    def _message(self, context: Context) -> bytes:
        population = self.population
        states = [population.state(i) for i in range(population.size)]
        facts = {
            "genomes": [genome.to_json() for genome in population.genomes],
            "alive": population.alive.tolist(),
            "steps": [state.steps for state in states],
            "digests": digests(states) if self.world.data > 1 else {},
            "counts": {name: getattr(context, name) - self._before[name] for name in COUNTS},
        }
        tensors = pack(states) if self.world.data_rank == 0 else {}
        tensors |= context.tensors()
        tensors[FACTS] = torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)
        return serialise(tensors)

    def _assemble(
        self, context: Context, sent: list[tuple[dict[str, Any], dict[str, Tensor]]]
    ) -> None:
        data = self.world.data
        for rank, (facts, _) in enumerate(sent):
            refuse_other(rank, facts["digests"], sent[rank - rank % data][0]["digests"])
        genomes: list[Genome] = []
        states: list[AgentState] = []
        alive: list[bool] = []
        for facts, tensors in sent[::data]:  # one of the ranks that hold the same agents
            own = dict(enumerate(facts["steps"]))
            weights = {k: v for k, v in tensors.items() if k[0].isdigit()}
            states += [state for _, state in sorted(unpack(weights, own).items())]
            genomes += [Genome.from_json(genome) for genome in facts["genomes"]]
        for row in range(0, len(sent), data):  # an agent that died on one of them is dead
            rows = [facts["alive"] for facts, _ in sent[row : row + data]]
            alive += [all(column) for column in zip(*rows, strict=True)]
        self.everybody.meet(genomes, states, alive)
        for name in ARRAYS:
            parts = [tensors[f"context.{name}"].numpy() for _, tensors in sent]
            setattr(context, name, np.concatenate(_joined(name, parts, data)))
        context.fitness = fitness_of(context.returns)  # of all episodes, whoever played them
        context.agents = len(genomes)
        for name in COUNTS:
            new = sum(facts["counts"][name] for facts, _ in sent)
            setattr(context, name, self._before[name] + new)


def refuse_other(rank: int, found: dict[str, str], first: dict[str, str]) -> None:
    """Ranks that train the same agents must have the same weights, to the bit."""
    for name, value in found.items():
        if value != first.get(name):
            raise RunError(
                f"rank {rank} has other weights than the ranks that train the same agents: {name}"
            )


def _joined(name: str, parts: list[Any], data: int) -> list[Any]:
    """One part for each place along the population axis."""
    if name != "returns":
        return parts[::data]
    # rank d of the data axis played episodes d, d + data, …
    return [_interleaved(parts[row : row + data]) for row in range(0, len(parts), data)]


def _interleaved(parts: list[Any]) -> Any:
    agents, episodes = len(parts[0]), sum(part.shape[1] for part in parts)
    found = np.empty((agents, episodes))
    for d, part in enumerate(parts):
        found[:, d :: len(parts)] = part
    return found


def _read(payload: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = load(payload)
    facts = json.loads(tensors.pop(FACTS).numpy().tobytes())
    return facts, tensors
