"""The shapes data takes on its way through the replay.

Every agent has its own gamma and the replay may be shared, so the n rewards of a window are stored
apart and the learner folds them: reward = sum_k gamma^k rewards[k]; discount = gamma^bootstrap, or
0 where bootstrap is 0.

K items, n steps of the longest window.
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


class Transitions(NamedTuple):
    """Windows to be stored; the arrays may be the environment's own: store before its next step."""

    obs: AnyArray  # [K, ...] where the window starts
    action: IntArray  # [K] taken there
    rewards: AnyArray  # [K, n] zero beyond the window's end
    next_obs: AnyArray  # [K, ...] the true observation after the window's last step
    bootstrap: npt.NDArray[np.uint8]  # [K] steps before bootstrapping; 0: terminated, never
    slot: IntArray  # [K] environment the window comes from

    def take(self, rows: IntArray) -> "Transitions":
        """Some of the windows."""
        return Transitions(
            self.obs[rows],
            self.action[rows],
            self.rewards[rows],
            self.next_obs[rows],
            self.bootstrap[rows],
            self.slot[rows],
        )


class Items(NamedTuple):
    """Stored windows, as tensors."""

    obs: Tensor
    action: Tensor
    rewards: Tensor
    next_obs: Tensor
    bootstrap: Tensor


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

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Samples":
        """The same samples on `device`."""
        if self.obs.device == torch.device(device):
            return self
        return Samples(*(field.to(device, non_blocking=non_blocking) for field in self))
