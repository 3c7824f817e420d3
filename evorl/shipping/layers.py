"""What comes before a network's first layer when observations arrive as the environment gives them.

An exported model.py has these classes as they stand here: they use torch and nothing else.
"""

import torch
from torch import Tensor, nn


class OneHot(nn.Module):
    """Numbers from `start` on, as rows with a single 1."""

    def __init__(self, count: int, start: int) -> None:
        super().__init__()
        self.count, self.start = count, start

    def forward(self, obs: Tensor) -> Tensor:
        """[B] to [B, count]."""
        index = obs.to(torch.int64) - self.start
        return nn.functional.one_hot(index, self.count).to(torch.float32)


class Numbers(nn.Module):
    """Whatever number type there is as float32, multiplied by `scale`."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, obs: Tensor) -> Tensor:
        """The same shape."""
        x = obs.to(torch.float32)
        return x if self.scale == 1 else x * self.scale


class ChannelsFirst(nn.Module):
    """Images [B, H, W, C] to [B, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers in another order."""
        return x.permute(0, 3, 1, 2).contiguous()


class AddDimension(nn.Module):
    """[B, …] to [B, 1, …]: a channel for images that have none, a vector for single numbers."""

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers."""
        return x.unsqueeze(1)
