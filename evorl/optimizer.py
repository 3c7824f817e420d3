"""Adam for every agent at once: torch.optim.Adam's arithmetic with per-agent numbers.

Legend: U updates of a round, P agents, D row length.

Everything that depends on an agent's own step count (bias correction, whether it is due at this
update, when its target network is copied) is worked out on the host once a round, as coefficients.
An agent that is not due gets zeros, and its row keeps its bits.

A weight that a mutation added to an agent is marked: its second moment is stored below zero. The
agent's step count is old, so nothing of the bias correction is left for a weight whose moments
begin at zero, and plain Adam would move it by several learning rates at once: see move_marked_.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # as torch.optim.Adam
TINY = 1e-37  # its root is nothing beside EPS
NEW = -TINY  # the second moment of a weight that a mutation has just added

Floats = npt.NDArray[np.float64]


class Coefficients(NamedTuple):
    """What one update multiplies with; [P, 1] each, or [U, P, 1] for a round."""

    first: Tensor  # how far the first moment moves to the gradient
    second: Tensor  # how far the second moment moves to the squared gradient
    slowness: Tensor  # minus 1 / the bias-corrected learning rate; infinite if not due
    eps: Tensor
    tau: Tensor  # how far the target network moves to the new weights
    clip: Tensor  # largest gradient norm


def coefficients(
    steps: npt.NDArray[np.int64],
    updates: npt.NDArray[np.int64],
    hp: dict[str, Floats],
    periodic: bool,
) -> dict[str, Floats]:
    """The coefficients [U, P, 1] of a round in which agent i, after steps[i], makes updates[i]."""
    order = np.arange(int(updates.max(initial=0)))[:, None]  # [U, 1]
    due = (order < updates).astype(np.float64)  # [U, P]
    step = steps + np.minimum(order, updates - 1) + 1.0
    step = np.maximum(step, 1.0)
    root = np.sqrt(1 - BETA2**step)
    tau = (step % hp["target_period"] == 0).astype(np.float64) if periodic else hp["tau"]
    clip = np.where(hp["max_grad_norm"] > 0, hp["max_grad_norm"], np.inf)
    found = {
        "first": (1 - BETA1) * due,
        "second": (1 - BETA2) * due,
        "slowness": np.where(due > 0, -(1 - BETA1**step) / (hp["lr"] * root), -np.inf),
        "eps": EPS * root,
        "tau": tau * due,
        "clip": clip + 0 * due,
    }
    return {name: value[:, :, None] for name, value in found.items()}


def clip_(gradient: Tensor, limit: Tensor) -> Tensor:
    """Scale each agent's gradient [P, D] down to its limit, as clip_grad_norm_ does."""
    norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    return gradient.mul_((limit / (norm + 1e-6)).clamp_(max=1.0))


def adam_(
    theta: Tensor,
    m: Tensor,
    v: Tensor,
    gradient: Tensor,
    c: Coefficients,
    scratch: Tensor,
    marked: bool = False,
) -> None:
    """Move weights and moments [P, D] by one Adam step, in place; overwrites gradient and scratch.

    No temporary matrix is made, unless some weights are marked: fresh memory costs as much as the
    arithmetic.
    """
    m.lerp_(gradient, c.first)
    squared = gradient.square_()
    if marked:
        move_marked_(v, m, squared, c)
        root = torch.abs(v, out=scratch).clamp_min_(TINY).sqrt_()
    else:
        v.lerp_(squared, c.second)
        # The root of a zero takes six times as long as another's, and padding is all zeros.
        root = torch.clamp_min(v, TINY, out=scratch).sqrt_()
    theta.addcdiv_(m, root.add_(c.eps).mul_(c.slowness))


def move_marked_(v: Tensor, m: Tensor, squared: Tensor, c: Coefficients) -> None:
    """Move second moments [P, D] to the squared gradient, where some weights are marked.

    The second moment of a marked weight is never below its first one squared, so that it moves by
    one learning rate at most. That holds however its gradient grows: a new unit's begins at zero,
    like its outgoing weights, and grows with them for hundreds of updates. Once the second moment
    has caught up, this is plain Adam. Weights without a mark get plain Adam's bits.
    """
    marked = v < 0
    least = torch.where(marked & (c.second > 0), (m * m).clamp_min(TINY), 0.0)
    # Each value is used once: torch.compile (2.13) fails where one that comes of v is kept.
    moved = torch.maximum(torch.lerp(v.abs(), squared, c.second), least)
    v.copy_(moved * torch.where(marked, -1.0, 1.0))
