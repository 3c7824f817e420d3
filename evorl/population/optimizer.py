"""Adam for every agent at once: torch.optim.Adam's arithmetic with per-agent numbers.

Legend: U updates of a round, K networks of an agent, P agents, D length of a row or of a part.

Everything that depends on an agent's own step count (bias correction, whether it is due at this
update, when its target network is copied) is worked out on the host once a round, as coefficients.
An agent that is not due gets zeros, and its row keeps its bits.

A weight that a mutation added to an agent is marked: its second moment is stored below zero. The
agent's step count is old, so nothing of the bias correction is left for a weight whose moments
begin at zero, and plain Adam would move it by several learning rates at once: see limits_of.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.algorithms import Trained

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # as torch.optim.Adam
TINY = 1e-37  # its root is nothing beside EPS
NEW = -TINY  # the second moment of a weight that a mutation has just added
HUGE = 1e38  # no limit
AHEAD = 256  # updates whose coefficients are worked out together

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Coefficients(NamedTuple):
    """What one update multiplies with; [P, 1] each."""

    first: Tensor  # how far the first moment moves to the gradient
    second: Tensor  # how far the second moment moves to the squared gradient
    divisor: Tensor  # minus 1 / the bias-corrected learning rate; infinite if not due
    eps: Tensor
    tau: Tensor  # how far the target network moves to the new weights
    clip: Tensor  # largest gradient norm


class RoundCoefficients(NamedTuple):
    """How the updates of a group's round move its rows."""

    coefficients: Tensor  # [U, K, 6, P, 1], in the order of `Coefficients`
    idle: Sequence[frozenset[str]]  # for each update the networks that it moves for no agent


