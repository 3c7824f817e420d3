"""DDPG, TD3, SAC and PPO as plain PyTorch trains them: modules, autograd, torch.optim.Adam.

Legend: B batch, A numbers of an action. A critic reads action and observation, in this order.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from plain import mlp
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from evorl import Architecture
from evorl.networks import NetworkSpec
from evorl.population import AgentState

NETWORK_PARTS = ("hidden0", "hidden1", "head")
LOG_STD = (-20.0, 2.0)


class PlainAgent:
    """An agent alone, with the weights and hyperparameters that it has in a population."""

    def __init__(
        self,
        algorithm: Any,
        specs: Mapping[str, Any],
        architecture: Architecture,
        state: AgentState,
    ) -> None:
        self.hp: Any = algorithm
        self.online = {
            name: mlp(spec.inputs + spec.extra, spec.outputs, architecture)
            for name, spec in specs.items()
            if isinstance(spec, NetworkSpec)
        }
        for own, weights in self._pairs(state):
            own.data.copy_(weights)
        self.target = copy.deepcopy(self.online)
        self.updates = 0
        self.prepare()

    def _pairs(self, state: AgentState) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Parameters with a population's weights for them; those of hidden layers lie otherwise."""
        for name, module in self.online.items():
            layers = [layer for layer in module if isinstance(layer, nn.Linear)]
            for part, layer in zip(NETWORK_PARTS, layers, strict=True):
                weight = state.online[f"{name}.{part}.weight"]
                yield layer.weight, weight if part == "head" else weight.T
                yield layer.bias, state.online[f"{name}.{part}.bias"]

    def difference(self, state: AgentState) -> float:
        """The largest between its weights and those of the agent in the population."""
        pairs = self._pairs(state)
        return max(float((own.detach() - weights).abs().max()) for own, weights in pairs)

    def prepare(self) -> None:
        """The optimizers."""
        raise NotImplementedError

    def adam(self, lr: float, *names: str) -> torch.optim.Adam:
        """One optimizer for some networks."""
        return torch.optim.Adam([p for n in names for p in self.online[n].parameters()], lr=lr)

    def step(self, optimizer: torch.optim.Adam, loss: Tensor, *names: str) -> None:
        """Differentiate, clip each network, and move."""
        optimizer.zero_grad()
        loss.backward()
        if self.hp.max_grad_norm > 0:
            for name in names:
                nn.utils.clip_grad_norm_(self.online[name].parameters(), self.hp.max_grad_norm)
        optimizer.step()

    @torch.no_grad()
    def move_targets(self, *names: str) -> None:
        """Soft target update."""
        for name in names:
            online, target = self.online[name].parameters(), self.target[name].parameters()
            for old, new in zip(target, online, strict=True):
                old.lerp_(new, self.hp.tau)


class PlainDDPG(PlainAgent):
    """DDPG and, by its options, TD3."""

    def prepare(self) -> None:
        """One optimizer for the actor and one for the critics."""
        self.critics = [name for name in self.online if name != "actor"]
        self.actor_adam = self.adam(self.hp.actor_lr, "actor")
        self.critic_adam = self.adam(self.hp.lr, *self.critics)

    def update(
        self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, noise: Tensor
    ) -> None:
        """One update on a batch: critics, and actor and targets if they are due."""
        with torch.no_grad():
            following = torch.tanh(self.target["actor"](next_obs))
            if self.hp.target_noise > 0:
                limit = self.hp.target_noise_clip
                shift = (noise * self.hp.target_noise).clamp(-limit, limit)
                following = (following + shift).clamp(-1, 1)
            read = torch.cat((following, next_obs), 1)
            futures = [self.target[name](read).squeeze(1) for name in self.critics]
            future = torch.minimum(*futures) if len(futures) > 1 else futures[0]
            goal = reward + self.hp.gamma * future
        read = torch.cat((action, obs), 1)
        values = [self.online[name](read).squeeze(1) for name in self.critics]
        loss: Any = sum(nn.functional.mse_loss(value, goal) for value in values)
        self.updates += 1
        due = self.updates % self.hp.policy_delay == 0
        if due:  # before the critics move: all gradients of an update are of the same weights
            own = torch.tanh(self.online["actor"](obs))
            worth = self.online["critic"](torch.cat((own, obs), 1))
            self.step(self.actor_adam, -worth.mean(), "actor")
        self.step(self.critic_adam, loss, *self.critics)
        if due:
            self.move_targets(*self.online)


