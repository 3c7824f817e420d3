"""Gather and Broadcast: from all ranks to one snapshot on the main rank, and back to all.

In one process the snapshot is handed on. Over several ranks it travels as bytes, and every rank
shows by hash that it has its rows (`check_same_weights`).
"""

import json
from typing import Any

import numpy as np
import torch

from evorl.distributed import Mesh, Team, World
from evorl.errors import RunError
from evorl.evolution import MEAN, Fitness
from evorl.pipeline.evaluate import filled_up, interleaved, mark_dead
from evorl.pipeline.snapshot import ARRAYS, Progress, Snapshot, digests, from_message, to_message
from evorl.pipeline.training_context import Scored, TrainingContext
from evorl.population import AgentState, Population, kinds_of


class Gather:
    """At a generation's end: weights, moments, fitness and counts of all ranks, on the main one."""

    def __init__(self, world: World, population: Population, fitness: Fitness = MEAN) -> None:
        self.world, self.population, self.fitness = world, population, fitness

    def __call__(self, context: TrainingContext) -> None:
        """Send; on the main rank, put together what all have sent."""
        world = self.world
        if world.size > 1:
            with context.timer("wait"):
                world.barrier(f"the end of generation {context.generation}")
        if not world.trainers.joined:
            world.gather(_report(context))
            return
        snapshot = self._own(context)
        if world.size > 1:
            # the first of those that hold the same agents sends their weights
            sent = world.gather(snapshot.to_bytes(weights=world.data_rank == 0))
            if sent is not None:
                trained, reports = sent[: world.trainers.size], sent[world.trainers.size :]
                snapshot = self._join(context, [Snapshot.from_bytes(part) for part in trained])
                for report in reports:
                    _take_report(context, snapshot, report)
        if world.data > 1:
            check_same_weights(world.trainers, world.mesh, self.population, snapshot)
        if world.main:
            snapshot.generation += 1
            self._score(context, snapshot)

    def _score(self, context: TrainingContext, snapshot: Snapshot) -> None:
        """Fitness by all episodes, whoever played them; what evaluators say is of agents before."""
        evaluated = snapshot
        if context.scored is not None:
            evaluated, snapshot.returns = context.snapshot, context.scored.returns
            evaluated.returns, evaluated.fitness = snapshot.returns, self.fitness(snapshot.returns)
        fitness = self.fitness(snapshot.returns)
        snapshot.fitness = np.where(snapshot.alive, fitness, -np.inf)
        context.snapshot, context.evaluated = snapshot, evaluated

    def _own(self, context: TrainingContext) -> Snapshot:
        """This rank's part."""
        population = self.population
        mark_dead(population)
        states = [_on_cpu(population.state(i)) for i in range(population.size)]
        own = Snapshot(population.genomes, states, population.alive)
        own.take(context)
        return own

    def _join(self, context: TrainingContext, parts: list[Snapshot]) -> Snapshot:
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
            if name != "returns":
                setattr(joined, name, np.concatenate([getattr(row[0], name) for row in rows]))
        join = interleaved if self.fitness.paired else np.hstack
        each = [own for row in rows for own in join([part.returns for part in row])]
        joined.returns = np.stack(each) if self.fitness.paired else filled_up(each)
        for name, before in context.before.items():
            setattr(joined, name, before + sum(getattr(part, name) - before for part in parts))
        return joined


class Broadcast:
    """Every rank takes its rows of the next generation; hashes show that it really has them."""

    def __init__(self, world: World, population: Population) -> None:
        self.world, self.population = world, population

    def __call__(self, context: TrainingContext) -> None:
        """All ranks begin the next generation from the main rank's snapshot."""
        world, population = self.world, self.population
        if world.size > 1:
            sent = world.broadcast(context.snapshot.to_bytes() if world.main else None)
            snapshot = Snapshot.from_bytes(sent)
        else:
            snapshot = context.snapshot
        own = world.own_agents(snapshot.agents)
        ours = slice(own.start, own.stop)
        context.begin_generation(snapshot, ours)
        kinds = kinds_of(population.specs, snapshot.genomes, population.compiled is not None)
        population.rebuild(snapshot.genomes[ours], snapshot.states[ours], kinds[ours])
        population.alive = snapshot.alive[ours].copy()
        if world.size > 1:
            check_same_weights(
                world.everyone, world.mesh, population, context.snapshot if world.main else snapshot
            )
        if not world.trainers.joined:
            context.snapshot = snapshot  # to be evaluated, while the others train


def check_same_weights(team: Team, mesh: Mesh, population: Population, snapshot: Snapshot) -> None:
    """All of a team send hashes of their agents; the main rank compares them with its snapshot."""
    live = digests([population.state(i) for i in range(population.size)])
    sent = team.gather(json.dumps(live).encode())
    if sent is None:
        return
    expected = digests(snapshot.states)
    for rank, own in enumerate(sent):
        places = mesh.agents_of(snapshot.agents, rank)
        for place, found in zip(places, json.loads(own), strict=True):
            if found != expected[place]:
                agent = snapshot.genomes[place].id
                raise RunError(
                    f"rank {rank}: agent {agent} has other weights than on the main rank"
                )


def _on_cpu(state: AgentState) -> AgentState:
    online, target, m, v = ({name: each.cpu() for name, each in own.items()} for own in state[:4])
    return AgentState(online, target, m, v, state.updates)


def _report(context: TrainingContext) -> bytes:
    """What an evaluator has counted and, if it is the first one, found."""
    counts = {name: getattr(context, name) - before for name, before in context.before.items()}
    facts: dict[str, Any] = {"counts": counts}
    tensors = {}
    if (scored := context.scored) is not None:
        facts["crowned"], tensors["returns"] = scored.crowned, torch.from_numpy(scored.returns)
        if scored.champion is not None:
            tensors["champion"] = torch.from_numpy(scored.champion)
    return to_message(facts, tensors)


def _take_report(context: TrainingContext, progress: Progress, report: bytes) -> None:
    """Back from `_report`, on the main rank."""
    facts, tensors = from_message(report)
    for name, count in facts["counts"].items():
        setattr(progress, name, getattr(progress, name) + count)
    if "returns" in tensors:
        found = {name: value.numpy().copy() for name, value in tensors.items()}
        context.scored = Scored(found["returns"], facts["crowned"], found.get("champion"))
