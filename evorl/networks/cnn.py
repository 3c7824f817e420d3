"""A stack of convolutional trunks, one per agent, for image observations.

Legend: P agents, B batch, C channels, H×W image, F features.
"""

from typing import NamedTuple

from torch import Tensor

from evorl.networks import convolution
from evorl.networks.activations import PAIRS
from evorl.networks.layout import NetworkLayout, Weights
from evorl.networks.views import LayerViews


class ConvSaved(NamedTuple):
    """What the backward pass of one convolution needs, each [P, B, ...]."""

    inputs: Tensor
    kept: Tensor  # what the convolution wants back: see convolution.forward
    before: Tensor  # what the activation read
    after: Tensor  # what it gave


class StackedCNN:
    """The convolutions of every agent of a group; narrower agents' channels are zero-padded."""

    def __init__(
        self, layout: NetworkLayout, image: tuple[int, int, int], device: str = "cpu"
    ) -> None:
        self.activation = PAIRS[layout.signature.activation]
        self.layers: list[convolution.ConvLayer] = []
        height, width = image[1:]
        sizes = zip(layout.signature.kernels, layout.signature.strides, strict=True)
        for k, (kernel, stride) in enumerate(sizes):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            shape = layout.shapes[f"conv{k}.weight"]
            way = convolution.choose(shape, height, width, k == 0, device)
            self.layers.append(convolution.ConvLayer(way, stride, needs_input_gradient=k > 0))

    def forward(self, weights: LayerViews, x: Tensor) -> tuple[Tensor, list[ConvSaved]]:
        """Features [P, B, F] of images [P, B, C, H, W]."""
        saved: list[ConvSaved] = []
        for k, layer in enumerate(self.layers):
            own = weights.convolutions[k]
            before, kept = convolution.forward(layer, own.weight, own.bias, x)
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
            got = convolution.backward(self.layers[k], weight, own.inputs, own.kept, delta)
            found[f"conv{k}.weight"], found[f"conv{k}.bias"] = got.weight, got.bias
            if got.inputs is not None:
                delta = got.inputs
        return found
