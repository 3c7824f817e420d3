"""Advantage actor–critic: one gradient for each rollout, by policy, value and entropy.

Legend: P agents, B samples, N environments of an agent.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.algorithms.base import Algorithm, Floats, Hyperparameters, Ints, Loss, Trained, mean_of
from evorl.algorithms.hyperparameters import RATE, OnPolicy, Sends
from evorl.algorithms.policies import (
    Choices,
    Gaussian,
    draw_noise,
    outputs_of,
    policy_of,
    spread_of,
)
from evorl.config import hyperparameter, option
from evorl.envs import ActionSpec
from evorl.experience import RolloutBatch
from evorl.networks import Networks, NetworkSpec


class PolicyGradient(OnPolicy, Algorithm):
    """A policy and a value network, trained together on rollouts."""

    clips_together: ClassVar[bool] = True

    entropy_coef: float = hyperparameter(
        0.0,
        "Weight of the policy's entropy in the loss.",
        ge=0,
        le=1,
        space={"kind": "log", "low": 1e-4, "high": 3e-2},
    )
    value_coef: float = hyperparameter(0.5, "Weight of the value's squared error.", ge=0, le=100)
    initial_log_std: float = option(
        0.0, "Logarithm of the spread of continuous actions.", ge=-10, le=2
    )
    normalize_advantage: bool = option(
        True, "Whether advantages are brought to mean 0 and spread 1."
    )

    def networks(self, observation: NetworkSpec, action: ActionSpec) -> dict[str, Trained]:
        """A policy, a value, and the spread of continuous actions."""
        policy = observation.giving(outputs_of(action), choices=action.choices)
        specs = {"policy": policy, "value": observation.giving(1)}
        return {
            name: Trained(spec, max_grad_norm="max_grad_norm")
            for name, spec in (specs | spread_of(action, self.initial_log_std)).items()
        }

    def terms(
        self, networks: Networks, batch: RolloutBatch, hp: Hyperparameters
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Advantages, log-probabilities of the actions, loss of value and entropy, [P, B] each."""
        advantage = batch.advantage
        if self.normalize_advantage:
            advantage = normalized_advantage(advantage, batch.weight)
        policy = policy_of(networks, batch.obs)
        error = networks["value"](batch.obs).squeeze(2) - batch.returns
        return advantage, policy.log_prob(batch.action), rest_of(error, policy, hp)

    def measures(
        self, networks: Networks, targets: Networks, batch: Any, hp: Hyperparameters
    ) -> dict[str, Tensor]:
        """The values, how far they are from the returns, and the policy's entropy."""
        return self.measured(networks, batch.obs, batch.returns, batch.weight)

    def measured(
        self, networks: Networks, obs: Tensor, returns: Tensor, weight: Tensor
    ) -> dict[str, Tensor]:
        """The same by returns [P, B] of observations [P, B, ...]."""
        value = self.value(networks, obs)
        return {
            "value": mean_of(value, weight),
            "value_loss": mean_of((value - returns).square(), weight),
            "entropy": mean_of(policy_of(networks, obs).entropy(), weight),
        }

    def greedy(self, networks: Networks, obs: Tensor) -> Tensor:
        """The likeliest actions [P, N, ...]."""
        return policy_of(networks, obs).mode()

    def noise(
        self, random: np.random.Generator, shape: tuple[int, int], action: ActionSpec
    ) -> dict[str, npt.NDArray[Any]]:
        """What draws are made from."""
        return {"draw": draw_noise(random, shape, action)}

    def act(
        self,
        networks: Networks,
        obs: Tensor,
        hp: Hyperparameters,
        noise: Mapping[str, Tensor],
        exploration: Tensor,
    ) -> Tensor:
        """Actions drawn from the policy, [P, N, ...]."""
        return policy_of(networks, obs).draw(noise["draw"])

    def log_prob(self, networks: Networks, obs: Tensor, action: Tensor) -> Tensor:
        """Log-probabilities [P, B] of actions."""
        return policy_of(networks, obs).log_prob(action)

    def value(self, networks: Networks, obs: Tensor) -> Tensor:
        """Values [P, B] of observations."""
        return networks["value"](obs).squeeze(2)


class A2C(PolicyGradient):
    """One update for each rollout, of all of it."""

    name: str = option("a2c", "The algorithm, or your own as module:Class.")
    lr: float = hyperparameter(7e-4, "Adam's step size.", gt=0, le=1, space=RATE)
    gae_lambda: float = hyperparameter(
        1.0, "GAE lambda: 0 is the one-step TD error, 1 the full n-step return.", ge=0, le=1
    )
    rollout_steps: int = option(8, "Steps of each environment between updates.", ge=1, le=65536)
    normalize_advantage: bool = option(
        False, "Whether advantages are brought to mean 0 and spread 1."
    )

    def minibatches(self, values: Mapping[str, Floats], items: int) -> tuple[Ints, Ints]:
        """One, of everything."""
        one = np.ones(len(values["lr"]), np.int64)
        return one, items * one

    def loss(
        self, networks: Networks, targets: Networks, batch: RolloutBatch, hp: Hyperparameters
    ) -> Loss:
        """Log-probabilities weighed by how much better than expected it went."""
        advantage, log_prob, rest = self.terms(networks, batch, hp)
        return Loss(((rest - advantage * log_prob) * batch.weight).sum(-1))


class A3C(A2C):
    """The same where actors find the gradients, each of its own rollout, and a learner applies
    them; without actors it is A2C.
    """

    sends: ClassVar[Sends | None] = "gradients"

    name: str = option("a3c", "The algorithm, or your own as module:Class.")


def rest_of(error: Tensor, policy: Gaussian | Choices, hp: Hyperparameters) -> Tensor:
    """The loss [P, B] beside the policy's gain: the value's squared error, and entropy."""
    rest = hp["value_coef"].unsqueeze(1) * error * error
    return rest - hp["entropy_coef"].unsqueeze(1) * policy.entropy()


def normalized_advantage(advantage: Tensor, weight: Tensor) -> Tensor:
    """Advantages [P, B] with mean 0 and spread 1 over each agent's own samples."""
    there = (weight > 0).to(advantage.dtype)
    count = there.sum(-1, keepdim=True)
    centred = (advantage - (advantage * there).sum(-1, keepdim=True) / count.clamp(min=1)) * there
    variance = (centred * centred).sum(-1, keepdim=True) / (count - 1).clamp(min=1)
    return torch.where(count > 1, centred / (variance.sqrt() + 1e-8), advantage)
