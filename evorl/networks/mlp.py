"""A stack of MLPs, one per agent, run as batched matrix products.

Legend: P agents, R ≤ P rows that a layer computes, B batch, I inputs, W a layer's padded
width, A actions.

The backward pass is written out instead of left to autograd: networks this small are bound by
dispatch, and autograd's own share was half of an eager update. The tests check it against autograd.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from evorl.networks.layers import PAIRS, HiddenLayer, LayerMask, LayerViews
from evorl.networks.layout import NetworkLayout, Weights

LAYER_NORM_EPS = 1e-5  # as torch.nn.LayerNorm


class NormSaved(NamedTuple):
    """What the backward pass of one LayerNorm needs."""

    normal: Tensor  # [R, B, W]
    inverse_std: Tensor  # [R, B, 1]


class LayerSaved(NamedTuple):
    """What the backward pass of one hidden layer needs, each [R, B, ...]."""

    inputs: Tensor
    norm: NormSaved | None
    before: Tensor  # what the activation read
    after: Tensor  # what it gave


class MLPSaved(NamedTuple):
    """What the backward pass of the whole needs."""

    layers: list[LayerSaved]
    features: Tensor  # [P, B, W] what the head read

    def first(self, batch: int) -> "MLPSaved":
        """The first samples, where only they need gradients."""
        return MLPSaved([_take(layer, batch) for layer in self.layers], self.features[:, :batch])


class StackedMLP:
    """Hidden layers and head of every agent of a group."""

    def __init__(self, layout: NetworkLayout, skips: tuple[bool, ...]) -> None:
        self.dueling = layout.signature.dueling
        self.activation = PAIRS[layout.signature.activation]
        self.skips = skips  # layers that some of their rows lack, or have gated

    def forward(self, weights: LayerViews, x: Tensor) -> tuple[Tensor, MLPSaved]:
        """Values [P, A, B] from x [P, B, I].

        The batch comes last: a product with few columns, [B, W] @ [W, 4], is three times slower.
        """
        agents = x.shape[0]
        saved: list[LayerSaved] = []
        for k, layer in enumerate(weights.hidden):
            own = x if layer.rows == agents else x[: layer.rows]
            before = _affine(layer.bias, own, layer.weight)
            norm = None
            if layer.scale is not None and layer.shift is not None:
                norm = _normalise(before, layer.mask)
                before = torch.addcmul(layer.shift, norm.normal, layer.scale)
            after = self.activation.forward(before)
            saved.append(LayerSaved(own, norm, before, after))
            if self.skips[k]:
                after = torch.addcmul(layer.mask.keep * own, _strength(layer), after)
            x = after if layer.rows == agents else torch.cat((after, x[layer.rows :]))
        out = _head(weights.head_bias, weights.head_weight, x)
        if self.dueling:
            out = out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True)
        return out, MLPSaved(saved, x)

    def backward(
        self, weights: LayerViews, saved: MLPSaved, gradient: Tensor
    ) -> tuple[Weights, Tensor]:
        """Gradients of the weights, and of the first layer's products [P, B, W], from [P, A, B]."""
        if self.dueling:
            mean = gradient.mean(1, keepdim=True)
            gradient = torch.cat((gradient.sum(1, keepdim=True), gradient - mean), 1)
        found: Weights = {
            "head.weight": torch.bmm(gradient, saved.features),
            "head.bias": gradient.sum(2),
        }
        delta = torch.bmm(gradient.mT, weights.head_weight)
        for k in reversed(range(len(weights.hidden))):
            layer, kept = weights.hidden[k], saved.layers[k]
            whole = delta
            if layer.rows < len(whole):
                delta = delta[: layer.rows]
            passed = None
            if self.skips[k]:
                gate = (delta * kept.after).sum((1, 2)) * layer.mask.gated.view(-1)
                found[f"hidden{k}.gate"] = gate.unsqueeze(1)
                passed = layer.mask.keep * delta
                delta = _strength(layer) * delta
            elif layer.gate is not None:
                found[f"hidden{k}.gate"] = layer.gate.new_zeros(layer.rows, 1)
            delta = self.activation.backward(delta, kept.before, kept.after)
            if kept.norm is not None and layer.scale is not None:
                found[f"hidden{k}.scale"] = (delta * kept.norm.normal).sum(1)
                found[f"hidden{k}.shift"] = delta.sum(1)
                delta = _normalise_backward(delta * layer.scale, kept.norm, layer.mask)
            found[f"hidden{k}.weight"] = torch.bmm(kept.inputs.mT, delta)
            found[f"hidden{k}.bias"] = delta.sum(1)
            if k > 0:
                back = layer.weight.mT
                delta = (
                    torch.bmm(delta, back) if passed is None else torch.baddbmm(passed, delta, back)
                )
                if layer.rows < len(whole):
                    delta = torch.cat((delta, whole[layer.rows :]))
        return found, delta


def _affine(bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The product and a bias: one call, or compiled a sum that is made with what follows."""
    if torch.compiler.is_compiling():
        product = torch.bmm(left, right)
        return product + bias.to(product.dtype)  # in half precision, as baddbmm
    return torch.baddbmm(bias, left, right)


def _head(bias: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """Outputs [P, A, B] of what the last layer gave, [P, B, W]."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        found: Tensor = HeadProduct.apply(bias, weight, x)  # type: ignore[no-untyped-call]
        return found
    return _affine(bias, weight, x.mT)


class HeadProduct(torch.autograd.Function):
    """The head for autograd, whose own gradient of x lies with the batch last.

    An activation's derivative reads that beside what lies the other way round, ten times slower.
    """

    @staticmethod
    def forward(ctx: Any, bias: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """As `_affine` does it."""
        ctx.save_for_backward(weight, x)
        return torch.baddbmm(bias, weight, x.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """As `StackedMLP.backward` does it; weights that are detached get none."""
        weight, x = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            gradient.sum(2, keepdim=True) if wanted[0] else None,
            torch.bmm(gradient, x) if wanted[1] else None,
            torch.bmm(gradient.mT, weight),
        )


def _strength(layer: HiddenLayer) -> Tensor:
    """How much of a layer's own output enters: 1 plain, 0 absent, the gate for a gated one."""
    assert layer.gate is not None
    return torch.addcmul(layer.mask.replace, layer.mask.gated, layer.gate)


def _take(saved: LayerSaved, batch: int) -> LayerSaved:
    norm = saved.norm and NormSaved(*(x[:, :batch] for x in saved.norm))
    inputs, before, after = (x[:, :batch] for x in (saved.inputs, saved.before, saved.after))
    return LayerSaved(inputs, norm, before, after)


def _normalise(x: Tensor, mask: LayerMask) -> NormSaved:
    """LayerNorm over live units, variance in two passes (one pass cancels at large offsets)."""
    if torch.is_grad_enabled():  # no gradient may reach padding by way of the mean
        x = x * mask.units
    centred = (x - x.sum(2, keepdim=True) * mask.inverse_count) * mask.units
    variance = (centred * centred).sum(2, keepdim=True) * mask.inverse_count
    inverse_std = torch.rsqrt(variance + LAYER_NORM_EPS)
    return NormSaved(centred * inverse_std, inverse_std)


def _normalise_backward(gradient: Tensor, saved: NormSaved, mask: LayerMask) -> Tensor:
    mean = gradient.sum(2, keepdim=True) * mask.inverse_count
    along = (gradient * saved.normal).sum(2, keepdim=True) * mask.inverse_count
    return (gradient - mean - saved.normal * along) * saved.inverse_std * mask.units
