"""The activations and their derivatives, as PyTorch's own kernels.

All give f(0) = 0, which is what keeps padding at zero.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from evorl.genome import Activation

aten = torch.ops.aten


class ActivationPair(NamedTuple):
    """A function, and its derivative from (gradient, input, output)."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor, Tensor], Tensor]


PAIRS: dict[Activation, ActivationPair] = {
    "relu": ActivationPair(torch.relu, lambda g, x, y: aten.threshold_backward(g, y, 0)),
    "tanh": ActivationPair(torch.tanh, lambda g, x, y: aten.tanh_backward(g, y)),
    "elu": ActivationPair(
        torch.nn.functional.elu, lambda g, x, y: aten.elu_backward(g, 1.0, 1.0, 1.0, True, y)
    ),
    "gelu": ActivationPair(torch.nn.functional.gelu, lambda g, x, y: aten.gelu_backward(g, x)),
    "silu": ActivationPair(torch.nn.functional.silu, lambda g, x, y: aten.silu_backward(g, x)),
}
