"""Which units and layers of a layout each agent really has, as tensors.

Legend: P agents, R ≤ P rows that a layer computes, W its padded width.

The masks are tensors and never Python numbers, so that a compiled update survives evolution: new
genomes change values, not the program.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from evorl.genome import Architecture


class LayerMask(NamedTuple):
    """One hidden layer: it outputs keep * h + (replace + gated * gate) * act(...)."""

    units: Tensor  # [R, 1, W] 1 for a live unit
    inverse_count: Tensor  # [R, 1, 1] 1 / number of live units
    keep: Tensor  # [R, 1, 1] 1 where the layer is absent or gated
    replace: Tensor  # [R, 1, 1] 1 where it is an ordinary layer
    gated: Tensor  # [R, 1, 1] 1 where it is a gated residual layer


Masks = tuple[LayerMask, ...]  # of one network, one for each hidden layer of the layout


def make_masks(
    architectures: Sequence[Architecture],
    widths: Sequence[int],
    rows: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Masks:
    """The masks of these agents in layers of these widths, with this many rows for each layer."""
    masks = (
        _mask(architectures[:r], width, k)
        for k, (width, r) in enumerate(zip(widths, rows, strict=True))
    )
    return tuple(
        LayerMask(*(part.to(dtype=dtype, device=device) for part in mask)) for mask in masks
    )


def needed_rows(architectures: Sequence[Architecture], depth: int) -> tuple[int, ...]:
    """How many of the first agents each layer must be computed for, so that all who have it are in.

    At least two where there are two: a matrix product of one has other last bits, and an agent must
    not depend on how deep its neighbours are.
    """
    least = min(2, len(architectures))
    last = [
        max((i + 1 for i, own in enumerate(architectures) if own.depth > k), default=0)
        for k in range(depth)
    ]
    return tuple(max(least, rows) for rows in last)


def layers_with_skips(
    architectures: Sequence[Architecture], rows: Sequence[int]
) -> tuple[bool, ...]:
    """For each layer: is any of its rows without it, or gated there? Else it is just act(...)."""
    return tuple(
        any(k >= own.depth or own.gated[k] for own in architectures[:r]) for k, r in enumerate(rows)
    )


def _mask(architectures: Sequence[Architecture], width: int, k: int) -> LayerMask:
    units = torch.zeros(len(architectures), 1, width, dtype=torch.float64)
    present, gated = units.new_zeros(2, len(architectures), 1, 1)
    for i, architecture in enumerate(architectures):
        if k < architecture.depth:
            units[i, 0, : architecture.hidden[k]] = 1
            present[i] = 1
            gated[i] = float(architecture.gated[k])
    counts = units.sum(2, keepdim=True).clamp(min=1)
    replace = present * (1 - gated)
    return LayerMask(units, 1 / counts, 1 - replace, replace, gated)
