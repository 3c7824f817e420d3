"""Deterministic policy gradients for continuous actions: DDPG, and TD3 with its three options.

Legend: P agents, B batch, A numbers of an action, N environments of an agent.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.algorithms.base import (
    Algorithm,
    Floats,
    Hyperparameters,
    Ints,
    Loss,
    Trained,
    continuous_actions,
    mean_of,
)
from evorl.algorithms.hyperparameters import RATE, TAU, OffPolicy
from evorl.algorithms.noise import coloured_noise
from evorl.config import hyperparameter, option
from evorl.envs import ActionSpec
from evorl.experience import Batch
from evorl.networks import Networks, NetworkSpec

RANDOM = 1.0  # the exploration of an agent that has not begun to learn: actions at random


class ActorCritic(OffPolicy, Algorithm):
    """What actors and critics on a replay have in common: one critic or two, and their targets."""

    actor_lr: float = hyperparameter(1e-3, "Adam's step size of the actor.", gt=0, le=1, space=RATE)
    twin: bool = option(True, "Two critics, of which the lower counts, against overestimation.")
    noise_color: float = option(
        0.0, "How long exploration keeps its direction: 0 white noise, 1 pink, 2 red.", ge=0, le=2
    )

    @property
    def critics(self) -> tuple[str, ...]:
        """The names of the critics."""
        return ("critic", "critic2") if self.twin else ("critic",)

    def critic_networks(
        self, observation: NetworkSpec, action: ActionSpec, period: str | None = None
    ) -> dict[str, Trained]:
        """Critics of observation and action."""
        spec = observation.giving(1, extra=continuous_actions(self, action))
        own = Trained(spec, max_grad_norm="max_grad_norm", tau="tau", period=period)
        return dict.fromkeys(self.critics, own)

    def values(self, networks: Networks, obs: Tensor, action: Tensor) -> list[Tensor]:
        """What each critic thinks of these actions, [P, B]."""
        return [networks[name](obs, action).squeeze(2) for name in self.critics]

    def worth(self, networks: Networks, obs: Tensor, action: Tensor) -> Tensor:
        """The lower value of actions [P, B]; critics get no gradient by it, the actions do."""
        each = [networks[name].detached()(obs, action).squeeze(2) for name in self.critics]
        return torch.minimum(*each) if self.twin else each[0]

    def future(self, targets: Networks, obs: Tensor, action: Tensor) -> Tensor:
        """The lower value of the target critics, [P, B]."""
        each = self.values(targets, obs, action)
        return torch.minimum(*each) if self.twin else each[0]

    def measures(
        self, networks: Networks, targets: Networks, batch: Batch, hp: Hyperparameters
    ) -> dict[str, Tensor]:
        """What the actor's own actions are worth."""
        worth = self.worth(networks, batch.obs, self.greedy(networks, batch.obs))
        return {"q_value": mean_of(worth, batch.weight)}

    def noise(
        self, random: np.random.Generator, shape: tuple[int, int], action: ActionSpec
    ) -> dict[str, npt.NDArray[Any]]:
        """Normal noise, and actions at random for as long as nothing is learned."""
        size = (*shape, continuous_actions(self, action))
        normal = coloured_noise(random, size, self.noise_color)
        if self.noise_color == 0:
            return {"normal": normal, "action": random.uniform(-1, 1, size).astype(np.float32)}
        other = torch.from_numpy(coloured_noise(random, size, self.noise_color))
        return {"normal": normal, "action": torch.erf(other / math.sqrt(2)).numpy()}  # uniform

    def exploration(self, hp: Mapping[str, Floats], steps: Ints) -> Floats:
        """1 while actions are random, then as much as `spread` says."""
        return np.where(steps < self.learning_starts, RANDOM, self.spread(hp, len(steps)))

    def exploration_of(self, exploration: Floats, share: float) -> Floats:
        """All of the noise down to a quarter of it; random actions stay random."""
        return np.where(exploration == RANDOM, RANDOM, exploration * 4.0**-share)

    def spread(self, hp: Mapping[str, Floats], agents: int) -> Floats:
        """The noise that is added to an agent's actions, [P]."""
        return np.zeros(agents)


