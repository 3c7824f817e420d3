"""Which parts of a layout each agent really has, as tensors.

Legend: P agents, L hidden layers of the layout, W padded width.

They are tensors and never Python numbers, so that a compiled update survives evolution: new genomes
change values, not the program.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from evorl.genome import Architecture


class Live(NamedTuple):
    """Masks of a group. A layer outputs keep * h + (replace + gated * gate) * act(...)."""

    units: Tensor  # [L, P, 1, W] 1 for a live unit
    inverse_count: Tensor  # [L, P, 1, 1] 1 / number of live units
    keep: Tensor  # [L, P, 1, 1] 1 where the layer is absent or gated
    replace: Tensor  # [L, P, 1, 1] 1 where it is an ordinary layer
    gated: Tensor  # [L, P, 1, 1] 1 where it is a gated residual layer


def live_parts(
    architectures: Sequence[Architecture],
    width: int,
    depth: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Live:
    """The masks of these agents in a layout of this width and depth."""
    units = torch.zeros(depth, len(architectures), 1, width, dtype=torch.float64)
    present, gated = units.new_zeros(2, depth, len(architectures), 1, 1)
    for i, architecture in enumerate(architectures):
        for k, size in enumerate(architecture.hidden):
            units[k, i, 0, :size] = 1
            present[k, i] = 1
            gated[k, i] = float(architecture.gated[k])
    counts = units.sum(3, keepdim=True).clamp(min=1)
    parts = (units, 1 / counts, 1 - present * (1 - gated), present * (1 - gated), gated)
    return Live(*(part.to(dtype=dtype, device=device) for part in parts))


def blended_layers(architectures: Sequence[Architecture], depth: int) -> tuple[bool, ...]:
    """For each layer: is any agent without it, or gated there? Otherwise it is just act(...)."""
    return tuple(any(k >= a.depth or a.gated[k] for a in architectures) for k in range(depth))
