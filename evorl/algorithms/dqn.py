"""Deep Q-learning: double, dueling, n-step, Huber or squared loss, action masks.

Rewards of a batch are n-step already: `n_step_return` of experience/transitions.py adds them up.

Legend: P agents, B batch, A actions, N environments of an agent.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from evorl.algorithms.base import (
    Algorithm,
    Floats,
    Gradients,
    Hyperparameters,
    Ints,
    Loss,
    Trained,
    discrete_actions,
    mean_of,
)
from evorl.algorithms.hyperparameters import OffPolicy
from evorl.algorithms.policies import masked
from evorl.config import MOST, hyperparameter, option
from evorl.envs import ActionSpec
from evorl.experience import Batch
from evorl.networks import Networks, NetworkSpec

TINY = 1e-12  # in place of a rate of 0, by which nothing can be divided


class DQN(OffPolicy, Algorithm):
    """Q-learning on batches; a dueling head and n-step rewards need nothing special here."""

    name: str = option("dqn", "The algorithm, or your own as module:Class.")
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
    double: bool = option(True, "Whether the online network chooses the target's action.")
    loss_kind: Literal["huber", "mse"] = option("huber", "Loss of the TD error.")
    target_update: Literal["soft", "periodic"] = option(
        "soft", "Target network: soft uses tau, periodic target_period."
    )

    @property
    def unused(self) -> frozenset[str]:
        """The other kind of target update's hyperparameter."""
        return frozenset({"tau" if self.target_update == "periodic" else "target_period"})

    def networks(self, observation: NetworkSpec, action: ActionSpec) -> dict[str, Trained]:
        """One network of Q values."""
        spec = observation.giving(discrete_actions(self, action), dueling=True)
        soft = self.target_update == "soft"
        return {
            "q": Trained(
                spec,
                max_grad_norm="max_grad_norm",
                tau="tau" if soft else None,
                period=None if soft else "target_period",
            )
        }

    def loss(
        self, networks: Networks, targets: Networks, batch: Batch, hp: Hyperparameters
    ) -> Loss:
        """The definition: the error of Q(s, a) against the reward and the value of what follows.

        Training uses `gradients`, the same in closed form, which is tested against this.
        """
        chosen = networks["q"](batch.obs).gather(2, batch.action.unsqueeze(2)).squeeze(2)
        with torch.no_grad():
            future = targets["q"](batch.next_obs)
            best = networks["q"](batch.next_obs) if self.double else future
            best = masked(best, networks["q"].mask(batch.next_obs))
            future = future.gather(2, best.max(2, keepdim=True).indices).squeeze(2)
            target = torch.addcmul(batch.reward, batch.discount, future)
        td_error = chosen - target
        return Loss(self.loss_of(td_error, batch.weight), td_error.detach())

    def gradients(
        self, networks: Networks, targets: Networks, batch: Batch, hp: Hyperparameters
    ) -> Gradients:
        """The loss's derivative by every Q value, [P, A, B], and from there by the weights."""
        q = networks["q"]
        next_values, _ = targets["q"].forward(batch.next_obs)
        mask = q.mask(batch.next_obs)
        allowed = None if mask is None else mask.mT  # [P, A, B]
        if self.double:
            values, chosen, saved = q.forward_two(batch.obs, batch.next_obs)
            # not argmax: over a dimension that isn't the last it is ten times slower than max
            best = masked(chosen, allowed).max(1, keepdim=True).indices
            future = next_values.gather(1, best).squeeze(1)
        else:
            values, saved = q.forward(batch.obs)
            future = masked(next_values, allowed).amax(1)
        target = torch.addcmul(batch.reward, batch.discount, future)
        # [P, 1, B]; unsqueeze would make a program of its own for one agent
        action = batch.action.expand(1, -1, -1).transpose(0, 1)
        td_error = values.gather(1, action).squeeze(1) - target
        slope = td_error.clamp(-1, 1) if self.loss_kind == "huber" else 2 * td_error
        gradient = torch.zeros_like(values).scatter_(1, action, (slope * batch.weight).unsqueeze(1))
        return Gradients({"q": q.backward(saved, gradient)}, td_error)

    def loss_of(self, priority: Tensor, weight: Tensor) -> Tensor:
        """Weighted Huber (threshold 1) or squared TD error, summed over each agent's batch."""
        if self.loss_kind == "huber":
            each = huber_loss(priority, torch.zeros_like(priority), reduction="none")
        else:
            each = priority * priority
        return (each * weight).sum(-1)

    def measures(
        self, networks: Networks, targets: Networks, batch: Batch, hp: Hyperparameters
    ) -> dict[str, Tensor]:
        """The highest Q values."""
        q = networks["q"]
        best = masked(q(batch.obs), q.mask(batch.obs)).amax(-1)
        return {"q_value": mean_of(best, batch.weight)}

    def greedy(self, networks: Networks, obs: Tensor) -> Tensor:
        """The action of the highest Q value among those that are allowed, [P, N]."""
        q = networks["q"]
        return masked(q(obs), q.mask(obs)).max(-1).indices

    def noise(
        self, random: np.random.Generator, shape: tuple[int, int], action: ActionSpec
    ) -> dict[str, npt.NDArray[Any]]:
        """Whether to explore, by chance, and the action to take then."""
        chance = random.random(shape)  # first: the order of draws decides what is drawn
        return {
            "chance": chance,
            "action": random.integers(discrete_actions(self, action), size=shape),
        }

    def exploration(self, hp: Mapping[str, Floats], steps: Ints) -> Floats:
        """Epsilon after each agent's own steps: linear from start to end, then flat."""
        start, end = hp["epsilon_start"], hp["epsilon_end"]
        return start + (end - start) * np.minimum(steps / hp["epsilon_steps"], 1.0)

    def exploration_of(self, exploration: Floats, share: float) -> Floats:
        """Epsilon to the power of 1 to 8, as Ape-X has it (Horgan et al., 2018)."""
        return np.asarray(exploration ** (1 + 7 * share))

    def act(
        self,
        networks: Networks,
        obs: Tensor,
        hp: Hyperparameters,
        noise: Mapping[str, Tensor],
        exploration: Tensor,
    ) -> Tensor:
        """Epsilon-greedy actions [P, N]."""
        chance, drawn, rate = noise["chance"], noise["action"], exploration.unsqueeze(1)
        if (mask := networks["q"].mask(obs)) is not None:
            # below the rate, chance / rate is as random as what was drawn
            drawn = choose_allowed(mask, drawn + chance / rate.clamp(min=TINY))
        return torch.where(chance < rate, drawn, self.greedy(networks, obs))


def choose_allowed(mask: Tensor, drawn: Tensor) -> Tensor:
    """Actions [...] that masks [..., A] allow, all alike, from random numbers [...] of 0 to A.

    Where all are allowed, it is the number rounded down.
    """
    count = mask.sum(-1)
    place = (drawn * count / mask.shape[-1]).long().clamp(max=count - 1)  # among the allowed
    return (mask.cumsum(-1) <= place.unsqueeze(-1)).sum(-1)
