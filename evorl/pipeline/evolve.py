"""Evolve: at a generation's end, who stays, and who makes room for whose child.

Legend: P agents, E episodes.
"""

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.evolution import Mutation, Schedule, Selection, birth
from evorl.genome import Genome
from evorl.pipeline.context import Context
from evorl.pipeline.evaluate import Champion, Confirm
from evorl.pipeline.snapshot import Snapshot
from evorl.population import AgentState, Population
from evorl.seeding import generator


class Evolve:
    """Selection and mutation; everything that a child inherits follows its parent."""

    name = "evolve"

    def __init__(
        self,
        selection: Selection,
        mutation: Mutation,
        confirm: Confirm,
        genomes: Sequence[Genome],
        seed: int,
    ) -> None:
        """`genomes` are those of the agents that the run starts with."""
        self.selection, self.mutation, self.confirm, self.seed = selection, mutation, confirm, seed
        self.next_id = 1 + max(genome.id for genome in genomes)
        # [P, E] of the latest evaluations; a child's are its parent's until it has its own
        self._returns: deque[npt.NDArray[np.float64]] = deque(maxlen=selection.eval_loop)
        # fitness at the last evaluation; a child's is its parent's
        self._before = np.full(len(genomes), np.nan)
        self._children = (-1, 0)  # of the best agent ever seen: since which generation, how many

    def __call__(self, context: Context) -> None:
        """Replace agents by children of better ones; not after the last generation."""
        snapshot = context.snapshot
        if snapshot.finished:
            return
        with context.timer("evolve"):
            self._returns.append(snapshot.returns)
            values = [genome.hyperparameters for genome in snapshot.genomes]
            self.mutation.explore.observe(snapshot.ended, values, self._before, snapshot.fitness)
            parents = self._select(snapshot)
            self._before = snapshot.fitness[parents]
            self._returns = deque((own[parents] for own in self._returns), self._returns.maxlen)
            if (parents != np.arange(len(parents))).any():
                self._replace(snapshot, parents)
            snapshot.evolved = True

    def _select(self, snapshot: Snapshot) -> npt.NDArray[np.int64]:
        """Who follows whom; before there are enough evaluations to average, only the dead go."""
        returns, alive = np.stack(self._returns), snapshot.alive
        random = generator(self.seed, "selection", snapshot.ended)
        parents = self.selection(returns, alive, random, self.confirm.fitness)
        if len(returns) == self._returns.maxlen:
            return parents
        return np.where(np.isfinite(snapshot.fitness), np.arange(len(parents)), parents)

    def _replace(self, snapshot: Snapshot, parents: npt.NDArray[np.int64]) -> None:
        genomes: list[Genome] = list(snapshot.genomes)
        states: list[AgentState] = [snapshot.states[int(parent)] for parent in parents]
        for name in ("agent_steps", "agent_updates", "loss"):  # counted from where parents were
            setattr(snapshot, name, getattr(snapshot, name)[parents])
        for place in np.flatnonzero(parents != np.arange(len(parents))):
            parent, fitness = self._parent(snapshot, int(place), int(parents[place]), states[place])
            genomes[place], states[place] = self.mutation(
                parent.genome,
                parent.state,
                id=self.next_id,
                generation=snapshot.generation,
                fitness=fitness,
                random=generator(self.seed, "mutation", snapshot.ended, int(place)),
            )
            line = birth(genomes[place], int(place), parent.genome, parent.generation)
            snapshot.births.append(line)
            self.next_id += 1
        snapshot.genomes, snapshot.states, snapshot.parents = genomes, states, parents.copy()
        snapshot.alive = np.ones(snapshot.agents, dtype=bool)

    def _parent(
        self, snapshot: Snapshot, place: int, selected: int, state: AgentState
    ) -> tuple[Champion, float]:
        """The parent, and its fitness: the one selected, or the best ever seen, if that was better.

        Going on from the peak, with other hyperparameters, is often the better start. The child's
        replay is the selected parent's all the same, its evaluations the score by which the best
        was confirmed. Explore strategies do not learn from that: it is the best of many.
        """
        genome = snapshot.genomes[selected]
        best, score = self.confirm.champion, self.confirm.score
        if best is None or not self._goes_back(snapshot, place, genome, best):
            steps, updates = snapshot.agent_steps[place], snapshot.agent_updates[place]
            found = Champion(genome, state, snapshot.ended, int(steps), int(updates))
            return found, float(self._before[place])
        snapshot.agent_steps[place] = best.own_steps
        snapshot.agent_updates[place] = best.own_updates
        self._before[place] = np.nan
        assert self.confirm.returns is not None
        for returns in self._returns:
            returns[place] = self.confirm.fitness.stand_in(self.confirm.returns, returns.shape[1])
        self._children = (best.generation, self._children[1] + 1)
        return best, score

    def _goes_back(self, snapshot: Snapshot, place: int, selected: Genome, best: Champion) -> bool:
        """Whether a child descends from the best as it was, and not from the one selected."""
        random = generator(self.seed, "champion", snapshot.ended, place)
        if random.random() >= self.selection.champion:
            return False
        if (best.genome.id, best.generation) == (selected.id, snapshot.ended):
            return False
        found = self.confirm.fitness(np.stack(self._returns))[place]  # of the one selected
        if not self.confirm.score > found:
            return False
        if self._children[0] != best.generation:
            self._children = (best.generation, 0)
        # as many as there are agents: after that, going on from there has been tried enough
        return self._children[1] < len(self._before)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `restore` needs, as JSON and tensors."""
        returns = np.stack(self._returns) if self._returns else np.zeros((0, 0, 0))
        tensors = {"returns": returns, "before": self._before}
        values = {"next_id": self.next_id, "children": list(self._children)}
        values |= {"explore": self.mutation.explore.state()}
        return values, {name: torch.from_numpy(value) for name, value in tensors.items()}

    def restore(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Resume from an earlier `state`."""
        self.next_id = values["next_id"]
        self._children = (values["children"][0], values["children"][1])
        self.mutation.explore.restore(values["explore"])
        self._returns = deque(tensors["returns"].numpy(), self._returns.maxlen)
        self._before = tensors["before"].numpy().copy()


class FollowSchedule:
    """Gives every agent the hyperparameters of its own step, along what another run has found."""

    def __init__(self, population: Population, schedule: Schedule) -> None:
        self.population, self.schedule = population, schedule

    def __call__(self, context: Context) -> None:
        """Before the iteration's first action."""
        population, old = self.population, self.population.genomes
        genomes = [
            dataclasses.replace(genome, hyperparameters=self.schedule.at(int(steps)))
            for genome, steps in zip(old, context.agent_steps, strict=True)
        ]
        if genomes != old:
            alive = population.alive
            returns = population.returns
            population.rebuild(genomes, [population.state(i) for i in range(population.size)])
            population.returns = returns  # their episodes continue
            population.alive = alive
