"""A stack of MLPs, one per agent, run as batched matrix products.

Legend: P agents, B batch, I inputs, W padded width, O outputs (actions, dueling also a value).

The backward pass is written out instead of left to autograd: networks this small are bound by
dispatch, and without the engine an update takes half the time, eager or compiled alike
(benchmarks/throughput.py). tests/networks checks it against autograd.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from evorl.networks.activations import PAIRS
from evorl.networks.layout import Layout, Weights
from evorl.networks.live import Live

LAYER_NORM_EPS = 1e-5  # as torch.nn.LayerNorm


class NormSaved(NamedTuple):
    """What the backward pass of one LayerNorm needs."""

    normal: Tensor  # [P, B, W]
    inverse_std: Tensor  # [P, B, 1]


class LayerSaved(NamedTuple):
    """What the backward pass of one hidden layer needs, each [P, B, ...]."""

    inputs: Tensor
    norm: NormSaved | None
    before: Tensor  # what the activation read
    after: Tensor  # what it gave
    outputs: Tensor  # after blending


def take(saved: LayerSaved, batch: int) -> LayerSaved:
    """The first samples of a saved layer, where only they need gradients."""
    norm = saved.norm and NormSaved(*(x[:, :batch] for x in saved.norm))
    inputs, before, after, outputs = (
        x[:, :batch] for x in (saved.inputs, saved.before, saved.after, saved.outputs)
    )
    return LayerSaved(inputs, norm, before, after, outputs)


class StackedMLP:
    """Hidden layers and head of every agent of a group."""

    def __init__(self, layout: Layout, blended: tuple[bool, ...]) -> None:
        self.depth, self.layer_norm = layout.depth, layout.signature.layer_norm
        self.dueling = layout.signature.dueling
        self.activation = PAIRS[layout.signature.activation]
        self.blended = blended  # layers that some agents lack, or have gated

    def forward(self, weights: Weights, live: Live, x: Tensor) -> tuple[Tensor, list[LayerSaved]]:
        """Outputs [P, O, B] from x [P, B, I].

        The batch comes last: a product with few columns, [B, W] @ [W, 4], is three times slower.
        """
        saved: list[LayerSaved] = []
        for k in range(self.depth):
            before = torch.baddbmm(
                weights[f"hidden{k}.bias"].unsqueeze(1), x, weights[f"hidden{k}.weight"]
            )
            norm = None
            if self.layer_norm:
                norm = _normalise(before, live.units[k], live.inverse_count[k])
                before = torch.addcmul(
                    weights[f"hidden{k}.shift"].unsqueeze(1),
                    norm.normal,
                    weights[f"hidden{k}.scale"].unsqueeze(1),
                )
            after = self.activation.forward(before)
            outputs = after
            if self.blended[k]:
                outputs = torch.addcmul(live.keep[k] * x, self._strength(weights, live, k), after)
            saved.append(LayerSaved(x, norm, before, after, outputs))
            x = outputs
        out = torch.baddbmm(weights["head.bias"].unsqueeze(2), weights["head.weight"], x.mT)
        if self.dueling:
            out = out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True)
        return out, saved

    def backward(
        self, weights: Weights, live: Live, saved: list[LayerSaved], gradient: Tensor
    ) -> tuple[Weights, Tensor]:
        """Gradients of the weights, and of the first layer's products [P, B, W], from [P, A, B]."""
        if self.dueling:
            mean = gradient.mean(1, keepdim=True)
            gradient = torch.cat((gradient.sum(1, keepdim=True), gradient - mean), 1)
        found: Weights = {
            "head.weight": torch.bmm(gradient, saved[-1].outputs),
            "head.bias": gradient.sum(2),
        }
        delta = torch.bmm(gradient.mT, weights["head.weight"])
        for k in reversed(range(self.depth)):
            layer, passed = saved[k], None
            if self.blended[k]:
                gate = (delta * layer.after).sum((1, 2)) * live.gated[k].view(-1)
                found[f"hidden{k}.gate"] = gate.unsqueeze(1)
                passed = live.keep[k] * delta
                delta = self._strength(weights, live, k) * delta
            elif k > 0:
                found[f"hidden{k}.gate"] = torch.zeros_like(weights[f"hidden{k}.gate"])
            delta = self.activation.backward(delta, layer.before, layer.after)
            if layer.norm is not None:
                found[f"hidden{k}.scale"] = (delta * layer.norm.normal).sum(1)
                found[f"hidden{k}.shift"] = delta.sum(1)
                scaled = delta * weights[f"hidden{k}.scale"].unsqueeze(1)
                delta = _normalise_backward(
                    scaled, layer.norm, live.units[k], live.inverse_count[k]
                )
            found[f"hidden{k}.weight"] = torch.bmm(layer.inputs.mT, delta)
            found[f"hidden{k}.bias"] = delta.sum(1)
            if k > 0:
                back = weights[f"hidden{k}.weight"].mT
                delta = (
                    torch.bmm(delta, back) if passed is None else torch.baddbmm(passed, delta, back)
                )
        return found, delta

    def _strength(self, weights: Weights, live: Live, k: int) -> Tensor:
        """How much of a layer's own output enters: 1 plain, 0 absent, the gate for a gated one."""
        gate = weights[f"hidden{k}.gate"].unsqueeze(2)
        return torch.addcmul(live.replace[k], live.gated[k], gate)


def _normalise(x: Tensor, units: Tensor, inverse_count: Tensor) -> NormSaved:
    """LayerNorm over live units, variance in two passes (one pass cancels at large offsets)."""
    centred = (x - x.sum(2, keepdim=True) * inverse_count) * units
    variance = (centred * centred).sum(2, keepdim=True) * inverse_count
    inverse_std = torch.rsqrt(variance + LAYER_NORM_EPS)
    return NormSaved(centred * inverse_std, inverse_std)


def _normalise_backward(
    gradient: Tensor, saved: NormSaved, units: Tensor, inverse_count: Tensor
) -> Tensor:
    mean = gradient.sum(2, keepdim=True) * inverse_count
    along = (gradient * saved.normal).sum(2, keepdim=True) * inverse_count
    return (gradient - mean - saved.normal * along) * saved.inverse_std * units
