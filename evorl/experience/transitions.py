"""Steps of many environments → n-step windows, so that the replay only ever holds valid samples.

Every agent has its own gamma and the replay may be shared, so the n rewards of a window are stored
apart and the learner folds them: reward = sum_k gamma^k rewards[k]; discount = gamma^bootstrap, or
0 where bootstrap is 0.

M environments, n steps of a full window, E windows emitted by one push, K items.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

AnyArray = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LARGEST_REWARD = 10.0  # of those that are scaled


class Transitions(NamedTuple):
    """Windows to be stored; the arrays may be the environment's own: store before its next step."""

    obs: AnyArray  # [K, ...] where the window starts
    action: AnyArray  # [K, ...] taken there
    rewards: AnyArray  # [K, n] zero beyond the window's end
    next_obs: AnyArray  # [K, ...] the true observation after the window's last step
    bootstrap: npt.NDArray[np.uint8]  # [K] steps before bootstrapping; 0: terminated, never
    slot: IntArray  # [K] environment the window comes from

    def take(self, rows: IntArray) -> "Transitions":
        """Some of the windows."""
        return Transitions._make(field[rows] for field in self)


class Batch(NamedTuple):
    """One update's samples. The discount says what follows: gamma^n, or 0 after a termination."""

    obs: Tensor  # [P, B, ...]
    action: Tensor  # [P, B] or, continuous, [P, B, ...]
    reward: Tensor  # [P, B] summed over the n steps, discounted
    next_obs: Tensor  # [P, B, ...]
    discount: Tensor  # [P, B]
    weight: Tensor  # [P, B] a sample's share of its agent's loss; 0 for padding
    noise: Tensor  # [P, B, K] standard normal numbers, as many as `loss_noise` asks for


class RolloutBatch(NamedTuple):
    """One update's samples of rollouts, with what the policy that collected them thought."""

    obs: Tensor  # [P, B, ...]
    action: Tensor  # [P, B, ...]
    log_prob: Tensor  # [P, B] of the action, when it was taken
    advantage: Tensor  # [P, B]
    returns: Tensor  # [P, B] what the value is to become
    weight: Tensor  # [P, B] a sample's share of its agent's loss; 0 for padding

    def batches(self, gamma: Tensor, scale: Tensor | None = None) -> "RolloutBatch":
        """Of a round [U, P, B, ...]: gamma and the scale of rewards are in its returns already."""
        return self


