"""Rollouts: what all agents did since their last updates, drawn in epochs of minibatches.

T steps of a rollout, P agents, N environments of an agent. Step t of environment n of an agent is
item t*N + n of its own part, of T*N items.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.experience.sampling import Sampler, SampleRequest
from evorl.experience.transitions import AnyArray, BoolArray, IntArray, RolloutBatch
from evorl.machine import check_fits

FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "ended", "valid")


class RolloutBuffer:
    """The steps of one rollout, [P, T, N, ...] by field: filled, learned from, and emptied."""

    def __init__(
        self,
        steps: int,
        agents: int,
        num_envs: int,
        obs: tuple[tuple[int, ...], np.dtype[Any]],
        action: tuple[tuple[int, ...], np.dtype[Any]],
        device: torch.device | str = "cpu",
    ) -> None:
        """Observations and actions are given as (shape, type)."""
        self.steps, self.num_replays, self.num_envs = steps, agents, num_envs
        self.capacity, self.device = steps * num_envs, torch.device(device)
        self.reward_dtype = torch.float32
        flag = ((), np.dtype(np.bool_))
        kinds = (obs, action, ((), np.dtype(np.float32)), obs, flag, flag, flag)
        each = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in kinds)
        check_fits(each * agents * self.capacity, f"algorithm.rollout_steps={steps}", "use fewer")
        self._fields = {
            name: np.zeros((agents, steps, num_envs, *shape), dtype)
            for name, (shape, dtype) in zip(FIELDS, kinds, strict=True)
        }
        self.length = 0  # steps so far
        self._attached: dict[str, Tensor] = {}

    @property
    def full(self) -> bool:
        """Whether it is time to learn."""
        return self.length == self.steps

    @property
    def enough(self) -> bool:
        """Whether, at a generation's end, there is half a rollout or more; less is dropped."""
        return 2 * self.length >= self.steps

    @property
    def sizes(self) -> IntArray:
        """Items of each agent, [P]."""
        return np.full(self.num_replays, self.length * self.num_envs)

    def push(
        self,
        obs: AnyArray,
        action: AnyArray,
        reward: AnyArray,
        next_obs: AnyArray,
        terminated: BoolArray,
        truncated: BoolArray,
        valid: BoolArray | None,
    ) -> None:
        """One step of every environment [P*N, ...]; rows where `valid` is False are no steps."""
        there: npt.NDArray[Any] = np.ones(len(reward), np.bool_) if valid is None else valid
        ended = terminated | truncated | ~there
        values = (obs, action, reward, next_obs, terminated, ended, there)
        for field, value in zip(self._fields.values(), values, strict=True):
            field[:, self.length] = value.reshape(self.num_replays, self.num_envs, *value.shape[1:])
        if self.length:  # an environment may raise in the middle of an episode: it was cut before
            missing = ~self._fields["valid"][:, self.length]
            self._fields["ended"][:, self.length - 1] |= missing
        self.length += 1

    def field(self, name: str) -> Tensor:
        """What was collected, [P, T, N, ...]; T as far as it came."""
        return torch.from_numpy(self._fields[name][:, : self.length]).to(self.device)

    def attach(self, **fields: Tensor) -> None:
        """Add what the loss needs beside what was collected, [P, T, N] each."""
        self._attached = {name: value.reshape(-1) for name, value in fields.items()}

    def unrolls(self, log_prob: Tensor) -> dict[str, Tensor]:
        """Each environment's steps by themselves, [P, N, T, ...] by field, for an UnrollStore.

        `log_prob` [P, t, N] is how likely the actions were. Of a rollout that is not full the rest
        is no steps.
        """
        collected = {name: self.field(name) for name in FIELDS} | {"log_prob": log_prob}
        agents, length, num_envs = log_prob.shape
        found = {}
        for name, own in collected.items():
            found[name] = own.new_zeros(agents, num_envs, self.steps, *own.shape[3:])
            found[name][:, :, :length] = own.transpose(1, 2)
        if length < self.steps:
            found["ended"][:, :, length - 1 :] = True
        return found

    def gather(self, slots: Tensor) -> dict[str, Tensor]:
        """Items in flat slots, p * T*N + t*N + n, field by field."""
        kept = {name: self.field(name).flatten(0, 2) for name in ("obs", "action")} | self._attached
        return {name: torch.index_select(value, 0, slots) for name, value in kept.items()}

    def clear(self) -> None:
        """Begin the next one."""
        self.length, self._attached = 0, {}

    def keep(self, agents: IntArray) -> None:
        """Only as many agents are left; what was collected is gone."""
        self.num_replays = len(agents)
        self._fields = {name: own[: len(agents)].copy() for name, own in self._fields.items()}
        self.clear()


class RolloutSampler(Sampler):
    """Each agent goes through its own rollout in random order, again and again."""

    keeps = False

    def __init__(self, rollout: RolloutBuffer, generators: Sequence[np.random.Generator]) -> None:
        super().__init__(rollout, generators)  # type: ignore[arg-type]
        self.rollout = rollout

    def sample(self, requests: Sequence[SampleRequest]) -> Any:
        """All epochs of one rollout; what is left over by the last minibatch is passed by."""
        first_slots = np.arange(len(self._generators)) * self.rollout.sizes[0]
        if not np.array_equal(first_slots, self._first_slots):  # another length than the last one's
            self._first_slots = first_slots
            self._layouts.clear()
        layout = self._layout(requests)
        sizes = {a: b for own in requests for a, b in zip(own.agents, own.batch_sizes, strict=True)}
        drawn = np.empty(len(layout.agents), np.int64)
        for agent, start, end in layout.streams:
            count, batch = int(self.rollout.sizes[agent]), int(sizes[agent])
            whole = count // batch * batch
            for first in range(start, end, whole):
                epoch = self._generators[agent].permutation(count)[:whole]
                drawn[first : first + whole] = epoch[: end - first]
        slots = layout.padding.copy()
        slots[layout.positions] = self._first_slots[layout.agents] + drawn
        index = torch.from_numpy(slots).to(self.rollout.device)
        weight, valid = layout.scale, self.rollout.field("valid").flatten().cpu().numpy()
        if not valid.all():  # those that are steps share a batch's weight
            there = valid[slots[layout.positions]].astype(np.float64)
            shares = np.maximum(np.add.reduceat(there, layout.batches), 1)[layout.batch_of]
            flat = np.zeros(len(slots))
            flat[layout.positions] = there / shares
            weight = torch.from_numpy(flat).to(layout.scale)
        return RolloutBatch(**self.rollout.gather(index), weight=weight)

    def inherit(self, parents: IntArray) -> None:
        """A rollout is of its own agent."""

    def state_dict(self, agent: int) -> dict[str, Tensor]:
        """Nothing is left of it at a generation's end."""
        return {}
