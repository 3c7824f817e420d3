"""Soft actor–critic: a squashed Gaussian policy, twin critics, and a learned temperature.

Legend: P agents, B batch, A numbers of an action, N environments of an agent.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from evorl.algorithms.base import Hyperparameters, Loss, Trained, continuous_actions, mean_of
from evorl.algorithms.ddpg import RANDOM, ActorCritic
from evorl.algorithms.hyperparameters import TAU
from evorl.algorithms.policies import squashed_log_prob
from evorl.config import hyperparameter, option
from evorl.envs import ActionSpec
from evorl.experience import Batch
from evorl.networks import Networks, NetworkSpec, ParameterSpec

LOG_STD = (-20.0, 2.0)  # within which the policy's spread stays


class SAC(ActorCritic):
    """Values include the policy's entropy; the temperature keeps that at its target."""

    name: str = option("sac", "The algorithm, or your own as module:Class.")
    tau: float = hyperparameter(
        0.005, "Fraction of a soft target update, per update.", gt=0, le=1, space=TAU
    )
    batch_size: int = hyperparameter(256, "Transitions per update.", ge=1, le=65536)
    temperature_lr: float = hyperparameter(
        3e-4, "Adam's step size of the temperature; 0 keeps it as it is.", ge=0, le=1
    )
    entropy_scale: float = hyperparameter(
        1.0, "The target of the entropy: minus this for each number of an action.", ge=0, le=10
    )
    initial_temperature: float = option(1.0, "The temperature at first.", gt=0, le=100)

    def networks(self, observation: NetworkSpec, action: ActionSpec) -> dict[str, Trained]:
        """An actor of means and spreads, critics, and the logarithm of the temperature."""
        outputs = 2 * continuous_actions(self, action)
        actor = Trained(observation.giving(outputs), lr="actor_lr", max_grad_norm="max_grad_norm")
        first = float(torch.tensor(self.initial_temperature).log())
        temperature = Trained(ParameterSpec(1, first), lr="temperature_lr")
        critics = self.critic_networks(observation, action)
        return {"actor": actor} | critics | {"log_temperature": temperature}

    def loss_noise(self, action: ActionSpec) -> int:
        """For the actions that follow, and for the actor's own."""
        return 2 * continuous_actions(self, action)

    def loss(
        self, networks: Networks, targets: Networks, batch: Batch, hp: Hyperparameters
    ) -> Loss:
        """The critics' squared errors, the actor's soft value, and the entropy's distance."""
        log_temperature = networks.parameter("log_temperature")  # [P, 1]
        temperature = log_temperature.detach().exp()
        first, second = batch.noise.chunk(2, -1)
        with torch.no_grad():
            action, log_prob = self._sample(networks, batch.next_obs, first)
            future = self.future(targets, batch.next_obs, action) - temperature * log_prob
            goal = torch.addcmul(batch.reward, batch.discount, future)
        errors = [value - goal for value in self.values(networks, batch.obs, batch.action)]
        squared = 0.5 * torch.stack([error * error for error in errors]).sum(0)
        own, log_prob = self._sample(networks, batch.obs, second)
        actor = temperature * log_prob - self.worth(networks, batch.obs, own)
        goal_entropy = -hp["entropy_scale"].unsqueeze(1) * own.shape[-1]
        entropy = -log_temperature * (log_prob.detach() + goal_entropy)
        each = squared + actor + entropy
        return Loss((each * batch.weight).sum(-1), errors[0].detach())

    def measures(
        self, networks: Networks, targets: Networks, batch: Batch, hp: Hyperparameters
    ) -> dict[str, Tensor]:
        """What the actor's own actions are worth, their entropy, and the temperature."""
        own, log_prob = self._sample(networks, batch.obs, batch.noise.chunk(2, -1)[1])
        return {
            "q_value": mean_of(self.worth(networks, batch.obs, own), batch.weight),
            "entropy": -mean_of(log_prob, batch.weight),
            "temperature": networks.parameter("log_temperature").squeeze(1).exp(),
        }

    def _policy(self, networks: Networks, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Means and logarithms of spreads, before the tanh, [P, B, A] each."""
        mean, log_std = networks["actor"](obs).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD)

    def _sample(self, networks: Networks, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [P, B, A] from -1 to 1, and the logarithm of their density [P, B]."""
        mean, log_std = self._policy(networks, obs)
        before = mean + log_std.exp() * noise
        return torch.tanh(before), squashed_log_prob(mean, log_std, before)

    def greedy(self, networks: Networks, obs: Tensor) -> Tensor:
        """The middle of the policy, [P, N, A]."""
        return torch.tanh(networks["actor"](obs).chunk(2, -1)[0])

    def act(
        self,
        networks: Networks,
        obs: Tensor,
        hp: Hyperparameters,
        noise: Mapping[str, Tensor],
        exploration: Tensor,
    ) -> Tensor:
        """Actions drawn from the policy, or at random, [P, N, A]."""
        mean, log_std = self._policy(networks, obs)
        chosen = torch.tanh(mean + log_std.exp() * noise["normal"])
        return torch.where((exploration >= RANDOM)[:, None, None], noise["action"], chosen)
