"""Advantage actor–critic: one gradient for each rollout, by policy, value and entropy.

Legend: P agents, B samples, N environments of an agent.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.algorithms.base import Algorithm, Floats, Hyperparameters, Ints, Loss, Trained
from evorl.algorithms.hyperparameters import RATE, OnPolicy
from evorl.algorithms.policies import draw_noise, outputs_of, policy_of, spread_of
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

    def networks(self, observation: NetworkSpec, action: ActionSpec) -> dict[str, Trained]:
        """A policy, a value, and the spread of continuous actions."""
        policy = observation.giving(outputs_of(action), choices=action.choices)
        specs = {"policy": policy, "value": observation.giving(1)}
        return {
            name: Trained(spec, max_grad_norm="max_grad_norm")
            for name, spec in (specs | spread_of(action, self.initial_log_std)).items()
        }

    def terms(
        self, networks: Networks, batch: RolloutBatch, advantage: Tensor, hp: Hyperparameters
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the actions [P, B], and the loss of value and entropy [P, B]."""
        policy = policy_of(networks, batch.obs)
        error = networks["value"](batch.obs).squeeze(2) - batch.returns
        rest = hp["value_coef"].unsqueeze(1) * error * error
        rest = rest - hp["entropy_coef"].unsqueeze(1) * policy.entropy()
        return policy.log_prob(batch.action), rest

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

    def judge(self, networks: Networks, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of what was done, and values of where, [P, B] each."""
        log_prob = policy_of(networks, obs).log_prob(action)
        return log_prob, networks["value"](obs).squeeze(2)


class A2C(PolicyGradient):
    """One update for each rollout, of all of it."""

    name: str = option("a2c", "The algorithm, or your own as module:Class.")
    lr: float = hyperparameter(7e-4, "Adam's step size.", gt=0, le=1, space=RATE)
    gae_lambda: float = hyperparameter(
        1.0, "How far errors of the value are carried back; 1: n-step returns.", ge=0, le=1
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
        advantage = batch.advantage
        if self.normalize_advantage:
            advantage = normalized(advantage, batch.weight)
        log_prob, rest = self.terms(networks, batch, advantage, hp)
        return Loss(((rest - advantage * log_prob) * batch.weight).sum(-1))


def normalized(advantage: Tensor, weight: Tensor) -> Tensor:
    """Advantages [P, B] with mean 0 and spread 1 over each agent's own samples."""
    there = (weight > 0).to(advantage.dtype)
    count = there.sum(-1, keepdim=True)
    centred = (advantage - (advantage * there).sum(-1, keepdim=True) / count.clamp(min=1)) * there
    variance = (centred * centred).sum(-1, keepdim=True) / (count - 1).clamp(min=1)
    return torch.where(count > 1, centred / (variance.sqrt() + 1e-8), advantage)
