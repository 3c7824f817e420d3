"""The other side of the comparison: agents trained one after another, as plain PyTorch does it."""

import torch
from torch import Tensor, nn

from evorl import Architecture
from evorl.networks.module import MODULES


class PlainAgent:
    """A double DQN agent: nn.Sequential, torch.optim.Adam, autograd."""

    def __init__(self, inputs: int, actions: int, architecture: Architecture) -> None:
        self.online, self.target = (mlp(inputs, actions, architecture) for _ in range(2))
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-3)

    def update(self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor) -> None:
        """One update on a batch: loss, clipping, Adam, soft target update."""
        with torch.no_grad():
            best = self.online(next_obs).argmax(1, keepdim=True)
            goal = reward + 0.99 * self.target(next_obs).gather(1, best).squeeze(1)
        values = self.online(obs).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(values, goal)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self.optimizer.step()
        with torch.no_grad():
            pairs = zip(self.target.parameters(), self.online.parameters(), strict=True)
            for old, new in pairs:
                old.lerp_(new, 0.01)


def mlp(inputs: int, actions: int, architecture: Architecture) -> nn.Sequential:
    """An ordinary network of this architecture."""
    layers: list[nn.Module] = []
    for units in architecture.hidden:
        layers += [nn.Linear(inputs, units), MODULES[architecture.activation]()]
        inputs = units
    return nn.Sequential(*layers, nn.Linear(inputs, actions))
