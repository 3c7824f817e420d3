"""A network's weights as forward and backward passes want them: by layer, shaped to broadcast.

Legend: P agents, R ≤ P rows that a layer computes, C and O channels in and out, k kernel, W padded
width, Q outputs of the head.

Rows are sorted by depth: the agents that have a layer are among the first ones.
"""

from typing import NamedTuple

from torch import Tensor

from evorl.networks.layout import Weights
from evorl.networks.masks import LayerMask, Masks


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


def layer_views(views: Weights, masks: Masks) -> LayerViews:
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
    return LayerViews(tuple(convolutions), tuple(hidden), views["head.weight"], head_bias)


def detach(weights: LayerViews) -> LayerViews:
    """The same weights, of which autograd knows nothing."""

    def own(view: Tensor | None) -> Tensor | None:
        return None if view is None else view.detach()

    return LayerViews(
        tuple(
            Convolution(each.weight.detach(), each.bias.detach()) for each in weights.convolutions
        ),
        tuple(
            HiddenLayer(
                each.weight.detach(),
                each.bias.detach(),
                own(each.scale),
                own(each.shift),
                own(each.gate),
                each.mask,
            )
            for each in weights.hidden
        ),
        weights.head_weight.detach(),
        weights.head_bias.detach(),
    )


def _first(rows: int, view: Tensor) -> Tensor:
    """The first rows; a slice of all would make a program of its own for each number of them."""
    return view if len(view) == rows else view[:rows]


def _with_one_more(view: Tensor) -> Tensor:
    """[1, P, W] of [P, W]; unsqueeze would make a program of its own for one agent."""
    return view.expand(1, -1, -1)
