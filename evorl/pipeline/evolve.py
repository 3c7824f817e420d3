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

from evorl.evolution import MEAN, Fitness, Mutation, Schedule, Selection, birth
from evorl.genome import Genome
from evorl.pipeline.champion import Champion, KeptAgent
from evorl.pipeline.evaluate import filled_up
from evorl.pipeline.saved_state import check_tensor
from evorl.pipeline.snapshot import Snapshot
from evorl.pipeline.training_context import TrainingContext
from evorl.population import AgentState, Population
from evorl.seeding import generator


class Evolve:
    """Selection and mutation; everything that a child inherits follows its parent."""

    name = "evolve"

    def __init__(
        self,
        selection: Selection,
        mutation: Mutation,
        champion: Champion,
        genomes: Sequence[Genome],
        seed: int,
        fitness: Fitness = MEAN,
        lag: int = 0,
    ) -> None:
        """`genomes` are those of the agents that the run starts with.

        With a `lag` of 1 fitness is that of the weights with which the generation began.
        """
        self.selection, self.mutation, self.champion = selection, mutation, champion
        self.seed = seed
        self.fitness, self.lag = fitness, lag
        self.next_id = 1 + max(genome.id for genome in genomes)
        # [P, E] of the latest evaluations; a child's are its parent's until it has its own
        self._returns: deque[npt.NDArray[np.float64]] = deque(maxlen=selection.eval_loop)
        # fitness at the last evaluation; a child's is its parent's
        self._before = np.full(len(genomes), np.nan)
        self._children = (-1, 0)  # of the champion: of which generation it is, how many

    def __call__(self, context: TrainingContext) -> None:
        """Replace agents by children of better ones; not after the last generation."""
        snapshot = context.snapshot
        if snapshot.finished:
            return
        with context.timer("evolve"):
            self._returns.append(snapshot.returns)
            values = [genome.hyperparameters for genome in snapshot.genomes]
            # a change of fitness tells of those hyperparameters that have trained for it
            trained = [genome.born <= snapshot.ended - self.lag for genome in snapshot.genomes]
            before = np.where(trained, self._before, np.nan)
            self.mutation.explore.observe(snapshot.ended, values, before, snapshot.fitness)
            if snapshot.places < snapshot.agents:
                self._narrow(snapshot)
            parents = self._select(snapshot)
            self._before = snapshot.fitness[parents]
            self._returns = deque((own[parents] for own in self._returns), self._returns.maxlen)
            if (parents != np.arange(len(parents))).any():
                self._replace(snapshot, parents)
            if snapshot.ended < self.lag:
                self._returns.clear()  # of agents that had not trained
            snapshot.evolved = True

    def _narrow(self, snapshot: Snapshot) -> None:
        """Only the best are left, as many as there are places, in their old order."""
        fitness = self.fitness(self._stacked())
        unknown = np.where(np.isnan(fitness), -np.finfo(float).max, fitness)  # before the dead
        order = np.argsort(-np.where(snapshot.alive, unknown, -np.inf), kind="stable")
        kept = np.sort(order[: snapshot.places])
        snapshot.keep(kept)
        self._before = self._before[kept]
        self._returns = deque((own[kept] for own in self._returns), self._returns.maxlen)

    def _select(self, snapshot: Snapshot) -> npt.NDArray[np.int64]:
        """Who follows whom; before there are enough evaluations to average, only the dead go.

        Nor does anybody else make room where those who have not trained at all were evaluated.
        """
        returns, alive = self._stacked(), snapshot.alive
        if not np.isfinite(snapshot.fitness).any():  # nothing is known of those that live
            return np.arange(snapshot.agents)
        random = generator(self.seed, "selection", snapshot.ended)
        parents = self.selection(returns, alive, random, self.fitness)
        if len(returns) == self._returns.maxlen and snapshot.ended >= self.lag:
            return parents
        return np.where(snapshot.fitness == -np.inf, parents, np.arange(len(parents)))

    def _replace(self, snapshot: Snapshot, parents: npt.NDArray[np.int64]) -> None:
        genomes: list[Genome] = list(snapshot.genomes)
        states: list[AgentState] = [snapshot.states[int(parent)] for parent in parents]
        for name in ("agent_steps", "loss"):  # counted from where parents were
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
        stays = parents == np.arange(len(parents))
        snapshot.fitness = np.where(stays, snapshot.fitness, np.nan)  # a child has none yet
        snapshot.returns = np.where(stays[:, None], snapshot.returns, np.nan)

    def _parent(
        self, snapshot: Snapshot, place: int, selected: int, state: AgentState
    ) -> tuple[KeptAgent, float]:
        """The parent, and its fitness: the one selected, or the champion, if that was better.

        Going on from the peak, with other hyperparameters, is often the better start. The child's
        replay is the selected parent's all the same, its evaluations the score by which the
        champion was confirmed. Explore strategies do not learn from that: it is the best of many.
        """
        genome = snapshot.genomes[selected]
        best = self.champion.agent
        if best is None or not self._goes_back(snapshot, place, genome, best):
            found = KeptAgent(genome, state, snapshot.ended, int(snapshot.agent_steps[place]))
            return found, float(self._before[place])
        snapshot.agent_steps[place] = best.own_steps
        self._before[place] = np.nan
        score = self._champions_fitness(best)
        played = self.champion.played if self.fitness.paired else np.array([score])
        for returns in self._returns:
            returns[place] = self.fitness.stand_in(played, returns.shape[1])
        self._children = (best.generation, self._children[1] + 1)
        return best, score

    def _goes_back(self, snapshot: Snapshot, place: int, selected: Genome, best: KeptAgent) -> bool:
        """Whether a child descends from the champion, and not from the one selected."""
        random = generator(self.seed, "champion", snapshot.ended, place)
        if random.random() >= self.selection.champion:
            return False
        if (best.genome.id, best.generation) == (selected.id, snapshot.ended - self.lag):
            return False
        found = self.fitness(self._stacked())[place]  # of the one selected
        if not self._champions_fitness(best) > found:
            return False
        if self._children[0] != best.generation:
            self._children = (best.generation, 0)
        # as many as there are agents: after that, going on from there has been tried enough
        return self._children[1] < len(self._before)

    def _champions_fitness(self, best: KeptAgent) -> float:
        """By the measure of all others: where they explore, what it had when it did, too."""
        return self.champion.score if self.fitness.paired else float(best.facts["fitness"])

    def _stacked(self) -> npt.NDArray[np.float64]:
        """The returns of the latest evaluations [L, P, E]; NaN where there are fewer than E."""
        if self.fitness.paired:
            return np.stack(self._returns)
        each = filled_up([row for returns in self._returns for row in returns])
        return each.reshape(len(self._returns), -1, each.shape[1])

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `restore` needs, as JSON and tensors."""
        returns = self._stacked() if self._returns else np.zeros((0, 0, 0))
        tensors = {"returns": returns, "before": self._before}
        values = {"next_id": self.next_id, "children": list(self._children)}
        values |= {"explore": self.mutation.explore.state()}
        return values, {name: torch.from_numpy(value) for name, value in tensors.items()}

    def restore(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Resume from an earlier `state`."""
        before = check_tensor(tensors, "before", None)
        agents = len(before) if len(tensors["returns"]) else 0
        returns = check_tensor(tensors, "returns", None, agents, None)
        self.next_id = values["next_id"]
        self._children = (values["children"][0], values["children"][1])
        self.mutation.explore.restore(values["explore"])
        self._returns = deque(returns.numpy(), self._returns.maxlen)
        self._before = before.numpy().copy()


class FollowSchedule:
    """Gives every agent the hyperparameters of its own step, along what another run has found."""

    def __init__(self, population: Population, schedule: Schedule) -> None:
        self.population, self.schedule = population, schedule

    def __call__(self, context: TrainingContext) -> None:
        """Before the iteration's first action."""
        population, old = self.population, self.population.genomes
        genomes = [
            dataclasses.replace(genome, hyperparameters=self.schedule.at(int(steps)))
            for genome, steps in zip(old, context.agent_steps, strict=True)
        ]
        if genomes != old:
            alive = population.alive
            returns = population.running_returns
            population.rebuild(genomes, [population.state(i) for i in range(population.size)])
            population.running_returns = returns  # their episodes continue
            population.alive = alive
