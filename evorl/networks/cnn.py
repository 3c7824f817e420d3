"""A stack of convolutional trunks, one per agent, for image observations; forward and backward.

Legend: P agents, B batch, C input channels, O output channels, H×W image, h×w result, k kernel,
F features.

One convolution of all agents is computed in one of three ways:
- loop: one agent after another, PyTorch's own convolution each
- grouped: agents side by side in the channels, one grouped convolution
- unfold: patches as columns, one batched matrix product

All take [P, B, C, H, W] and give [P, B, O, h, w]. Which is fastest depends on the layer and the
device; `choose` says.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from evorl.networks.layers import PAIRS, LayerViews
from evorl.networks.layout import NetworkLayout, Weights

Way = Literal["loop", "grouped", "unfold"]

aten = torch.ops.aten


class ConvLayer(NamedTuple):
    """The fixed facts of one layer."""

    way: Way
    stride: int
    needs_input_gradient: bool


class ConvGradient(NamedTuple):
    """Gradients of a layer's weight [P, O, C, k, k], bias [P, O] and input [P, B, C, H, W]."""

    weight: Tensor
    bias: Tensor
    inputs: Tensor | None


def choose(weight: tuple[int, ...], height: int, width: int, first: bool, device: str) -> Way:
    """The fastest way for weights (O, C, k, k) giving an h×w result.

    Measured on a CPU by benchmarks/convolution.py: large layers are bound by arithmetic, where
    PyTorch's own kernel wins; small ones by dispatch and packing. On a GPU grouped is a guess.

    A fixed rule and not a timing at start-up: the ways differ in the last bits, and the same seed
    must give the same bytes.
    """
    if device != "cpu":
        return "grouped"
    outputs, inputs, kernel, _ = weight
    products = outputs * inputs * kernel * kernel * height * width
    if height * width > 150 or products > 700_000:
        return "loop"
    return "unfold" if first else "grouped"


