"""All networks of a group as one: encode the observation, convolve images, run the MLP.

Legend: P agents, B batch, A actions, D row length.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from evorl.networks.cnn import ConvSaved, StackedCNN
from evorl.networks.layout import Layout, Weights
from evorl.networks.live import Live
from evorl.networks.mlp import LayerSaved, StackedMLP, take


class Saved(NamedTuple):
    """What the backward pass needs of a forward pass."""

    convolutions: list[ConvSaved]
    layers: list[LayerSaved]


class Network:
    """The networks of a group, as functions of the matrix."""

    def __init__(self, layout: Layout, blended: tuple[bool, ...], device: str = "cpu") -> None:
        self.layout = layout
        self.mlp = StackedMLP(layout, blended)
        image = layout.problem.image
        self.cnn = StackedCNN(layout, image, device) if image is not None else None

    def forward(self, weights: Weights, live: Live, obs: Tensor) -> tuple[Tensor, Saved]:
        """Values [P, A, B] of raw observations [P, B, ...], and what the backward pass needs."""
        x = self._encode(obs, weights["head.bias"].dtype)
        convolutions: list[ConvSaved] = []
        if self.cnn is not None:
            x, convolutions = self.cnn.forward(weights, x)
        values, layers = self.mlp.forward(weights, live, x)
        return values, Saved(convolutions, layers)

    def forward_two(
        self, weights: Weights, live: Live, obs: Tensor, others: Tensor
    ) -> tuple[Tensor, Tensor, Saved]:
        """Values of both observations; only the first keeps what a backward pass needs."""
        if self.cnn is not None:
            values, saved = self.forward(weights, live, obs)
            return values, self.forward(weights, live, others)[0], saved
        size = obs.shape[1]  # small networks are bound by dispatch: one pass for both
        values, saved = self.forward(weights, live, torch.cat((obs, others), 1))
        kept = Saved([], [take(layer, size) for layer in saved.layers])
        return values[:, :, :size], values[:, :, size:], kept

    def backward(self, weights: Weights, live: Live, saved: Saved, gradient: Tensor) -> Tensor:
        """The gradient [P, D] of the matrix from the gradient [P, A, B] of the values."""
        found, delta = self.mlp.backward(weights, live, saved.layers, gradient)
        if self.cnn is not None:
            features = torch.bmm(delta, weights["hidden0.weight"].mT)
            found |= self.cnn.backward(weights, saved.convolutions, features)
        return self.layout.join(found)

    def _encode(self, obs: Tensor, dtype: torch.dtype) -> Tensor:
        problem = self.layout.problem
        if problem.one_hot:
            return torch.nn.functional.one_hot(obs, problem.inputs).to(dtype)
        x = obs.to(dtype)
        return x if problem.scale == 1 else x * problem.scale
