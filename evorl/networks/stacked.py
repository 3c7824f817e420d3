"""All networks of a group as one: encode the observation, convolve images, run the MLP.

Legend: P agents, B batch, A actions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from evorl.networks.cnn import ConvSaved, StackedCNN
from evorl.networks.layout import Layout, Weights
from evorl.networks.mlp import MLPSaved, StackedMLP
from evorl.networks.views import Arranged


class Saved(NamedTuple):
    """What the backward pass needs of a forward pass."""

    convolutions: list[ConvSaved]
    mlp: MLPSaved


class Network:
    """The networks of a group, as functions of the matrix."""

    def __init__(self, layout: Layout, blended: tuple[bool, ...], device: str = "cpu") -> None:
        self.layout = layout
        self.mlp = StackedMLP(layout, blended)
        image = layout.problem.image
        self.cnn = StackedCNN(layout, image, device) if image is not None else None

    def forward(self, weights: Arranged, obs: Tensor) -> tuple[Tensor, Saved]:
        """Values [P, A, B] of raw observations [P, B, ...], and what the backward pass needs."""
        x = self._encode(obs, weights.head_bias.dtype)
        convolutions: list[ConvSaved] = []
        if self.cnn is not None:
            x, convolutions = self.cnn.forward(weights, x)
        values, layers = self.mlp.forward(weights, x)
        values = values.to(weights.head_bias.dtype)  # losses are never in half precision
        return values, Saved(convolutions, layers)

    def forward_two(
        self, weights: Arranged, obs: Tensor, others: Tensor
    ) -> tuple[Tensor, Tensor, Saved]:
        """Values of both observations; only the first keeps what a backward pass needs."""
        if self.cnn is not None:
            values, saved = self.forward(weights, obs)
            return values, self.forward(weights, others)[0], saved
        size = obs.shape[1]  # small networks are bound by dispatch: one pass for both
        values, saved = self.forward(weights, torch.cat((obs, others), 1))
        return values[:, :, :size], values[:, :, size:], Saved([], saved.mlp.first(size))

    def backward(self, weights: Arranged, saved: Saved, gradient: Tensor) -> Weights:
        """Gradients of the weights by segment, from the gradient [P, A, B] of the values.

        A layer that only some agents have gives rows for these only: see Layout.join.
        """
        found, delta = self.mlp.backward(weights, saved.mlp, gradient)
        if self.cnn is not None:
            features = torch.bmm(delta, weights.hidden[0].weight.mT)
            found |= self.cnn.backward(weights, saved.convolutions, features)
        return found

    def _encode(self, obs: Tensor, dtype: torch.dtype) -> Tensor:
        problem = self.layout.problem
        if problem.one_hot:
            return torch.nn.functional.one_hot(obs, problem.inputs).to(dtype)
        x = obs.to(dtype)
        return x if problem.scale == 1 else x * problem.scale