class RoundPlanner:
    """The coefficients of one round after another, for all groups.

    A round that is like the one before is likely to be followed by more: theirs are worked out
    together, as the calls cost more than the arithmetic.
    """

    def __init__(
        self,
        networks: Mapping[str, Trained],
        trained: Sequence[Trained],
        hp: Mapping[str, Floats],
        parts: Sequence[slice],
        like: Tensor,
    ) -> None:
        """`parts` are the agents of each group; `like` has the type and device of their rows."""
        self.networks, self.trained, self.hp = networks, trained, hp
        self.parts, self.like = parts, like
        self._wanted = np.float64 if like.dtype == torch.float64 else np.float32
        self._updates, self._steps = b"", np.zeros(0, np.int64)  # of the rounds that are ahead
        self._ahead: list[list[RoundCoefficients]] = []  # the last first

    def __call__(self, steps: Ints, updates: Ints) -> list[RoundCoefficients]:
        """For each group, when agent i, after steps[i], makes updates[i]."""
        wanted = updates.tobytes()
        planned = self._ahead and steps.tobytes() == self._steps.tobytes()
        if not (planned and wanted == self._updates):
            most = max(updates.tolist(), default=0)
            rounds = max(1, AHEAD // most) if most and wanted == self._updates else 1
            self._work_out(steps, updates, rounds)
            self._updates, self._steps = wanted, steps.copy()
        self._steps += updates
        return self._ahead.pop()

    def _work_out(self, steps: Ints, updates: Ints, rounds: int) -> None:
        rows = coefficients(steps, updates, self.hp, self.trained, rounds)
        rows = rows.reshape(rounds, -1, *rows.shape[1:])
        groups = []
        for part in self.parts:
            count = max(updates[part].tolist(), default=0)
            own = np.ascontiguousarray(rows[:, :count, :, :, part], self._wanted)
            each = torch.from_numpy(own).to(self.like.device).unbind(0)
            idle = (idle_networks(one, self.networks) for one in rows[:, :count, :, :, part])
            groups.append([RoundCoefficients(*both) for both in zip(each, idle, strict=True)])
        self._ahead = [list(one) for one in zip(*groups, strict=True)][::-1]


def coefficients(
    steps: Ints,
    updates: Ints,
    hp: Mapping[str, Floats],
    trained: Sequence[Trained],
    rounds: int = 1,
) -> Floats:
    """All coefficients of a round in which agent i, after steps[i], makes updates[i].

    [U, K, 6, P, 1], in the order of `Coefficients`: a tensor for each would cost more calls.
    Of several such rounds, one after another, [rounds * U, K, 6, P, 1].
    """
    count = max(updates.tolist(), default=0)  # U
    begun = (steps + np.arange(rounds)[:, None, None] * updates).repeat(count, 1)
    step = (np.arange(1.0, count + 1)[:, None] + begun).reshape(-1, len(steps))  # [rounds * U, P]
    found = np.empty((len(step), len(trained), len(Coefficients._fields), len(steps), 1))
    numbers = [(own.lr, own.max_grad_norm, own.tau, own.period, own.every) for own in trained]
    alike = [numbers.index(own) for own in numbers]
    for k, own in enumerate(trained):
        twin = alike[k]
        if twin < k:  # trained by the same numbers, as twin critics are
            found[:, k] = found[:, twin]
            continue
        first, second, divisor, eps, tau, clip = found[:, k, ..., 0].transpose(1, 0, 2)
        own_step = step if own.every is None else np.maximum(step // hp[own.every], 1)
        root = np.sqrt(1 - BETA2**own_step)
        bias = BETA1**own_step - 1
        first[:] = 1 - BETA1
        second[:] = 1 - BETA2
        with np.errstate(divide="ignore"):  # a learning rate of 0 moves nothing
            np.divide(bias, hp[own.lr] * root, out=divisor)
        np.multiply(root, EPS, out=eps)
        tau[:] = _target_share(own, step, hp)
        clip[:] = hp[own.max_grad_norm] if own.max_grad_norm else 0
        clip[clip <= 0] = np.inf
        if own.every is not None:
            _stop(found[:, k : k + 1], step % hp[own.every] != 0, keep_target=True)
    if min(updates.tolist(), default=0) < count:
        idle = np.arange(count)[:, None] >= updates  # [U, P]
        _stop(found, np.tile(idle, (rounds, 1)))
    return found


def idle_networks(found: Floats, networks: Mapping[str, Trained]) -> list[frozenset[str]]:
    """For each update of a round [U, K, 6, P, 1] the delayed networks it moves for no agent."""
    if all(own.every is None for own in networks.values()):
        return [frozenset()] * len(found)
    moves = np.any(found[:, :, 0], axis=(2, 3)).tolist()  # [U, K]
    delayed = [(k, name) for k, (name, own) in enumerate(networks.items()) if own.every]
    return [frozenset(name for k, name in delayed if not own[k]) for own in moves]


def _target_share(own: Trained, step: npt.NDArray[Any], hp: Mapping[str, Floats]) -> Floats | int:
    """How far a target network moves to the new weights, at each step [U, P]."""
    share: Floats | int = hp[own.tau] if own.tau is not None else int(own.period is not None)
    return share if own.period is None else share * (step % hp[own.period] == 0)


def _stop(found: Floats, idle: npt.NDArray[np.bool_], keep_target: bool = False) -> None:
    """Agents that are not due at an update keep their rows to the bit."""
    for each in found[..., 0].transpose(1, 2, 0, 3):  # [6, U, P] of one network
        first, second, divisor, _, tau, _ = each
        first[idle] = second[idle] = 0
        divisor[idle] = -np.inf
        if not keep_target:
            tau[idle] = 0


def stopped(numbers: Tensor, active: Tensor) -> Tensor:
    """Coefficients [6, P, 1] with which only agents that are `active` [P, 1] move."""
    c = Coefficients(*numbers.unbind(0))
    zero, none = torch.zeros_like(c.first), torch.full_like(c.divisor, -torch.inf)
    first, second, tau = (torch.where(active, own, zero) for own in (c.first, c.second, c.tau))
    divisor = torch.where(active, c.divisor, none)
    return torch.stack((first, second, divisor, c.eps, tau, c.clip))


def clip_(gradient: Tensor, limit: Tensor, norm: Tensor | None = None) -> Tensor:
    """Scale each agent's gradient [P, D] down to its limit, as clip_grad_norm_ does.

    `norm` [P, 1] is given where it is that of more than this gradient.
    """
    norm = norm_of(gradient) if norm is None else norm
    return gradient.mul_((limit / (norm + 1e-6)).clamp_(max=1.0))


def norm_of(gradient: Tensor) -> Tensor:
    """Of each agent's gradient, [P, 1]."""
    norm: Tensor = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    return norm


def adam_(
    theta: Tensor,
    m: Tensor,
    v: Tensor,
    gradient: Tensor,
    c: Coefficients,
    scratch: Tensor,
    limits: Tensor | None = None,
) -> None:
    """Move weights and moments [P, D] by one Adam step, in place; overwrites gradient and scratch.

    No temporary matrix is made: fresh memory costs as much as the arithmetic.
    """
    m.lerp_(gradient, c.first)
    squared = gradient.square_()
    if limits is None:
        v.lerp_(squared, c.second)
        size = torch.clamp_min(v, TINY, out=scratch)
    else:
        v.lerp_(squared.copysign_(v), c.second)
        torch.minimum(v, torch.addcmul(limits, m, m, value=-1, out=scratch), out=v)
        size = torch.abs(v, out=scratch).clamp_min_(TINY)
    # The root of a zero takes six times as long as another's, and padding is all zeros: so TINY.
    theta.addcdiv_(m, size.sqrt_().add_(c.eps).mul_(c.divisor))


def limits_of(v: Tensor) -> Tensor:
    """What `adam_` wants to know where some weights are marked: how near zero v [P, D] may come.

    A marked weight's second moment is kept at its first one squared or more, so that it never moves
    by more than a learning rate. That holds however its gradient grows: what a new unit reads with
    has no gradient at first, as its outgoing weights are zero, and then one that grows with them
    for hundreds of updates. Once the second moment has caught up, it is plain Adam. Weights that
    have no mark get plain Adam's bits.
    """
    return torch.full_like(v, HUGE).masked_fill(v < 0, NEW)
