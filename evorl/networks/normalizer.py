"""Running statistics of what an agent sees and gets, and how networks read observations by them.

Legend: P agents, N environments of an agent, K numbers of an observation, or one return.

They are columns of the agent's row: children inherit them, checkpoints and exports hold them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

EPS = 1e-8  # added to variances, as Stable-Baselines3 and Gymnasium do
CLIP = 10.0  # the largest number that a network reads
MOST = 1_000_000  # samples that count at most: after as many new ones most of the old is forgotten


class Moments(NamedTuple):
    """What is known of some numbers of every agent; views of the matrix."""

    mean: Tensor  # [P, K]
    var: Tensor  # [P, K]
    samples: Tensor  # [P, 1] how many they come from, up to MOST

    @classmethod
    def of(cls, statistics: Mapping[str, Tensor], what: str) -> "Moments | None":
        """Those of observations (`obs`) or discounted returns (`return`), if they are kept."""
        if f"{what}_mean" not in statistics:
            return None
        return cls(*(statistics[f"{what}_{name}"] for name in cls._fields))

    def sums(self, data: Tensor, there: Tensor) -> Tensor:
        """What `merge_` needs of samples [P, N, K] where they are there [P, N], [P, 1 + 2K].

        Float64, as distances from the mean so far: sums of ranks can be averaged, and a spread that
        is small beside the mean keeps its digits.
        """
        own = there.unsqueeze(2)
        distance = torch.where(own, data.double() - self.mean.double().unsqueeze(1), 0.0)
        parts = (own.double(), distance, distance * distance)
        return torch.cat(parts, 2).sum(1)

    def moved(self, sums: Tensor, mean: Tensor) -> Tensor:
        """Sums [P, 1 + 2K] of distances from another mean [P, K] as `merge_` wants them."""
        size = self.mean.shape[1]
        new, first, second = torch.split(sums, [1, size, size], 1)
        shift = mean.double() - self.mean.double()
        moved = (new, first + new * shift, second + 2 * shift * first + new * shift * shift)
        return torch.cat(moved, 1)

    def merge_(self, sums: Tensor) -> None:
        """Take in samples by Chan's parallel formula, in place; without any all bits stay."""
        size = self.mean.shape[1]
        new, first, second = torch.split(sums, [1, size, size], 1)
        count = self.samples.double()
        total = count + new
        shift = first / total
        var = (self.var.double() * count + second) / total - shift * shift
        found = (self.mean.double() + shift, var.clamp(min=0), total.clamp(max=MOST))
        for own, value in zip(self, found, strict=True):
            own.copy_(torch.where(new > 0, value.to(own.dtype), own))


def normalized(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Numbers by how far from the mean they are, in standard deviations."""
    return ((x - mean) / (var + EPS).sqrt()).clamp(-CLIP, CLIP)


def scale_of(statistics: Mapping[str, Tensor]) -> Tensor | None:
    """What rewards are multiplied by, [P]; None if they stay as they are."""
    if "return_var" not in statistics:
        return None
    return torch.rsqrt(statistics["return_var"].select(1, 0) + EPS)
