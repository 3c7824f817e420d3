"""Policies as pure functions of what a network gives: draws, densities, entropies.

Legend: ... any leading dimensions, A parts of an action, C outputs of the policy's network.

A discrete action is one choice of n; a MultiDiscrete one is A choices, whose logits stand side by
side. Draws add Gumbel noise to logits and take the largest, which is a softmax draw. A continuous
action is normal around the network's outputs, with a spread that is a bare parameter.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import softplus

from evorl.envs import ActionSpec
from evorl.networks import Networks, ParameterSpec

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
NEVER = -1e30  # the logit of a choice that is not allowed: finite, so that no NaN comes of it


def normal_log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """The logarithm of a normal density, [..., A] → [...]: independent in each number."""
    scaled = (action - mean) * torch.exp(-log_std)
    return (-0.5 * scaled * scaled - log_std - HALF_LOG_2PI).sum(-1)


def squashed_log_prob(mean: Tensor, log_std: Tensor, before: Tensor) -> Tensor:
    """The same for tanh of what a normal gave, from `before` the tanh.

    The logarithm of the tanh's slope is written so that no digits are lost at its ends.
    """
    slope = 2.0 * (math.log(2.0) - before - softplus(-2.0 * before))
    return normal_log_prob(mean, log_std, before) - slope.sum(-1)


class Gaussian(NamedTuple):
    """Independent normals, clamped to the box by those who act."""

    mean: Tensor  # [..., A]
    log_std: Tensor  # [..., A]

    def log_prob(self, action: Tensor) -> Tensor:
        """Of actions [..., A], [...]."""
        return normal_log_prob(self.mean, self.log_std, action)

    def entropy(self) -> Tensor:
        """Of the actions, [...]."""
        return (self.log_std + 0.5 + HALF_LOG_2PI).sum(-1).expand(self.mean.shape[:-1])

    def mode(self) -> Tensor:
        """The likeliest action, [..., A]."""
        return self.mean

    def draw(self, noise: Tensor) -> Tensor:
        """An action [..., A], from standard normal numbers."""
        return self.mean + self.log_std.exp() * noise


class Choices(NamedTuple):
    """Independent choices, by their logits side by side."""

    logits: Tensor  # [..., C]
    sizes: Sequence[int]  # how many there are of each

    def log_prob(self, action: Tensor) -> Tensor:
        """Of choices [..., A], [...]; of a single one [...]."""
        chosen = [action] if len(self.sizes) == 1 else action.unbind(-1)
        parts = zip(self._logits(), chosen, strict=True)
        each = [own.log_softmax(-1).gather(-1, index.unsqueeze(-1)) for own, index in parts]
        return torch.cat(each, -1).sum(-1)

    def entropy(self) -> Tensor:
        """Of the choices, [...]; one that is not allowed adds nothing."""
        each = [own.log_softmax(-1) for own in self._logits()]
        return torch.stack([-(own.exp() * own).sum(-1) for own in each]).sum(0)

    def mode(self) -> Tensor:
        """The likeliest choices, [..., A]; a single one has no last dimension."""
        if len(self.sizes) == 1:
            return self.logits.argmax(-1)
        return torch.stack([own.argmax(-1) for own in self._logits()], -1)

    def draw(self, noise: Tensor) -> Tensor:
        """Choices [..., A], from Gumbel noise [..., C]."""
        return Choices(self.logits + noise, self.sizes).mode()

    def _logits(self) -> tuple[Tensor, ...]:
        return torch.split(self.logits, list(self.sizes), -1)


def policy_of(networks: Networks, obs: Tensor) -> Gaussian | Choices:
    """The policy of every agent at observations [P, B, ...]."""
    network = networks["policy"]
    outputs = network(obs)
    if sizes := network.spec.choices:
        return Choices(masked(outputs, network.mask(obs)), sizes)
    log_std = networks.parameter("log_std")  # [P, A]
    return Gaussian(outputs, log_std.unsqueeze(1).expand(outputs.shape))


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits or values [..., C] by which only what the mask allows is chosen."""
    return logits if mask is None else logits.masked_fill(~mask, NEVER)


def outputs_of(action: ActionSpec) -> int:
    """How many numbers a policy's network gives for such actions."""
    return action.shape[0] if action.kind == "continuous" else sum(action.choices)


def spread_of(action: ActionSpec, initial: float) -> dict[str, ParameterSpec]:
    """The bare parameter that a continuous policy has beside its network."""
    if action.kind != "continuous":
        return {}
    return {"log_std": ParameterSpec(action.shape[0], initial)}


def draw_noise(
    random: np.random.Generator, shape: tuple[int, ...], action: ActionSpec
) -> npt.NDArray[np.float32]:
    """The noise that `draw` wants for such actions."""
    size = (*shape, outputs_of(action))
    if action.kind == "continuous":
        return random.standard_normal(size, np.float32)
    return random.gumbel(size=size).astype(np.float32)