class DDPG(ActorCritic):
    """An actor that climbs its critic; noise makes it explore."""

    name: str = option("ddpg", "The algorithm, or your own as module:Class.")
    tau: float = hyperparameter(
        0.005, "Fraction of a soft target update, per update of the actor.", gt=0, le=1, space=TAU
    )
    batch_size: int = hyperparameter(256, "Transitions per update.", ge=1, le=65536)
    action_noise: float = hyperparameter(
        0.1,
        "Standard deviation of the noise on actions, which are scaled to -1 to 1.",
        ge=0,
        lt=1,
        space={"kind": "log", "low": 0.02, "high": 0.5},
    )
    policy_delay: int = hyperparameter(
        1, "Updates of the critics for one of the actor and of all targets.", ge=1, le=1000
    )
    twin: bool = option(False, "Two critics, of which the lower counts, against overestimation.")
    target_noise: float = option(
        0.0, "Standard deviation of noise on the target's actions.", ge=0, le=1
    )
    target_noise_clip: float = option(
        0.5, "Largest such noise on the target's actions.", ge=0, le=2
    )

    def networks(self, observation: NetworkSpec, action: ActionSpec) -> dict[str, Trained]:
        """An actor, and one critic or two."""
        actor = Trained(
            observation.giving(continuous_actions(self, action)),
            lr="actor_lr",
            max_grad_norm="max_grad_norm",
            tau="tau",
            period="policy_delay",
            every="policy_delay",
        )
        return {"actor": actor} | self.critic_networks(observation, action, "policy_delay")

    @property
    def unused(self) -> frozenset[str]:
        """Without noise there is nothing to clip."""
        return frozenset() if self.target_noise > 0 else frozenset({"target_noise_clip"})

    def loss_noise(self, action: ActionSpec) -> int:
        """Noise on the target's actions."""
        return continuous_actions(self, action) if self.target_noise > 0 else 0

    def loss(
        self, networks: Networks, targets: Networks, batch: Batch, hp: Hyperparameters
    ) -> Loss:
        """The critics' squared errors, less what the actor's own actions are worth.

        The worth adds its gradient only: the actors may rest, and the loss does not depend on it.
        """
        with torch.no_grad():
            action = self.greedy(targets, batch.next_obs)
            if self.target_noise > 0:
                limit = self.target_noise_clip
                smoothing = (batch.noise * self.target_noise).clamp(-limit, limit)
                action = (action + smoothing).clamp(-1, 1)
            future = self.future(targets, batch.next_obs, action)
            goal = torch.addcmul(batch.reward, batch.discount, future)
        errors = [value - goal for value in self.values(networks, batch.obs, batch.action)]
        each = torch.stack([error * error for error in errors]).sum(0)
        if networks.trains("actor"):
            own = self.greedy(networks, batch.obs)
            worth = networks["critic"].detached()(batch.obs, own).squeeze(2)
            each = each - (worth - worth.detach())
        return Loss((each * batch.weight).sum(-1), errors[0].detach())

    def greedy(self, networks: Networks, obs: Tensor) -> Tensor:
        """The actor's actions [P, N, A], from -1 to 1."""
        return torch.tanh(networks["actor"](obs))

    def spread(self, hp: Mapping[str, Floats], agents: int) -> Floats:
        """Each agent's own."""
        return hp["action_noise"]

    def act(
        self,
        networks: Networks,
        obs: Tensor,
        hp: Hyperparameters,
        noise: Mapping[str, Tensor],
        exploration: Tensor,
    ) -> Tensor:
        """The actor's actions with noise on them, or random ones, [P, N, A]."""
        spread = exploration.to(noise["normal"].dtype)[:, None, None]
        chosen = (self.greedy(networks, obs) + spread * noise["normal"]).clamp(-1, 1)
        return torch.where(spread >= RANDOM, noise["action"], chosen)


class TD3(DDPG):
    """DDPG with twin critics, a delayed actor and smoothed targets."""

    name: str = option("td3", "The algorithm, or your own as module:Class.")
    twin: bool = option(True, "Two critics, of which the lower counts, against overestimation.")
    policy_delay: int = hyperparameter(
        2, "Updates of the critics for one of the actor and of all targets.", ge=1, le=1000
    )
    target_noise: float = option(
        0.2, "Standard deviation of noise on the target's actions.", ge=0, le=1
    )
