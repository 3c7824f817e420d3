"""Deep Q-learning: double, dueling, n-step, Huber or squared loss.

Legend: P agents, B batch, A actions, N environments.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import huber_loss

from evorl.algorithms.base import Batch, Signal
from evorl.algorithms.declaration import MOST, OffPolicy
from evorl.config.section import hyperparameter
from evorl.networks.stacked import Network
from evorl.networks.views import Arranged


class DQN(OffPolicy):
    """Q-learning on batches; a dueling head and n-step rewards need nothing special here."""

    name: str = Field(default="dqn", description="The algorithm, or your own as module:Class.")
    target_period: int = hyperparameter(
        1000, "Updates between copies to a periodic target network.", ge=1, le=MOST
    )
    epsilon_start: float = hyperparameter(
        1.0, "Probability of a random action at the first step.", ge=0, le=1
    )
    epsilon_end: float = hyperparameter(
        0.05, "Probability of a random action after epsilon_steps.", ge=0, le=1
    )
    epsilon_steps: int = hyperparameter(
        10_000, "Own environment steps over which epsilon falls linearly.", ge=1, le=MOST
    )
    double: bool = Field(
        default=True, description="Whether the online network chooses the target's action."
    )
    loss_kind: Literal["huber", "mse"] = Field(default="huber", description="Loss of the TD error.")
    target_update: Literal["soft", "periodic"] = Field(
        default="soft", description="Target network: soft uses tau, periodic target_period."
    )

    @property
    def unused(self) -> frozenset[str]:
        """The other kind of target update's hyperparameter."""
        return frozenset({"tau" if self.target_update == "periodic" else "target_period"})

    def signal(self, network: Network, online: Arranged, target: Arranged, batch: Batch) -> Signal:
        """Temporal-difference errors, and the loss's derivative by every Q value."""
        next_values, _ = network.forward(target, batch.next_obs)
        if self.double:
            values, chosen, saved = network.forward_two(online, batch.obs, batch.next_obs)
            # not argmax: over a dimension that isn't the last it is ten times slower than max
            best = chosen.max(1, keepdim=True).indices
            future = next_values.gather(1, best).squeeze(1)
        else:
            values, saved = network.forward(online, batch.obs)
            future = next_values.amax(1)
        goal = torch.addcmul(batch.reward, batch.discount, future)
        # [P, 1, B]; unsqueeze would make a program of its own for one agent
        action = batch.action.expand(1, -1, -1).transpose(0, 1)
        td_error = values.gather(1, action).squeeze(1) - goal
        slope = td_error.clamp(-1, 1) if self.loss_kind == "huber" else 2 * td_error
        gradient = torch.zeros_like(values).scatter_(1, action, (slope * batch.weight).unsqueeze(1))
        return Signal(saved, gradient, td_error)

    def loss(self, td_error: Tensor, weight: Tensor) -> Tensor:
        """Weighted Huber (threshold 1) or squared error, summed over each agent's batch."""
        if self.loss_kind == "huber":
            each = huber_loss(td_error, torch.zeros_like(td_error), reduction="none")
        else:
            each = td_error * td_error
        return (each * weight).sum(-1)

    def greedy(self, networks: Mapping[str, Callable[..., Tensor]], obs: Tensor) -> Tensor:
        """The best actions [P, B] for observations [P, B, ...]."""
        return networks["q"](obs).max(-1).indices

    def act(
        self, values: Tensor, explore: npt.NDArray[np.bool_], random: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Epsilon-greedy actions [P, N]; greedy where `explore` is False."""
        greedy = values.max(1).indices.cpu().numpy()
        return np.where(explore, random, greedy)


def epsilon(
    steps: npt.NDArray[np.int64],
    start: npt.NDArray[np.float64],
    end: npt.NDArray[np.float64],
    duration: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Exploration after each agent's own environment steps: linear from start to end, then flat."""
    return start + (end - start) * np.minimum(steps / duration, 1.0)
