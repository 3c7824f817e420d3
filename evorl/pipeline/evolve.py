"""Evolve: at a generation's end, who stays, and who makes room for whose child.

Legend: P agents, E episodes, L latest evaluations.
"""

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.evolution.lineage import birth
from evorl.evolution.mutation import Mutation
from evorl.evolution.selection import Selection
from evorl.genome import Genome
from evorl.pipeline.champion import Champion, HallOfFame
from evorl.pipeline.context import Context
from evorl.pipeline.everybody import Everybody
from evorl.population.group import AgentState
from evorl.runs.directory import RunDirectory
from evorl.seeding import generator


class Evolve:
    """Selection and mutation; everything that a child inherits follows its parent."""

    def __init__(
        self,
        everybody: Everybody,
        hall: HallOfFame,
        selection: Selection,
        mutation: Mutation,
        directory: RunDirectory,
        *,
        seed: int,
    ) -> None:
        self.everybody, self.hall, self.directory = everybody, hall, directory
        self.selection, self.mutation, self.seed = selection, mutation, seed
        self.next_id = 1 + max(genome.id for genome in everybody.genomes)
        # [P, E] of the latest evaluations; a child's are its parent's until it has its own
        self._returns: deque[npt.NDArray[np.float64]] = deque(maxlen=selection.eval_loop)
        # fitness at the last evaluation; a child's is its parent's
        self._before = np.full(everybody.size, np.nan)
        self.births: list[dict[str, Any]] = []  # of the latest turn, as lines of the lineage
        self._children = (-1, 0)  # of the best agent ever seen: since which generation, how many

    def __call__(self, context: Context) -> None:
        """Replace agents by children of better ones; not after the last generation."""
        self.births = []
        if context.finished:
            return
        with context.timer("evolve"):
            self._learn_from(context)
            parents = self._select(context)
            self._before = context.fitness[parents]
            self._returns = deque((own[parents] for own in self._returns), self._returns.maxlen)
            if (parents != np.arange(len(parents))).any():
                self._replace(context, parents)

    def _select(self, context: Context) -> npt.NDArray[np.int64]:
        """Who follows whom; before there are enough evaluations to average, only the dead go."""
        returns, alive = np.stack(self._returns), self.everybody.alive
        random = generator(self.seed, "selection", context.generation)
        parents = self.selection(returns, alive, random)
        if len(returns) == self._returns.maxlen:
            return parents
        return np.where(np.isfinite(context.fitness), np.arange(len(parents)), parents)

    def _learn_from(self, context: Context) -> None:
        self._returns.append(context.returns)
        values = [genome.hyperparameters for genome in self.everybody.genomes]
        self.mutation.explore.observe(context.generation, values, self._before, context.fitness)

    def _replace(self, context: Context, parents: npt.NDArray[np.int64]) -> None:
        genomes: list[Genome] = list(self.everybody.genomes)
        states: list[AgentState] = [self.everybody.state(int(parent)) for parent in parents]
        context.inherit(parents)
        for place in np.flatnonzero(parents != np.arange(len(parents))):
            parent, fitness = self._parent(context, int(place), int(parents[place]), states[place])
            genomes[place], states[place] = self.mutation(
                parent.genome,
                parent.state,
                id=self.next_id,
                generation=context.generation + 1,
                fitness=fitness,
                random=generator(self.seed, "mutation", context.generation, int(place)),
            )
            self.births.append(birth(genomes[place], int(place), parent.genome, parent.generation))
            self.next_id += 1
        self.everybody.replace(genomes, states, parents)
        self.directory.append_lineage(self.births)

    def _parent(
        self, context: Context, place: int, selected: int, state: AgentState
    ) -> tuple[Champion, float]:
        """The parent, and its fitness: the one selected, or the best ever seen, if that was better.

        DQN agents decay after their peak: going on from the peak, with other hyperparameters, is
        often the better start. The child's replay is the selected parent's all the same. What it
        inherits for evaluations is the score by which the best was confirmed; what it makes of
        that, explore strategies do not learn from: the best of many scores is too good. If the
        one selected is the best, and as it was then, its child is like any other.
        """
        genome = self.everybody.genomes[selected]
        best, score = self.hall.champion, self.hall.score
        if best is None or not self._goes_back(context, place, genome, best):
            steps, updates = context.agent_steps[place], context.agent_updates[place]
            found = Champion(genome, state, context.generation, int(steps), int(updates))
            return found, float(self._before[place])
        context.agent_steps[place] = best.own_steps
        context.agent_updates[place] = best.own_updates
        self._before[place] = np.nan
        for returns in self._returns:
            returns[place] = score
        self._children = (best.generation, self._children[1] + 1)
        return best, score

    def _goes_back(self, context: Context, place: int, selected: Genome, best: Champion) -> bool:
        """Whether a child descends from the best as it was, and not from the one selected."""
        random = generator(self.seed, "champion", context.generation, place)
        if random.random() >= self.selection.champion:
            return False
        if (best.genome.id, best.generation) == (selected.id, context.generation):
            return False
        found = float(np.stack(self._returns)[:, place].mean())  # of the one selected
        return bool(self.hall.score > found) and self._children_left(best)

    def _children_left(self, best: Champion) -> bool:
        """As many as there are agents: after that, going on from there has been tried enough."""
        if self._children[0] != best.generation:
            self._children = (best.generation, 0)
        return self._children[1] < self.everybody.size

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `restore` needs, as JSON and tensors."""
        returns = np.stack(self._returns) if self._returns else np.zeros((0, 0, 0))
        tensors = {"evolve.returns": returns, "evolve.before": self._before}
        values: dict[str, Any] = {"next_id": self.next_id, "children": list(self._children)}
        values["explore"] = self.mutation.explore.state()
        return values, {name: torch.from_numpy(value) for name, value in tensors.items()}

    def restore(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go on from an earlier `state`."""
        self.next_id = values["next_id"]
        self._children = (values["children"][0], values["children"][1])
        self.mutation.explore.restore(values["explore"])
        self._returns = deque(tensors["evolve.returns"].numpy(), self._returns.maxlen)
        self._before = tensors["evolve.before"].numpy().copy()
