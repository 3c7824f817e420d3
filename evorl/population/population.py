"""The population: all agents, held as a few matrices, acting and learning together.

Legend: P agents, N environments of an agent, U updates of a round, B batch, n reward steps.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.algorithms.base import Algorithm
from evorl.experience.requests import GroupPlan, split_groups
from evorl.experience.transitions import Samples
from evorl.genome import HYPERPARAMETERS, Genome
from evorl.machine import keep_freed_memory
from evorl.networks.initial import fresh_parameters
from evorl.networks.layout import Layout, Problem
from evorl.population.compiled import CompiledRounds
from evorl.population.group import AgentState, Group, newborn
from evorl.population.grouping import Kind, kinds_of
from evorl.population.optimizer import coefficients
from evorl.population.update import Outcome, eager_round, updates_of

PLANS_KEPT = 64  # agents' learn steps make a few patterns that repeat

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Learned(NamedTuple):
    """What a round of updates showed."""

    loss: Floats  # [P] mean over the agent's updates; NaN where it made none
    td_errors: list[Tensor]  # for each group [U, P, B]


class Population:
    """Agents in groups by kind; an agent's number is its position in `genomes`."""

    def __init__(
        self,
        genomes: Sequence[Genome],
        problem: Problem,
        algorithm: Algorithm,
        *,
        seed: int = 0,
        periodic_target: bool = False,
        compiled: bool = False,
        kinds: Sequence[Kind] | None = None,
        reduce: Callable[[Tensor], None] | None = None,
        half: torch.dtype | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        keep_freed_memory()
        self.problem, self.algorithm = problem, algorithm
        self.periodic_target = periodic_target
        self.dtype, self.device = dtype, torch.device(device)
        self.reduce = reduce  # averages gradients over the ranks that train the same agents
        self.half = half  # the type of matrix products; weights and losses keep theirs
        self.compiled = CompiledRounds(algorithm) if compiled else None
        born = [fresh_parameters(problem, genome, seed) for genome in genomes]
        self.rebuild(genomes, [newborn(parameters) for parameters in born], kinds)

    def rebuild(
        self,
        genomes: Sequence[Genome],
        states: Sequence[AgentState],
        kinds: Sequence[Kind] | None = None,
    ) -> None:
        """Replace every agent: sort these into groups and pad them into matrices.

        `kinds` are how the agents are computed, if others on other ranks have a say in it.
        """
        self.genomes = list(genomes)
        whole = self.compiled is not None
        members: dict[Kind, list[int]] = {}
        if kinds is None:
            kinds = kinds_of(self.problem, self.genomes, whole)
        for i, kind in enumerate(kinds):
            members.setdefault(kind, []).append(i)
        self.kinds = list(members)  # one for each group
        self.groups: list[Group] = []
        self.members: list[Ints] = []  # for each group the numbers of its agents
        for kind, unsorted in members.items():
            numbers = sorted(unsorted, key=lambda i: -self.genomes[i].architecture.depth)
            group = Group(
                Layout(self.problem, kind.signature),
                [self.genomes[i] for i in numbers],
                [states[i] for i in numbers],
                self.dtype,
                self.device,
                whole,
            )
            self.groups.append(group)
            self.members.append(np.array(numbers, dtype=np.int64))
        self.alive = np.ones(len(self.genomes), dtype=bool)
        self._plans: dict[bytes, list[GroupPlan]] = {}  # by what each agent is to do
        self._lay_out_numbers()

    def _lay_out_numbers(self) -> None:
        """All agents' numbers in one array each, of which groups have views: a round asks once."""
        self._order = np.concatenate(self.members)  # agents as the groups have them
        self._places = np.argsort(self._order)  # where each agent is among those
        self._in_order = np.array_equal(self._order, np.arange(self.size))
        ends = np.cumsum([group.size for group in self.groups]).tolist()
        self._parts = [
            slice(end - group.size, end) for end, group in zip(ends, self.groups, strict=True)
        ]
        self._steps = np.concatenate([group.steps for group in self.groups])
        self._hp = {
            name: np.concatenate([group.hp[name] for group in self.groups])
            for name in HYPERPARAMETERS
        }
        for part, group in zip(self._parts, self.groups, strict=True):
            group.steps = self._steps[part]
            group.hp = {name: values[part] for name, values in self._hp.items()}
        self._hyperparameters = {name: values[self._places] for name, values in self._hp.items()}
        for values in self._hyperparameters.values():
            values.flags.writeable = False

    @property
    def size(self) -> int:
        """The number of agents P."""
        return len(self.genomes)

    @property
    def widest(self) -> int:
        """Units of the widest layer, padded."""
        return max(max(group.layout.signature.widths) for group in self.groups)

    @property
    def pixels(self) -> int:
        """Of an observation that is an image, height times width; else 0."""
        return math.prod(self.problem.image[1:]) if self.problem.image else 0

    def hyperparameter(self, name: str) -> Floats:
        """One hyperparameter of every agent, [P]; read only."""
        return self._hyperparameters[name]

    def state(self, agent: int) -> AgentState:
        """One agent's weights and optimizer, without padding."""
        for numbers, group in zip(self.members, self.groups, strict=True):
            found = np.flatnonzero(numbers == agent)
            if len(found):
                return group.state(int(found[0]))
        raise IndexError(f"agent {agent} of {self.size}")

    @torch.inference_mode()
    def act(
        self, obs: npt.NDArray[np.generic], explore: npt.NDArray[np.bool_], random: Ints
    ) -> Ints:
        """Actions [P, N] for observations [P, N, ...]: greedy, or `random` where `explore`."""
        with self._precision():
            return self._act(torch.from_numpy(obs).to(self.device), explore, random)

    def _act(self, batch: Tensor, explore: npt.NDArray[np.bool_], random: Ints) -> Ints:
        if not self._in_order:
            batch = batch[torch.from_numpy(self._order)]
        values = [
            group.values(batch[part]) for group, part in zip(self.groups, self._parts, strict=True)
        ]
        together = _joined(values)
        if not self._in_order:
            together = together[torch.from_numpy(self._places)]
        return self.algorithm.act(together, explore, random)

    def plans(self, updates: Ints) -> list[GroupPlan]:
        """What a round asks of the replay, when agent i is to make updates[i] updates."""
        updates = np.where(self.alive, updates, 0)
        key = updates.tobytes()
        if (found := self._plans.get(key)) is None:
            found = []
            for kind, numbers, group in zip(self.kinds, self.members, self.groups, strict=True):
                sizes = group.hp["batch_size"].astype(np.int64)
                found.append(GroupPlan(numbers, updates[numbers], sizes, kind.batch))
            if len(self._plans) >= PLANS_KEPT:
                self._plans.clear()
            self._plans[key] = found
        return found

    @torch.no_grad()
    def learn(self, samples: Samples, plans: Sequence[GroupPlan]) -> Learned:
        """One round: every agent makes the updates planned for it."""
        updates = np.concatenate([plan.updates for plan in plans])
        parts, numbers = split_groups(samples, plans), self._numbers(updates, plans)
        with self._precision():
            if self.reduce is not None:
                outcomes = self._learn_as_one(parts, numbers)
            else:
                each = zip(self.groups, parts, numbers, strict=True)
                outcomes = [self._learn_group(*own) for own in each]
        self._steps += updates
        sums = _joined([losses for _, losses in outcomes]).cpu().numpy()
        learned = updates > 0
        loss = np.full(self.size, np.nan)
        loss[self._order] = np.divide(sums, updates, out=np.full_like(sums, np.nan), where=learned)
        self.alive[self._order] &= np.isfinite(sums) | ~learned
        return Learned(loss, [errors for errors, _ in outcomes])

    def _precision(self) -> AbstractContextManager[Any]:
        if self.half is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.half)

    def _learn_as_one(self, parts: Sequence[Samples], numbers: Sequence[Tensor]) -> list[Outcome]:
        """All groups update by update: their gradients are averaged over ranks in one go."""
        assert self.reduce is not None
        rounds = [
            list(updates_of(own, group.gamma, each))
            for group, own, each in zip(self.groups, parts, numbers, strict=True)
        ]
        errors: list[list[Tensor]] = [[] for _ in self.groups]
        for u in range(max(map(len, rounds), default=0)):
            due = [i for i, own in enumerate(rounds) if u < len(own)]
            for i in due:
                errors[i].append(self.groups[i].find_gradient(self.algorithm, rounds[i][u][0]))
            flat = torch.cat([self.groups[i].gradient.reshape(-1) for i in due])
            self.reduce(flat)
            sizes = [self.groups[i].gradient.numel() for i in due]
            for i, part in zip(due, torch.split(flat, sizes), strict=True):
                self.groups[i].gradient.copy_(part.view_as(self.groups[i].gradient))
                self.groups[i].apply_gradient(rounds[i][u][1])
        outcomes = []
        for own, samples in zip(errors, parts, strict=True):
            found = torch.stack(own) if own else torch.zeros_like(samples.weight)
            outcomes.append((found, self.algorithm.loss(found, samples.weight).sum(0)))
        return outcomes

    def _numbers(self, updates: Ints, plans: Sequence[GroupPlan]) -> list[Tensor]:
        """The coefficients [U, 6, P, 1] of a round, for each group."""
        rows = coefficients(self._steps, updates, self._hp, self.periodic_target)
        own = (
            rows[: plan.shape[0], :, part] for plan, part in zip(plans, self._parts, strict=True)
        )
        wanted = np.float64 if self.dtype == torch.float64 else np.float32
        return [
            torch.from_numpy(np.ascontiguousarray(each, wanted)).to(self.device) for each in own
        ]

    def _learn_group(self, group: Group, samples: Samples, numbers: Tensor) -> Outcome:
        if not len(numbers):
            return torch.zeros_like(samples.weight), group.theta.new_zeros(group.size)
        if self.compiled is not None:
            return self.compiled.learn(group, samples, numbers)
        return eager_round(group, self.algorithm, samples, numbers)

    def mark_dead(self) -> Ints:
        """Mark agents whose weights or moments are not finite; the numbers of all that are dead.

        Weights can stay finite when a second moment is not, but they never move again.
        """
        for numbers, group in zip(self.members, self.groups, strict=True):
            for matrix in (group.theta, group.m, group.v):
                self.alive[numbers] &= matrix.isfinite().all(1).cpu().numpy()
        return np.flatnonzero(~self.alive)

    def check(self, states: Sequence[AgentState] | None = None) -> None:
        """RuntimeError unless the matrices and hyperparameters are what the genomes say.

        With `states` the agents' weights and moments must be these, bit for bit.
        """
        everybody = np.sort(np.concatenate(self.members))
        if not np.array_equal(everybody, np.arange(self.size)):
            raise RuntimeError(f"agents {everybody.tolist()} are in groups, of {self.size}")
        for group in self.groups:
            if not np.shares_memory(group.steps, self._steps) or not all(
                np.shares_memory(group.hp[name], self._hp[name]) for name in HYPERPARAMETERS
            ):
                raise RuntimeError("a group has numbers that rounds do not read")
        for numbers, group in zip(self.members, self.groups, strict=True):
            for row, agent in enumerate(numbers):
                own = None if states is None else states[agent]
                wrong = group.mismatch(row, self.genomes[agent], own)
                given = self.genomes[agent].hyperparameters.items()
                if wrong is None and any(
                    self.hyperparameter(name)[agent] != value for name, value in given
                ):
                    wrong = "numbers are another's"
                if wrong is not None:
                    raise RuntimeError(f"agent {self.genomes[agent].id}: its {wrong}")


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """One after another; mostly there is one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
