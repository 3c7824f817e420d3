"""Experience on its way from environments to updates: windows to store, samples and batches.

Every agent has its own gamma and the replay may be shared, so the n rewards of a window are stored
apart. `n_step_return` folds them when they are drawn: reward = sum_k gamma^k rewards[k];
discount = gamma^bootstrap, or 0 where bootstrap is 0.

Legend: n steps of a full window, K items, U updates, P agents, B batch.
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
    env: IntArray  # [K] the environment that the window comes from

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


class UnrollBatch(NamedTuple):
    """One update's unrolls: steps that follow each other, with what the policy then thought."""

    obs: Tensor  # [P, B, T, ...]
    action: Tensor  # [P, B, T, ...]
    log_prob: Tensor  # [P, B, T] of the action, when it was taken
    reward: Tensor  # [P, B, T]
    next_obs: Tensor  # [P, B, T, ...] the true observation after the step
    terminated: Tensor  # [P, B, T] whether nothing follows
    ended: Tensor  # [P, B, T] whether the next step is of another episode
    weight: Tensor  # [P, B, T] a step's share of its agent's loss; 0 where there is none

    def batches(self, gamma: Tensor, scale: Tensor | None = None) -> "UnrollBatch":
        """Of a round [U, P, B, T, ...], with each agent's own scale of rewards [P]."""
        return self._replace(reward=scaled_rewards(self.reward, scale))


def n_step_return(rewards: Tensor, bootstrap: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
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
        reward, discount = n_step_return(scaled_rewards(self.rewards, scale), self.bootstrap, gamma)
        ends = (reward, self.next_obs, discount)
        return Batch(self.obs, self.action, *ends, self.weight, self.noise)
