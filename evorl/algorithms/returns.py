"""Returns and advantages of rollouts, as pure functions.

Legend: T steps of a rollout, ... whatever follows, such as agents and environments.

An episode that terminates is worth nothing from there on. One that is truncated goes on somewhere
else: it is cut, and what would have come is the value of its true last observation. So is what
comes after the rollout's last step.
"""

import torch
from torch import Tensor


def advantages(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    ended: Tensor,
    gamma: Tensor,
    lam: Tensor,
) -> Tensor:
    """Generalised advantage estimates, [T, ...]; with lambda 1, n-step returns less the value.

    Args:
        reward: [T, ...].
        value: [T, ...] of the observation that was acted on.
        next_value: [T, ...] of the true observation after the step, terminal or not.
        terminated: [T, ...] whether nothing follows.
        ended: [T, ...] whether the next step is of another episode.
        gamma: The discount, broadcast to [...].
        lam: How far errors are carried back, broadcast to [...].
    """
    error = reward + gamma * torch.where(terminated, 0, next_value) - value
    carry = torch.where(ended, 0, gamma * lam)
    found = torch.empty_like(error)
    later = torch.zeros_like(error[0])
    for t in range(len(error) - 1, -1, -1):
        later = torch.addcmul(error[t], carry[t], later)
        found[t] = later
    return found
