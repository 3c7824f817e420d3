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
    Moments,
    Networks,
    NetworkSpec,
    NormalizerSpec,
    Signature,
    encode,
    fresh_parameters,
    scale_of,
)
from evorl.population.compiled import CompiledRounds
from evorl.population.group import AgentState, Group, newborn
from evorl.population.grouping import Kind, kinds_of
from evorl.population.optimizer import coefficients, idle_networks
from evorl.population.update import AnySamples, Steps, eager_round

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


class Population:
    """Agents in groups by kind; an agent's number is its position in `genomes`."""

    def __init__(
        self,
        genomes: Sequence[Genome],
        networks: Mapping[str, Trained],
        algorithm: Algorithm,
        *,
        seed: int = 0,
        compiled: bool = False,
        kinds: Sequence[Kind] | None = None,
        average: Callable[[Tensor], None] | None = None,
        half: torch.dtype | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """`networks` are what `algorithm.networks` declares for the environment."""
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
        born = [fresh_parameters(self.specs, genome, seed) for genome in genomes]
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
        self.returns: Floats | None = None  # [P, N] discounted, of the running episodes
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
        self._steps = np.concatenate([group.steps for group in self.groups])
        self._hp = {
            name: np.concatenate([group.hp[name] for group in self.groups])
            for name in self.groups[0].names
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
        kinds = [own for kind in self.kinds for own in kind.signatures]
        return max(max(own.widths) for own in kinds)

    @property
    def pixels(self) -> int:
        """Of an observation that is an image, height times width; else 0."""
        specs = [own for own in self.specs.values() if isinstance(own, NetworkSpec)]
        return max((math.prod(own.image[1:]) for own in specs if own.image), default=0)

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
        found = self.algorithm.exploration(self._hyperparameters, steps)
        return np.array(found, dtype=np.float64)  # it may be one of the hyperparameters itself

    def greedy(self, obs: Array) -> npt.NDArray[Any]:
        """The best actions [P, N] that the agents know, for observations [P, N, ...]."""

        def policy(networks: Networks, hp: Hyperparameters, own: Tensor, part: slice) -> Tensor:
            return self.algorithm.greedy(networks, own)

        return self._each_group(obs, policy)

    def judge(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """What agents think of actions [P, B, ...] at observations: log-probabilities and values.

        [P, B] each, in the agents' order.
        """
        order, places = torch.from_numpy(self._order), torch.from_numpy(self._places)
        with torch.inference_mode(), self._precision():
            found = [
                self.algorithm.judge(group.online, obs[order[part]], action[order[part]])
                for group, part in zip(self.groups, self._parts, strict=True)
            ]
            log_prob, value = (_joined(own)[places] for own in zip(*found, strict=True))
        return log_prob, value

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
            actions: npt.NDArray[Any] = _joined(found).cpu().numpy()
        return actions if self._in_order else actions[self._places]

    def _tensor(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    def observe(self, obs: Array) -> None:
        """Take observations [P, N, ...] of training into every living agent's statistics."""
        if "obs_mean" in self.groups[0].normalizer:
            spec = next(own for own in self.specs.values() if isinstance(own, NetworkSpec))
            data = encode(spec, self._tensor(obs), self.dtype)
            self._merge("obs", data, self.alive[:, None].repeat(obs.shape[1], 1))

    @property
    def unobserved(self) -> bool:
        """Whether some living agent's observations are to be normalised, and none were seen yet."""
        counts = [own.normalizer.get("obs_samples") for own in self.groups]
        alive = [torch.from_numpy(self.alive[numbers]) for numbers in self.members]
        pairs = zip(counts, alive, strict=True)
        return any(own is not None and bool((own.cpu()[is_] == 0).any()) for own, is_ in pairs)

    def observe_rewards(self, reward: Array, ended: Bools, valid: Bools | None = None) -> None:
        """Take a step's rewards [P, N] into the statistics of discounted returns.

        Args:
            reward: As the environments gave them.
            ended: [P, N] whose episode is over, in whatever way.
            valid: [P, N] False: no step at all. None: all are.
        """
        if "return_mean" not in self.groups[0].normalizer:
            return
        there = self.alive[:, None].repeat(reward.shape[1], 1)
        there = there if valid is None else there & valid
        before = np.zeros(reward.shape) if self.returns is None else self.returns
        gamma = self.hyperparameter("gamma")[:, None]
        returns = np.where(there, gamma * before + reward, 0)
        self._merge("return", self._tensor(returns[..., None]), there)
        self.returns = np.where(ended, 0, returns)

    def reward_scale(self) -> Tensor | None:
        """What rewards are multiplied by when they are learned from, [P]; None: they are not."""
        each = [scale_of(group.normalizer) for group in self.groups]
        found = _joined([own for own in each if own is not None]) if each[0] is not None else None
        return found if found is None or self._in_order else found[self._tensor(self._places)]

    @torch.no_grad()
    def _merge(self, what: str, data: Tensor, there: Bools) -> None:
        """Take samples [P, N, K] into every agent's statistics, where they are there [P, N]."""
        each = self._tensor(there)
        if not self._in_order:
            order = self._tensor(self._order)
            data, each = data[order], each[order]
        moments = [own for group in self.groups if (own := Moments.of(group.normalizer, what))]
        pairs = zip(moments, self._parts, strict=True)
        sums = torch.cat([own.sums(data[part], each[part]) for own, part in pairs])
        if self.average is not None:  # over the ranks that train the same agents
            self.average(sums)
        for own, part in zip(moments, self._parts, strict=True):
            own.merge_(sums[part])

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
        parts, rounds = split_groups(samples, requests), self._coefficients(updates, requests)
        with self._precision():
            if self.compiled is None or self.average is not None:
                outcomes = eager_round(self.groups, self.algorithm, parts, rounds, self.average)
            else:
                outcomes = list(map(self.compiled.learn, self.groups, parts, rounds))
        if self.algorithm.may_stop:
            made = [own.made for own in outcomes if own.made is not None]
            updates = np.minimum(updates, _joined(made).cpu().numpy())
        self._steps += updates
        sums = _joined([own.loss for own in outcomes]).cpu().numpy()
        learned = updates > 0
        loss = np.full(self.size, np.nan)
        loss[self._order] = np.divide(sums, updates, out=np.full_like(sums, np.nan), where=learned)
        self.alive[self._order] &= np.isfinite(sums) | ~learned
        return Learned(loss, updates[self._places], [own.priority for own in outcomes])

    def _precision(self) -> AbstractContextManager[Any]:
        if self.half is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.half)

    def _coefficients(self, updates: Ints, requests: Sequence[SampleRequest]) -> list[Steps]:
        """The coefficients [U, K, 6, P, 1] of a round, and who rests in it, for each group."""
        rows = coefficients(self._steps, updates, self._hp, self._trained)
        own = (
            rows[: request.shape[0], :, :, part]
            for request, part in zip(requests, self._parts, strict=True)
        )
        wanted = np.float64 if self.dtype == torch.float64 else np.float32
        return [
            Steps(
                torch.from_numpy(np.ascontiguousarray(each, wanted)).to(self.device),
                idle_networks(each, self.networks),
            )
            for each in own
        ]

    def mark_dead(self) -> Ints:
        """Mark agents whose weights or moments are not finite; the numbers of all that are dead.

        Weights can stay finite when a second moment is not, but they never move again.
        """
        for numbers, group in zip(self.members, self.groups, strict=True):
            for matrix in (group.theta, group.matrices.m, group.matrices.v):
                self.alive[numbers] &= matrix.isfinite().all(1).cpu().numpy()
        return np.flatnonzero(~self.alive)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """One after another; mostly there is one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