def convolve(layer: ConvLayer, weight: Tensor, bias: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The convolution of x with each agent's own weights, and what the backward pass is to get.

    That is x, or its columns, which take longer to lay out than to multiply.
    """
    agents, batch, channels, height, width = x.shape
    outputs, kernel = weight.shape[1], weight.shape[3]
    if layer.way == "loop":
        results = [functional.conv2d(x[p], weight[p], bias[p], layer.stride) for p in range(agents)]
        return torch.stack(results), x
    if layer.way == "grouped":
        y = functional.conv2d(
            x.transpose(0, 1).reshape(batch, agents * channels, height, width),
            weight.reshape(agents * outputs, channels, kernel, kernel),
            bias.reshape(-1),
            layer.stride,
            groups=agents,
        )
        return y.view(batch, agents, outputs, *y.shape[2:]).transpose(0, 1), x
    columns, (h, w) = _columns(x, kernel, layer.stride)
    y = torch.baddbmm(bias.unsqueeze(2), weight.reshape(agents, outputs, -1), columns)
    return y.view(agents, outputs, batch, h, w).transpose(1, 2), columns


def convolve_backward(
    layer: ConvLayer, weight: Tensor, x: Tensor, kept: Tensor, gradient: Tensor
) -> ConvGradient:
    """Gradients from the gradient [P, B, O, h, w] of the result, and what forward kept."""
    agents, batch, channels, height, width = x.shape
    outputs, kernel = weight.shape[1], weight.shape[3]
    if layer.way == "loop":
        each = [_conv_backward(layer, gradient[p], x[p], weight[p], 1) for p in range(agents)]
        d_weight, d_bias = (torch.stack([found[i] for found in each]) for i in (1, 2))
        d_inputs = torch.stack([f[0] for f in each]) if layer.needs_input_gradient else None
        return ConvGradient(d_weight, d_bias, d_inputs)
    if layer.way == "grouped":
        d_inputs, d_weight, d_bias = _conv_backward(
            layer,
            gradient.transpose(0, 1).reshape(batch, agents * outputs, *gradient.shape[3:]),
            x.transpose(0, 1).reshape(batch, agents * channels, height, width),
            weight.reshape(agents * outputs, channels, kernel, kernel),
            agents,
        )
        if layer.needs_input_gradient:
            d_inputs = d_inputs.view(batch, agents, channels, height, width).transpose(0, 1)
        return ConvGradient(d_weight.view(weight.shape), d_bias.view(agents, outputs), d_inputs)
    h, w = gradient.shape[3:]
    flat = gradient.transpose(1, 2).reshape(agents, outputs, batch * h * w)
    d_weight = torch.bmm(flat, kept.mT).view(weight.shape)
    found = None
    if layer.needs_input_gradient:
        patches = torch.bmm(weight.reshape(agents, outputs, -1).mT, flat)
        patches = patches.view(agents, -1, batch, h * w).transpose(1, 2).flatten(0, 1)
        found = functional.fold(patches, (height, width), kernel, stride=layer.stride)
        found = found.view(x.shape)
    return ConvGradient(d_weight, flat.sum(2), found)


class ConvSaved(NamedTuple):
    """What the backward pass of one convolution needs, each [P, B, ...]."""

    inputs: Tensor
    kept: Tensor  # what the convolution wants back: see convolve
    before: Tensor  # what the activation read
    after: Tensor  # what it gave


class StackedCNN:
    """The convolutions of every agent of a group; narrower agents' channels are zero-padded."""

    def __init__(
        self, layout: NetworkLayout, image: tuple[int, int, int], device: str = "cpu"
    ) -> None:
        self.activation = PAIRS[layout.signature.activation]
        self.layers: list[ConvLayer] = []
        height, width = image[1:]
        sizes = zip(layout.signature.kernels, layout.signature.strides, strict=True)
        for k, (kernel, stride) in enumerate(sizes):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            shape = layout.shapes[f"conv{k}.weight"]
            way = choose(shape, height, width, k == 0, device)
            self.layers.append(ConvLayer(way, stride, needs_input_gradient=k > 0))

    def forward(self, weights: LayerViews, x: Tensor) -> tuple[Tensor, list[ConvSaved]]:
        """Features [P, B, F] of images [P, B, C, H, W]."""
        saved: list[ConvSaved] = []
        for k, layer in enumerate(self.layers):
            own = weights.convolutions[k]
            before, kept = convolve(layer, own.weight, own.bias, x)
            after = self.activation.forward(before)
            saved.append(ConvSaved(x, kept, before, after))
            x = after
        return x.flatten(2), saved  # channel by channel, so padding stays at the end

    def backward(self, weights: LayerViews, saved: list[ConvSaved], gradient: Tensor) -> Weights:
        """Gradients of the weights from the gradient [P, B, F] of the features."""
        found: Weights = {}
        delta = gradient.view(saved[-1].after.shape)
        for k in reversed(range(len(self.layers))):
            own = saved[k]
            delta = self.activation.backward(delta, own.before, own.after)
            weight = weights.convolutions[k].weight
            got = convolve_backward(self.layers[k], weight, own.inputs, own.kept, delta)
            found[f"conv{k}.weight"], found[f"conv{k}.bias"] = got.weight, got.bias
            if got.inputs is not None:
                delta = got.inputs
        return found


def _columns(x: Tensor, kernel: int, stride: int) -> tuple[Tensor, tuple[int, int]]:
    """Patches as columns [P, C*k*k, B*h*w], and (h, w)."""
    patches = x.unfold(3, kernel, stride).unfold(4, kernel, stride)  # [P, B, C, h, w, k, k]
    agents, batch, channels, h, w = patches.shape[:5]
    columns = patches.permute(0, 2, 5, 6, 1, 3, 4)
    return columns.reshape(agents, channels * kernel * kernel, batch * h * w), (h, w)


def _conv_backward(
    layer: ConvLayer, gradient: Tensor, x: Tensor, weight: Tensor, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    stride = [layer.stride, layer.stride]
    wanted = [layer.needs_input_gradient, True, True]
    found: tuple[Tensor, Tensor, Tensor] = aten.convolution_backward(
        gradient,
        x,
        weight,
        [weight.shape[0]],
        stride,
        [0, 0],
        [1, 1],
        False,
        [0, 0],
        groups,
        wanted,
    )
    return found
