"""The layers of stacked networks: their weights by layer, masks of who has what, activations.

Legend: P agents, R ≤ P rows that a layer computes, C and O channels in and out, k kernel, W padded
width, I inputs, Q outputs of the head.

Rows are sorted by depth: the agents that have a layer are among the first ones. Masks are tensors
and never Python numbers, so that a compiled update survives evolution: new genomes change values,
not the program.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from evorl.genome import Activation, Architecture
from evorl.networks.layout import Weights

aten = torch.ops.aten


class ActivationPair(NamedTuple):
    """A function with f(0) = 0, which keeps padding at zero, and its derivative.

    The derivative takes (gradient, input, output).
    """

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor, Tensor], Tensor]


PAIRS: dict[Activation, ActivationPair] = {
    "relu": ActivationPair(torch.relu, lambda g, x, y: aten.threshold_backward(g, y, 0)),
    "tanh": ActivationPair(torch.tanh, lambda g, x, y: aten.tanh_backward(g, y)),
    "elu": ActivationPair(
        torch.nn.functional.elu, lambda g, x, y: aten.elu_backward(g, 1.0, 1.0, 1.0, True, y)
    ),
    "gelu": ActivationPair(torch.nn.functional.gelu, lambda g, x, y: aten.gelu_backward(g, x)),
    "silu": ActivationPair(torch.nn.functional.silu, lambda g, x, y: aten.silu_backward(g, x)),
}


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


class Convolution(NamedTuple):
    """One convolution of every agent."""

    weight: Tensor  # [P, O, C, k, k]
    bias: Tensor  # [P, O]


class HiddenLayer(NamedTuple):
    """One hidden layer of the agents that have it."""

    weight: Tensor  # [R, in, W]
    bias: Tensor  # [R, 1, W]
    scale: Tensor | None  # [R, 1, W] of the LayerNorm
    shift: Tensor | None  # [R, 1, W]
    gate: Tensor | None  # [R, 1, 1]; the first layer has none
    mask: LayerMask

    @property
    def rows(self) -> int:
        """How many agents it is computed for."""
        return self.bias.shape[0]


class LayerViews(NamedTuple):
    """All weights of one network; views of the matrix, so they follow its updates."""

    convolutions: tuple[Convolution, ...]
    hidden: tuple[HiddenLayer, ...]
    head_weight: Tensor  # [P, Q, W]
    head_bias: Tensor  # [P, Q, 1]
    statistics: tuple[Tensor, Tensor] | None = None  # mean and variance of inputs [P, 1, I]


def layer_views(views: Weights, masks: Masks, statistics: Weights | None = None) -> LayerViews:
    """A layout's views by layer; the masks say how many rows each layer computes."""
    convolutions: list[Convolution] = []
    while f"conv{len(convolutions)}.weight" in views:
        name = f"conv{len(convolutions)}"
        convolutions.append(Convolution(views[f"{name}.weight"], views[f"{name}.bias"]))
    hidden = []
    for k, mask in enumerate(masks):
        rows = mask.keep.shape[0]
        own = {
            part: _first(rows, views[f"hidden{k}.{part}"])
            for part in ("weight", "bias", "scale", "shift", "gate")
            if f"hidden{k}.{part}" in views
        }
        bias, scale, shift, gate = (
            _with_one_more(own[part]).transpose(0, 1) if part in own else None
            for part in ("bias", "scale", "shift", "gate")
        )
        assert bias is not None
        hidden.append(HiddenLayer(own["weight"], bias, scale, shift, gate, mask))
    head_bias = _with_one_more(views["head.bias"]).permute(1, 2, 0)
    found = LayerViews(tuple(convolutions), tuple(hidden), views["head.weight"], head_bias)
    if statistics is None:
        return found
    mean, var = (
        _with_one_more(statistics[name]).transpose(0, 1) for name in ("obs_mean", "obs_var")
    )
    return found._replace(statistics=(mean, var))


def _first(rows: int, view: Tensor) -> Tensor:
    """The first rows; a slice of all would make a program of its own for each number of them."""
    return view if len(view) == rows else view[:rows]


def _with_one_more(view: Tensor) -> Tensor:
    """[1, P, W] of [P, W]; unsqueeze would make a program of its own for one agent."""
    return view.expand(1, -1, -1)
