"""The population: all agents, held as a few matrices, acting and learning together.

Legend: P agents, N environments of an agent, U updates of a round, K networks, B batch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.algorithms import Algorithm, Hyperparameters, Trained
from evorl.experience import SampleRequest, split_groups
from evorl.genome import Genome
from evorl.machine import keep_freed_memory
from evorl.networks import (
    Layout,
    Networks,
    NetworkSpec,
    NormalizerSpec,
    Parameters,
    Signature,
    fresh_parameters,
)
from evorl.population.compiled import CompiledRounds
from evorl.population.group import AgentState, Group, newborn
from evorl.population.grouping import Kind, kinds_of
from evorl.population.measures import measure
from evorl.population.optimizer import RoundPlanner
from evorl.population.statistics import KeepsStatistics, joined
from evorl.population.update import AnySamples, apply_gradients, compute_gradients, eager_round

REQUESTS_KEPT = 64  # agents' learn steps make a few patterns that repeat

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Learned(NamedTuple):
    """What a round of updates showed."""

    loss: Floats  # [P] mean over the agent's updates; NaN where it made none
    updates: Ints  # [P] that were made
    priorities: list[Tensor]  # for each group [U, P, B]


class GroupGradients(NamedTuple):
    """What one update of every agent would go by."""

    matrices: list[Tensor]  # for each group [P, D]
    loss: Floats  # [P]


class Population(KeepsStatistics):
    """Agents in groups by kind; an agent's number is its position in `genomes`."""

    def __init__(
        self,
        genomes: Sequence[Genome],
        networks: Mapping[str, Trained],
        algorithm: Algorithm,
        *,
        states: Sequence[AgentState] | None = None,
        seed: int = 0,
        compiled: bool = False,
        kinds: Sequence[Kind] | None = None,
        average: Callable[[Tensor], None] | None = None,
        half: torch.dtype | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """`networks` are what `algorithm.networks` declares for the environment.

        Without `states` agents are newborn, with weights drawn by the seed.
        """
        keep_freed_memory()
        self.networks, self.algorithm = dict(networks), algorithm
        self.specs = {name: own.spec for name, own in networks.items()}
        self._trained = [n for n in networks.values() if not isinstance(n.spec, NormalizerSpec)]
        self.dtype, self.device = dtype, torch.device(device)
        self.average = average  # gradients over the ranks that train the same agents
        self.half = half  # the type of matrix products; weights and losses keep theirs
        usual = algorithm.hyperparameters  # and no agent's own: programs are alike on all ranks
        delayed = frozenset(n for n, own in networks.items() if own.every and usual[own.every] > 1)
        self.compiled = CompiledRounds(algorithm, delayed=delayed) if compiled else None
        if states is None:
            states = [newborn(fresh_parameters(self.specs, own, seed)) for own in genomes]
        self.rebuild(genomes, states, kinds)

    @classmethod
    def of_one(
        cls,
        genome: Genome,
        weights: Parameters,
        networks: Mapping[str, Trained],
        algorithm: Algorithm,
    ) -> "Population":
        """One agent, to play or to ask for values."""
        return cls([genome], networks, algorithm, states=[newborn(weights)])

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
        masked = self.compiled is not None
        members: dict[Kind, list[int]] = {}
        if kinds is None:
            kinds = kinds_of(self.specs, self.genomes, masked)
        for i, kind in enumerate(kinds):
            members.setdefault(kind, []).append(i)
        self.kinds = list(members)  # one for each group
        self.groups: list[Group] = []
        self.members: list[Ints] = []  # for each group the numbers of its agents
        for kind, unsorted in members.items():
            numbers = sorted(unsorted, key=self._depths)
            group = Group(
                Layout(self.specs, self._signatures(kind)),
                [self.genomes[i] for i in numbers],
                [states[i] for i in numbers],
                self.dtype,
                self.device,
                masked,
            )
            self.groups.append(group)
            self.members.append(np.array(numbers, dtype=np.int64))
        self.alive = np.ones(len(self.genomes), dtype=bool)
        self.running_returns: Floats | None = None  # [P, N] discounted, of the running episodes
        self._requests: dict[bytes, list[SampleRequest]] = {}  # by what each agent is to do
        self._lay_out_numbers()

    def _depths(self, agent: int) -> tuple[int, ...]:
        """By which a group's agents are sorted: the deepest first."""
        own = self.genomes[agent].architectures
        return tuple(-own[name].depth for name in self.specs if name in own)

    def _signatures(self, kind: Kind) -> dict[str, Signature]:
        """A kind's signatures by network."""
        named = [name for name, spec in self.specs.items() if isinstance(spec, NetworkSpec)]
        return dict(zip(named, kind.signatures, strict=True))

    def _lay_out_numbers(self) -> None:
        """All agents' numbers in one array each, of which groups have views: a round asks once."""
        self._order = np.concatenate(self.members)  # agents as the groups have them
        self._places = np.argsort(self._order)  # where each agent is among those
        self._in_order = np.array_equal(self._order, np.arange(self.size))
        ends = np.cumsum([group.size for group in self.groups]).tolist()
        self._parts = [
            slice(end - group.size, end) for end, group in zip(ends, self.groups, strict=True)
        ]
        self._updates = np.concatenate([group.updates for group in self.groups])
        self._hp_by_group = {
            name: np.concatenate([group.hp[name] for group in self.groups])
            for name in self.groups[0].names
        }
        for part, group in zip(self._parts, self.groups, strict=True):
            group.updates = self._updates[part]
            group.hp = {name: values[part] for name, values in self._hp_by_group.items()}
        self._hp_by_agent = {name: own[self._places] for name, own in self._hp_by_group.items()}
        for values in self._hp_by_agent.values():
            values.flags.writeable = False
        numbers = (self._hp_by_group, self._parts, self.groups[0].theta)
        self._plan = RoundPlanner(self.networks, self._trained, *numbers)

    @property
    def size(self) -> int:
        """The number of agents P."""
        return len(self.genomes)

    @property
    def widest(self) -> int:
        """Units of the widest layer, padded."""
        kinds = [own for kind in self.kinds for own in kind.signatures]
        return max(max(own.widths) for own in kinds)

    @property
    def pixels(self) -> int:
        """Of an observation that is an image, height times width; else 0."""
        specs = [own for own in self.specs.values() if isinstance(own, NetworkSpec)]
        return max((math.prod(own.image[1:]) for own in specs if own.image), default=0)

    def hyperparameter(self, name: str) -> Floats:
        """One hyperparameter of every agent, [P]; read only."""
        return self._hp_by_agent[name]

    def state(self, agent: int) -> AgentState:
        """One agent's weights and optimizer, without padding."""
        for numbers, group in zip(self.members, self.groups, strict=True):
            found = np.flatnonzero(numbers == agent)
            if len(found):
                return group.state(int(found[0]))
        raise IndexError(f"agent {agent} of {self.size}")

    def act(self, obs: Array, noise: Mapping[str, Array], exploration: Floats) -> npt.NDArray[Any]:
        """Actions [P, N] in training, for observations [P, N, ...] and noise [P, N, ...]."""
        if not self._in_order:
            noise = {name: values[self._order] for name, values in noise.items()}
            exploration = exploration[self._order]

        def policy(networks: Networks, hp: Hyperparameters, own: Tensor, part: slice) -> Tensor:
            drawn = {name: self._tensor(values[part]) for name, values in noise.items()}
            return self.algorithm.act(networks, own, hp, drawn, self._tensor(exploration[part]))

        return self._each_group(obs, policy)

    def exploration(self, steps: Ints) -> Floats:
        """How much each agent explores [P] after its own environment steps [P]."""
        found = self.algorithm.exploration(self._hp_by_agent, steps)
        return np.array(found, dtype=np.float64)  # it may be one of the hyperparameters itself

    def greedy(self, obs: Array) -> npt.NDArray[Any]:
        """The best actions [P, N] that the agents know, for observations [P, N, ...]."""

        def policy(networks: Networks, hp: Hyperparameters, own: Tensor, part: slice) -> Tensor:
            return self.algorithm.greedy(networks, own)

        return self._each_group(obs, policy)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Log-probabilities [P, B] of every agent's actions at its observations [P, B, ...]."""
        log_prob = self.algorithm.log_prob
        return self.of_groups(lambda group, *own: log_prob(group.online, *own), obs, action)

    def value(self, obs: Tensor) -> Tensor:
        """What observations [P, B, ...] are worth to every agent, [P, B]."""
        return self.of_groups(lambda group, own: self.algorithm.value(group.online, own), obs)

    def of_groups(self, function: Callable[..., Tensor], *fields: Tensor) -> Tensor:
        """What a function of a group and its part of fields [P, ...] gives, in agents' order."""
        order = [torch.from_numpy(self._order[part]) for part in self._parts]
        with torch.inference_mode(), self._precision():
            found = [
                function(
                    group,
                    *(
                        field if self._in_order and len(order) == 1 else field[own]
                        for field in fields
                    ),
                )
                for group, own in zip(self.groups, order, strict=True)
            ]
            each = joined(found)
            return each if self._in_order else each[torch.from_numpy(self._places)]

    def _each_group(
        self, obs: Array, policy: Callable[[Networks, Hyperparameters, Tensor, slice], Tensor]
    ) -> npt.NDArray[Any]:
        """What a policy gives for every agent, in the agents' order.

        It is called for each group, with its part of all agents as the groups have them.
        """
        batch = self._tensor(obs)
        with torch.inference_mode(), self._precision():
            if not self._in_order:
                batch = batch[torch.from_numpy(self._order)]
            found = [
                policy(
                    group.online,
                    group.hyperparameters,
                    batch if len(self.groups) == 1 else batch[part],
                    part,
                )
                for group, part in zip(self.groups, self._parts, strict=True)
            ]
            actions: npt.NDArray[Any] = joined(found).cpu().numpy()
        return actions if self._in_order else actions[self._places]

    def _tensor(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    def requests(self, updates: Ints, sizes: Ints | None = None) -> list[SampleRequest]:
        """What a round asks of experience, when agent i is to make updates[i] updates.

        On batches of sizes[i], or as large as its hyperparameter says.
        """
        updates = np.where(self.alive, updates, 0)
        key = updates.tobytes() + (b"" if sizes is None else sizes.tobytes())
        if (found := self._requests.get(key)) is None:
            found = []
            for kind, numbers, group in zip(self.kinds, self.members, self.groups, strict=True):
                own = group.hp["batch_size"].astype(np.int64) if sizes is None else sizes[numbers]
                width = kind.batch if sizes is None else int(own.max())
                found.append(SampleRequest(numbers, updates[numbers], own, width))
            if len(self._requests) >= REQUESTS_KEPT:
                self._requests.clear()
            self._requests[key] = found
        return found

    @torch.no_grad()
    def learn(self, samples: AnySamples, requests: Sequence[SampleRequest]) -> Learned:
        """One round: every agent makes the updates that were requested for it."""
        updates = np.concatenate([request.updates for request in requests])
        parts, rounds = split_groups(samples, requests), self._plan(self._updates, updates)
        with self._precision():
            if self.compiled is None or self.average is not None:
                outcomes = eager_round(self.groups, self.algorithm, parts, rounds, self.average)
            else:
                outcomes = list(map(self.compiled.learn, self.groups, parts, rounds))
        if self.algorithm.may_stop:
            made = [own.made for own in outcomes if own.made is not None]
            updates = np.minimum(updates, joined(made).cpu().numpy())
        self._updates += updates
        sums = joined([own.loss for own in outcomes]).cpu().numpy()
        learned = updates > 0
        with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is NaN, as it should be
            loss = np.where(learned, (sums / updates).astype(sums.dtype), np.nan)[self._places]
        self.alive &= (np.isfinite(sums) | ~learned)[self._places]
        return Learned(loss, updates[self._places], [own.priority for own in outcomes])

    @torch.no_grad()
    def gradients(self, samples: AnySamples, requests: Sequence[SampleRequest]) -> GroupGradients:
        """What the one update of a round would go by; nobody moves."""
        parts = split_groups(samples, requests)
        with self._precision():
            found = compute_gradients(self.groups, self.algorithm, parts)
        loss = joined([own.loss for own in found if own.loss is not None]).cpu().double()
        return GroupGradients([own.gradient.clone() for own in found], loss.numpy()[self._places])

    @torch.no_grad()
    def measure(self, samples: AnySamples, requests: Sequence[SampleRequest]) -> dict[str, Floats]:
        """What the first update of a round would show beside its loss, by name, [P] each.

        NaN where nothing is known of an agent. Nobody moves.
        """
        measured: dict[str, Floats] = {}
        parts = split_groups(samples, requests)
        with self._precision():
            for group, numbers, own in zip(self.groups, self.members, parts, strict=True):
                for name, values in measure(group, self.algorithm, own).items():
                    found = measured.setdefault(name, np.full(self.size, np.nan))
                    found[numbers] = values.double().cpu().numpy()
        return {name: np.where(self.alive, own, np.nan) for name, own in measured.items()}

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor], updates: Ints) -> None:
        """Move agent i by its row of these gradients, [P, D] of each group, if updates[i] is 1."""
        made = np.where(self.alive, updates, 0)[self._order]
        steps = self._plan(self._updates, made)
        for group, own in zip(self.groups, gradients, strict=True):
            group.gradient.copy_(own)
        apply_gradients(self.groups, self.algorithm, steps, self.average)
        self._updates += made

    def _precision(self) -> AbstractContextManager[Any]:
        if self.half is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.half)

    def mark_dead(self) -> Ints:
        """Mark agents whose weights or moments are not finite; the numbers of all that are dead.

        Weights can stay finite when a second moment is not, but they never move again.
        """
        for numbers, group in zip(self.members, self.groups, strict=True):
            for matrix in (group.theta, group.matrices.m, group.matrices.v):
                self.alive[numbers] &= matrix.isfinite().all(1).cpu().numpy()
        return np.flatnonzero(~self.alive)
