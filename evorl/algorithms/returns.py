"""Returns and advantages of rollouts, as pure functions.

Legend: T steps of a rollout, ... whatever follows, such as agents and environments.

An episode that terminates is worth nothing from there on. One that is truncated goes on somewhere
else: it is cut, and what would have come is the value of its true last observation. So is what
comes after the rollout's last step.
"""

from typing import NamedTuple

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


class VTrace(NamedTuple):
    """What steps that another policy took say of the current one, [T, ...] each."""

    targets: Tensor  # what the value is to become
    advantages: Tensor  # what log-probabilities are weighed by


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    ended: Tensor,
    gamma: Tensor,
    lam: Tensor,
    rho_max: Tensor,
    c_max: Tensor,
) -> VTrace:
    """V-trace (Espeholt et al., 2018): n-step returns with importance ratios that are clipped.

    On-policy, with thresholds of 1 or more, the advantages are those of `advantages`, and the
    targets these plus the value. With c_max = 0 or lambda = 0 they look one step ahead.

    Args:
        log_ratio: [T, ...] log-probability of the action now, less that when it was taken.
        reward: [T, ...].
        value: [T, ...] of the observation that was acted on.
        next_value: [T, ...] of the true observation after the step, terminal or not.
        terminated: [T, ...] whether nothing follows.
        ended: [T, ...] whether the next step is of another episode.
        gamma: The discount, broadcast to [...].
        lam: How far errors are carried back, broadcast to [...].
        rho_max: The largest ratio by which an error counts, broadcast to [...]: it decides which
            policy's value is learned, from that of who acted (0) to the current one's.
        c_max: The largest ratio by which later errors are carried back, broadcast to [...]: how
            fast it is learned, at which variance.
    """
    ratio = log_ratio.exp()
    rho = torch.minimum(ratio, rho_max)
    error = reward + gamma * torch.where(terminated, 0, next_value) - value
    carry = torch.where(ended, 0, gamma * lam)
    correction = carried_back(rho * error, carry * torch.minimum(ratio, c_max))
    later = torch.cat((correction[1:], torch.zeros_like(correction[:1])))
    return VTrace(value + correction, rho * (error + carry * later))


def carried_back(error: Tensor, carry: Tensor) -> Tensor:
    """x[t] = error[t] + carry[t] * x[t + 1], [T, ...]; the last x is its error.

    By sums over 2, 4, 8, … steps: few operations, and a short program where it is compiled.
    """
    reach = 1
    while reach < len(error):
        more = error[:-reach] + carry[:-reach] * error[reach:]
        error = torch.cat((more, error[-reach:]))
        carry = torch.cat((carry[:-reach] * carry[reach:], carry[-reach:]))
        reach *= 2
    return error
