"""IMPALA: policy gradients on unrolls that earlier policies collected, corrected by V-trace.

Legend: P agents, B unrolls of a batch, T steps of an unroll.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from evorl.algorithms.a2c import PolicyGradient, normalized_advantage, rest_of
from evorl.algorithms.base import Floats, Hyperparameters, Ints, Loss
from evorl.algorithms.hyperparameters import RATE, Experience, Sends
from evorl.algorithms.policies import policy_of
from evorl.algorithms.returns import vtrace
from evorl.config import hyperparameter, option
from evorl.experience import UnrollBatch
from evorl.networks import Networks


class IMPALA(PolicyGradient):
    """Targets and advantages are found at every update, by the policy and the value of then.

    So unrolls may come late, and may be learned from more than once: each update takes all that are
    new, and some of the latest ones again.
    """

    experience: ClassVar[Experience] = "unrolls"
    sends: ClassVar[Sends | None] = "unrolls"

    name: str = option("impala", "The algorithm, or your own as module:Class.")
    lr: float = hyperparameter(1e-3, "Adam's step size.", gt=0, le=1, space=RATE)
    gae_lambda: float = hyperparameter(
        1.0, "Lambda of V-trace: 0 is the one-step TD error, 1 the full n-step return.", ge=0, le=1
    )
    entropy_coef: float = hyperparameter(
        0.01,
        "Weight of the policy's entropy in the loss.",
        ge=0,
        le=1,
        space={"kind": "log", "low": 1e-4, "high": 3e-2},
    )
    value_coef: float = hyperparameter(
        0.5,
        "Weight of the value's squared error.",
        ge=0,
        le=100,
        space={"kind": "log", "low": 0.1, "high": 2.0},
    )
    rho_max: float = hyperparameter(
        1.0,
        "Largest importance ratio of an error, by V-trace.",
        gt=0,
        le=100,
        space={"kind": "log", "low": 0.5, "high": 4.0},
    )
    c_max: float = hyperparameter(
        1.0,
        "Largest importance ratio by which later errors are carried back; 0 looks one step ahead.",
        ge=0,
        le=10,
        space={"kind": "linear", "low": 0.5, "high": 1.0},
    )
    updates: int = hyperparameter(1, "Updates for each rollout.", ge=1, le=64)
    replay_ratio: float = hyperparameter(
        1.0, "Replayed unrolls for each new one, in every update.", ge=0, le=64
    )
    replay_unrolls: int = option(
        0, "Latest unrolls of an agent that are replayed; 0: only new ones count.", ge=0, le=65536
    )
    rollout_steps: int = option(20, "Steps of an unroll.", ge=1, le=65536)
    normalize_advantage: bool = option(
        False, "Whether advantages are brought to mean 0 and spread 1."
    )

    @property
    def unused(self) -> frozenset[str]:
        """Without a replay nothing is drawn from it."""
        return frozenset() if self.replay_unrolls else frozenset(["replay_ratio"])

    def minibatches(self, values: Mapping[str, Floats], items: int) -> tuple[Ints, Ints]:
        """Each agent's own updates, on all new unrolls and its share of replayed ones."""
        ratio = values["replay_ratio"] if self.replay_unrolls else 0 * values["replay_ratio"]
        return values["updates"].astype(np.int64), items + np.rint(items * ratio).astype(np.int64)

    def update_rate(self, values: Mapping[str, float], num_envs: int) -> float:
        """So many for each rollout."""
        return values["updates"] / (self.rollout_steps * num_envs)

    def loss(
        self, networks: Networks, targets: Networks, batch: UnrollBatch, hp: Hyperparameters
    ) -> Loss:
        """Log-probabilities weighed by V-trace's advantages, and values moved to its targets."""
        obs, weight = batch.obs.flatten(1, 2), batch.weight.flatten(1, 2)  # [P, B*T, ...]
        policy, value = policy_of(networks, obs), self.value(networks, obs)
        log_prob = policy.log_prob(batch.action.flatten(1, 2))
        with torch.no_grad():
            next_value = self.value(networks, batch.next_obs.flatten(1, 2))
            target, advantage = self.traced(log_prob, value, next_value, batch, hp)
        if self.normalize_advantage:
            advantage = normalized_advantage(advantage, weight)
        loss = rest_of(value - target, policy, hp) - advantage * log_prob
        return Loss((loss * weight).sum(-1))

    def measures(
        self, networks: Networks, targets: Networks, batch: UnrollBatch, hp: Hyperparameters
    ) -> dict[str, Tensor]:
        """The values, how far they are from V-trace's targets, and the policy's entropy."""
        obs, value = batch.obs.flatten(1, 2), self.value(networks, batch.obs.flatten(1, 2))
        next_value = self.value(networks, batch.next_obs.flatten(1, 2))
        log_prob = self.log_prob(networks, obs, batch.action.flatten(1, 2))
        target, _ = self.traced(log_prob, value, next_value, batch, hp)
        return self.measured(networks, obs, target, batch.weight.flatten(1, 2))

    def traced(
        self,
        log_prob: Tensor,
        value: Tensor,
        next_value: Tensor,
        batch: UnrollBatch,
        hp: Hyperparameters,
    ) -> tuple[Tensor, ...]:
        """V-trace's targets and advantages [P, B*T], by what the networks say now [P, B*T]."""

        def by_time(own: Tensor) -> Tensor:
            return own.reshape(batch.reward.shape).movedim(2, 0)  # [T, P, B]

        log_ratio = log_prob - batch.log_prob.flatten(1, 2)
        steps = (log_ratio, batch.reward, value, next_value, batch.terminated, batch.ended)
        numbers = (hp[name].unsqueeze(1) for name in ("gamma", "gae_lambda", "rho_max", "c_max"))
        found = vtrace(*map(by_time, steps), *numbers)
        return tuple(own.movedim(0, 2).flatten(1, 2) for own in found)
