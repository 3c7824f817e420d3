"""Policies as pure functions of what a network gives: densities, entropies, draws.

Legend: P agents, B samples, A numbers of an action, C choices of all parts of an action.

A discrete action is one choice of n; a MultiDiscrete one of A such choices, whose logits stand
side by side. Draws add Gumbel noise to logits and take the largest: that is a softmax draw.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


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


def normal_entropy(log_std: Tensor) -> Tensor:
    """Of independent normals, [..., A] → [...]."""
    return (log_std + 0.5 + HALF_LOG_2PI).sum(-1)


def choices_log_prob(logits: Tensor, action: Tensor, sizes: Sequence[int]) -> Tensor:
    """The logarithm of the probability of choices [..., A], from logits [..., C]."""
    parts = zip(torch.split(logits, list(sizes), -1), action.unbind(-1), strict=True)
    each = [own.log_softmax(-1).gather(-1, index.unsqueeze(-1)) for own, index in parts]
    return torch.cat(each, -1).sum(-1)


def choices_entropy(logits: Tensor, sizes: Sequence[int]) -> Tensor:
    """Of independent choices, [..., C] → [...]; a choice that cannot be made adds nothing."""
    total = []
    for own in torch.split(logits, list(sizes), -1):
        log_prob = own.log_softmax(-1)
        prob = log_prob.exp()
        total.append(-torch.where(prob > 0, prob * log_prob, torch.zeros_like(prob)).sum(-1))
    return torch.stack(total).sum(0)


def likeliest_choices(logits: Tensor, sizes: Sequence[int]) -> Tensor:
    """The choices [..., A] of the highest logits [..., C]; with Gumbel noise on them, a draw."""
    return torch.stack([own.argmax(-1) for own in torch.split(logits, list(sizes), -1)], -1)