def discounted(rewards: Tensor, bootstrap: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Rewards [U, P, B, n] and what follows, by each agent's own gamma [P]: n steps become one."""
    bootstrap = bootstrap.to(gamma.dtype)
    factor = gamma.view(1, -1, 1)
    if rewards.shape[-1] == 1:
        # a sum of one: squeeze would make a program of its own for one agent
        return rewards.sum(-1), factor * bootstrap
    powers = factor.unsqueeze(-1) ** torch.arange(rewards.shape[-1], device=gamma.device)
    return (rewards * powers).sum(-1), factor**bootstrap * (bootstrap > 0)


def scaled_rewards(rewards: Tensor, scale: Tensor | None) -> Tensor:
    """Rewards [T, P, ...] as they are learned from: by each agent's scale [P], and clipped.

    Without a scale they stay as they are.
    """
    if scale is None:
        return rewards
    each = scale.view(1, -1, *(1,) * (rewards.ndim - 2))
    return (rewards * each).clamp(-LARGEST_REWARD, LARGEST_REWARD)


class Samples(NamedTuple):
    """One round's batches of every group, flat and group-major (`split_groups`: [U, P, B, ...]).

    Read only: `weight` may be the same tensor round after round.
    """

    obs: Tensor
    action: Tensor
    rewards: Tensor
    next_obs: Tensor
    bootstrap: Tensor
    weight: Tensor  # [K] importance / batch size of the agent; 0 for padding
    slots: Tensor  # [K] where in the buffer the item was
    noise: Tensor  # [K, ...] standard normal numbers for the loss; 0 for padding

    def batches(self, gamma: Tensor, scale: Tensor | None = None) -> Batch:
        """Of a group's round [U, P, B, ...], with each agent's own discounts and scale [P]."""
        reward, discount = discounted(scaled_rewards(self.rewards, scale), self.bootstrap, gamma)
        ends = (reward, self.next_obs, discount)
        return Batch(self.obs, self.action, *ends, self.weight, self.noise)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Samples":
        """The same samples on `device`."""
        if self.obs.device == torch.device(device):
            return self
        return Samples(*(field.to(device, non_blocking=non_blocking) for field in self))


class NStep:
    """Holds the last n-1 steps of every environment; emits each window as soon as it is complete.

    Order: environments ascending, and within one environment the oldest window first.
    """

    def __init__(
        self,
        num_envs: int,
        n: int,
        obs_shape: tuple[int, ...],
        obs_dtype: npt.DTypeLike,
        action_shape: tuple[int, ...] = (),
        action_dtype: npt.DTypeLike = np.int64,
    ) -> None:
        if not 1 <= n <= 255:  # bootstrap is a byte
            raise ValueError(f"n-step windows of n={n} steps: n must be 1 to 255")
        self.n, self.num_envs = n, num_envs
        self._obs_dtype, self._action_dtype = np.dtype(obs_dtype), np.dtype(action_dtype)
        self._all_envs = np.arange(num_envs)
        held = num_envs if n > 1 else 0  # n = 1 holds nothing between pushes
        self._obs = np.zeros((held, n, *obs_shape), self._obs_dtype)
        self._action = np.zeros((held, n, *action_shape), self._action_dtype)
        self._reward = np.zeros((held, n), np.float64)
        self._latest = np.zeros((held, *obs_shape), self._obs_dtype)  # next_obs of the last step
        self._start = np.zeros(num_envs, np.int64)  # column of the oldest pending step
        self._pending = np.zeros(num_envs, np.int64)  # steps held, 0..n-1 between pushes

    def push(
        self,
        obs: AnyArray,
        action: AnyArray,
        reward: AnyArray,
        next_obs: AnyArray,
        terminated: AnyArray,
        truncated: AnyArray,
        valid: AnyArray | None = None,
    ) -> Transitions:
        """Takes one step of every environment (rows where `valid` is False are no steps)."""
        rows = self._all_envs if valid is None else np.flatnonzero(valid)
        obs = np.asarray(obs, self._obs_dtype)
        next_obs = np.asarray(next_obs, self._obs_dtype)
        if self.n == 1:
            step = Transitions(
                obs,
                np.asarray(action, self._action_dtype),
                reward[:, None],
                next_obs,
                (~terminated).astype(np.uint8),
                self._all_envs,
            )
            return step if len(rows) == self.num_envs else step.take(rows)
        column = (self._start[rows] + self._pending[rows]) % self.n
        self._obs[rows, column] = obs[rows]
        self._action[rows, column] = action[rows]
        self._reward[rows, column] = reward[rows]
        self._latest[rows] = next_obs[rows]
        self._pending[rows] += 1
        over = np.zeros(self.num_envs, np.bool_)
        over[rows] = (terminated | truncated)[rows]
        full = self._pending == self.n
        # An episode's end completes all pending windows of its environment, shorter than n.
        emitted = self._emit(np.where(over, self._pending, full), terminated)
        self._start = (self._start + full) % self.n
        self._pending = np.where(over, 0, self._pending - full)
        return emitted

    def forget(self, rows: BoolArray) -> None:
        """Drops the pending windows of some environments, whose episodes broke off; rows [M]."""
        self._pending[rows] = 0

    def flush(self) -> Transitions:
        """Cuts all episodes: pending windows come out as truncations, and nothing is held."""
        emitted = self._emit(self._pending, np.zeros(self.num_envs, np.bool_))
        self._pending = np.zeros_like(self._pending)
        return emitted

    def _emit(self, count: IntArray, terminated: BoolArray) -> Transitions:
        """The `count` [M] oldest windows of every environment, each up to its latest step."""
        env = np.repeat(self._all_envs, count)  # [E]
        age = np.arange(len(env)) - np.repeat(np.cumsum(count) - count, count)  # 0: oldest
        length = self._pending[env] - age
        first = self._start[env] + age
        steps = np.arange(self.n)
        rewards = self._reward[env[:, None], (first[:, None] + steps) % self.n]  # [E, n]
        rewards[steps >= length[:, None]] = 0.0
        return Transitions(
            self._obs[env, first % self.n],
            self._action[env, first % self.n],
            rewards,
            self._latest[env],
            np.where(terminated[env], 0, length).astype(np.uint8),
            env,
        )
