"""The networks of all agents of a group, stacked: what an algorithm calls.

Legend: P agents, B batch, O outputs, E extra inputs.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from evorl.networks.cnn import ConvSaved, StackedCNN
from evorl.networks.layers import LayerViews, Masks, layer_views
from evorl.networks.layout import NetworkLayout, Weights
from evorl.networks.mlp import MLPSaved, StackedMLP
from evorl.networks.normalizer import normalized
from evorl.networks.spec import NORMALIZER, VALUE, NetworkSpec

Names = frozenset[str]


class Saved(NamedTuple):
    """What the backward pass needs of a forward pass."""

    convolutions: list[ConvSaved]
    mlp: MLPSaved


class StackedNetwork:
    """One network of every agent of a group, as functions of its weights."""

    def __init__(self, layout: NetworkLayout, skips: tuple[bool, ...], device: str = "cpu") -> None:
        self.layout, self.spec = layout, layout.spec
        self.mlp = StackedMLP(layout, skips)
        image = layout.spec.image
        self.cnn = StackedCNN(layout, image, device) if image is not None else None

    def forward(
        self, weights: LayerViews, obs: Tensor, extra: Tensor | None = None
    ) -> tuple[Tensor, Saved]:
        """Outputs [P, O, B] of raw observations [P, B, ...], and what the backward pass needs.

        `extra` [P, B, E] is read beside the observation.
        """
        x = encode(self.spec, obs, weights.head_bias.dtype)
        if weights.statistics is not None:
            x = normalized(x, *weights.statistics)
        convolutions: list[ConvSaved] = []
        if self.cnn is not None:
            x, convolutions = self.cnn.forward(weights, x)
        if extra is not None:
            x = torch.cat((extra.to(x.dtype), x), 2)
        values, layers = self.mlp.forward(weights, x)
        if values.dtype != weights.head_bias.dtype:  # losses are never in half precision
            values = values.to(weights.head_bias.dtype)
        return values, Saved(convolutions, layers)

    def forward_two(
        self, weights: LayerViews, obs: Tensor, others: Tensor
    ) -> tuple[Tensor, Tensor, Saved]:
        """Outputs of both observations; only the first keeps what a backward pass needs."""
        if self.cnn is not None:
            values, saved = self.forward(weights, obs)
            return values, self.forward(weights, others)[0], saved
        size = obs.shape[1]  # small networks are bound by dispatch: one pass for both
        values, saved = self.forward(weights, torch.cat((obs, others), 1))
        return values[:, :, :size], values[:, :, size:], Saved([], saved.mlp.first(size))

    def backward(self, weights: LayerViews, saved: Saved, gradient: Tensor) -> Weights:
        """Gradients of the weights by segment, from the gradient [P, O, B] of the outputs.

        A layer that only some agents have gives rows for these only: see Layout.join.
        """
        found, delta = self.mlp.backward(weights, saved.mlp, gradient)
        if self.cnn is not None:
            features = torch.bmm(delta, weights.hidden[0].weight.mT)
            found |= self.cnn.backward(
                weights, saved.convolutions, features[:, :, self.spec.extra :]
            )
        return found


def encode(spec: NetworkSpec, obs: Tensor, dtype: torch.dtype) -> Tensor:
    """Raw observations [P, B, ...] as numbers, without a mask of actions behind them."""
    if spec.one_hot:
        return torch.nn.functional.one_hot(obs, spec.inputs).to(dtype)
    if spec.mask:
        obs = obs[..., : -spec.mask]
    x = obs if obs.dtype == dtype else obs.to(dtype)
    return x if spec.scale == 1 else x * spec.scale


class BoundNetwork:
    """A stacked network with weights: `network(obs)` gives outputs [P, B, O]."""

    def __init__(
        self, stacked: StackedNetwork, views: Weights, masks: Masks, statistics: Weights | None
    ) -> None:
        self.stacked, self.views, self.masks = stacked, views, masks
        self.statistics = statistics if stacked.spec.normalize else None
        self.weights = layer_views(views, masks, self.statistics)
        self._detached: BoundNetwork | None = None

    def __call__(self, obs: Tensor, extra: Tensor | None = None) -> Tensor:
        """Outputs [P, B, O] of observations [P, B, ...] and extra inputs [P, B, E].

        By autograd they can be differentiated by the weights, and by the extra inputs.
        """
        return self.stacked.forward(self.weights, obs, extra)[0].mT

    @property
    def spec(self) -> NetworkSpec:
        """What it reads and gives."""
        return self.stacked.spec

    def mask(self, obs: Tensor) -> Tensor | None:
        """Which actions observations [P, B, ...] allow, [P, B, actions]; None: all."""
        return obs[..., -self.spec.mask :] > 0 if self.spec.mask else None

    def detached(self) -> "BoundNetwork":
        """The same with weights that get no gradient; what it reads still does.

        So `critic.detached()(obs, actor(obs))` trains the actor alone.
        """
        if self._detached is None:
            views = {segment: view.detach() for segment, view in self.views.items()}
            self._detached = BoundNetwork(self.stacked, views, self.masks, self.statistics)
        return self._detached

    def forward(self, obs: Tensor) -> tuple[Tensor, Saved]:
        """Outputs as they are computed, [P, O, B], and what `backward` needs."""
        return self.stacked.forward(self.weights, obs)

    def forward_two(self, obs: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Saved]:
        """Outputs [P, O, B] of both observations, and what `backward` needs of the first."""
        return self.stacked.forward_two(self.weights, obs, others)

    def backward(self, saved: Saved, gradient: Tensor) -> Weights:
        """Gradients of the weights by segment, from the gradient [P, O, B] of the outputs."""
        return self.stacked.backward(self.weights, saved, gradient)


class Networks:
    """The networks of a group by name, and its bare parameters [P, size] by `parameter(name)`.

    A plain class and no Mapping, whose methods torch.compile cannot follow.
    """

    def __init__(
        self,
        networks: Mapping[str, BoundNetwork],
        parameters: Mapping[str, Tensor],
        idle: Names = frozenset(),
    ) -> None:
        self._networks, self._parameters, self._idle = networks, parameters, idle

    def __getitem__(self, name: str) -> BoundNetwork:
        return self._networks[name]

    def parameter(self, name: str) -> Tensor:
        """A bare parameter of every agent, [P, size]."""
        return self._parameters[name]

    def trains(self, name: str) -> bool:
        """Whether this update moves that network of any agent; else its loss need not be found."""
        return name not in self._idle

    def resting(self, idle: Names) -> "Networks":
        """The same for an update that moves none of these."""
        return Networks(self._networks, self._parameters, idle)


def bind(
    stacked: Mapping[str, StackedNetwork], views: Mapping[str, Weights], masks: Mapping[str, Masks]
) -> Networks:
    """Networks with their weights, by network and segment; statistics are among them."""
    statistics = views.get(NORMALIZER)
    return Networks(
        {
            name: BoundNetwork(own, views[name], masks[name], statistics)
            for name, own in stacked.items()
        },
        {name: own[VALUE] for name, own in views.items() if VALUE in own},
    )