class PlainSAC(PlainAgent):
    """SAC with twin critics and a learned temperature."""

    def prepare(self) -> None:
        """Optimizers of actor, critics and temperature."""
        self.log_temperature = torch.zeros(1, requires_grad=True)
        self.actor_adam = self.adam(self.hp.actor_lr, "actor")
        self.critic_adam = self.adam(self.hp.lr, "critic", "critic2")
        self.temperature_adam = torch.optim.Adam([self.log_temperature], self.hp.temperature_lr)

    def policy(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, A] and their log-probabilities [B]."""
        mean, log_std = self.online["actor"](obs).chunk(2, 1)
        normal = Normal(mean, log_std.clamp(*LOG_STD).exp())
        before = mean + normal.scale * noise
        action = torch.tanh(before)
        log_prob = normal.log_prob(before) - 2 * (
            math.log(2) - before - nn.functional.softplus(-2 * before)
        )
        return action, log_prob.sum(1)

    def lower(self, networks: Mapping[str, nn.Module], obs: Tensor, action: Tensor) -> Tensor:
        """The lower of both critics, [B]."""
        read = torch.cat((action, obs), 1)
        return torch.minimum(networks["critic"](read), networks["critic2"](read)).squeeze(1)

    def update(
        self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, noise: Tensor
    ) -> None:
        """One update on a batch: critics, actor, temperature, targets."""
        first, second = noise.chunk(2, 1)
        temperature = self.log_temperature.detach().exp()
        own, own_log_prob = self.policy(obs, second)
        with torch.no_grad():
            following, log_prob = self.policy(next_obs, first)
            future = self.lower(self.target, next_obs, following) - temperature * log_prob
            goal = reward + self.hp.gamma * future
        read = torch.cat((action, obs), 1)
        values = [self.online[name](read).squeeze(1) for name in ("critic", "critic2")]
        critic: Any = 0.5 * sum(nn.functional.mse_loss(value, goal) for value in values)
        # before the critics move: all gradients of an update are of the same weights
        actor = (temperature * own_log_prob - self.lower(self.online, obs, own)).mean()
        self.step(self.actor_adam, actor, "actor")
        self.step(self.critic_adam, critic, "critic", "critic2")
        aim = own_log_prob.detach() - self.hp.entropy_scale * action.shape[1]
        self.step(self.temperature_adam, -(self.log_temperature * aim).mean())
        self.move_targets("critic", "critic2")


class PlainPPO(PlainAgent):
    """PPO with one choice of a few, by torch.distributions."""

    def prepare(self) -> None:
        """One optimizer for policy and value."""
        self.optimizer = self.adam(self.hp.lr, "policy", "value")
        self.parameters = [p for own in self.online.values() for p in own.parameters()]

    def update(
        self, obs: Tensor, action: Tensor, old: Tensor, advantage: Tensor, returns: Tensor
    ) -> None:
        """One minibatch."""
        policy = Categorical(logits=self.online["policy"](obs))
        value = self.online["value"](obs).squeeze(1)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (policy.log_prob(action) - old).exp()
        clipped = ratio.clamp(1 - self.hp.clip, 1 + self.hp.clip)
        gain = torch.minimum(ratio * advantage, clipped * advantage).mean()
        error = nn.functional.mse_loss(value, returns)
        entropy = policy.entropy().mean()
        loss = self.hp.value_coef * error - gain - self.hp.entropy_coef * entropy
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.hp.max_grad_norm)
        self.optimizer.step()


PLAIN: dict[str, type[PlainAgent]] = {
    "ddpg": PlainDDPG,
    "td3": PlainDDPG,
    "sac": PlainSAC,
    "ppo": PlainPPO,
}
