"""Proximal policy optimisation: several epochs over each rollout, within a clipped distance.

Legend: P agents, B samples of a minibatch.
"""

from collections.abc import Mapping

import numpy as np
import torch

from evorl.algorithms.a2c import PolicyGradient
from evorl.algorithms.base import Floats, Hyperparameters, Ints, Loss
from evorl.config import hyperparameter, option
from evorl.experience import RolloutBatch
from evorl.networks import Networks

TOLERANCE = 1.5  # of target_kl: how far beyond it a policy may go before its epochs end


class PPO(PolicyGradient):
    """A policy gains nothing by moving further than the clip from what collected the rollout."""

    name: str = option("ppo", "The algorithm, or your own as module:Class.")
    clip: float = hyperparameter(
        0.2,
        "How far the ratio of probabilities may leave 1.",
        gt=0,
        le=10,
        space={"kind": "log", "low": 0.05, "high": 0.5},
    )
    epochs: int = hyperparameter(
        10,
        "Passes over each rollout.",
        ge=1,
        le=100,
        space={"kind": "integer", "low": 3, "high": 20},
    )
    batch_size: int = hyperparameter(64, "Samples of a minibatch.", ge=1, le=65536)
    target_kl: float = hyperparameter(
        0.0, "Distance at which an agent's epochs end early; 0 turns that off.", ge=0, le=10
    )

    @property
    def may_stop(self) -> bool:
        """Agents that are too far away end their epochs."""
        return True

    def minibatches(self, values: Mapping[str, Floats], items: int) -> tuple[Ints, Ints]:
        """Each agent's own epochs, of minibatches of its own size, or of smaller even ones."""
        count = -(-items // values["batch_size"].astype(np.int64))
        return values["epochs"].astype(np.int64) * count, items // count

    def loss(
        self, networks: Networks, targets: Networks, batch: RolloutBatch, hp: Hyperparameters
    ) -> Loss:
        """The clipped gain, with the errors of the value and the entropy."""
        advantage, log_prob, rest = self.terms(networks, batch, hp)
        log_ratio = log_prob - batch.log_prob
        ratio, clip = log_ratio.exp(), hp["clip"].unsqueeze(1)
        clipped = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip)
        gain = torch.minimum(ratio * advantage, clipped * advantage)
        loss = ((rest - gain) * batch.weight).sum(-1)
        distance = ((ratio - 1 - log_ratio).detach() * batch.weight).sum(-1)  # of the policies
        limit = hp["target_kl"]
        return Loss(loss, stop=(limit > 0) & (distance > TOLERANCE * limit))
