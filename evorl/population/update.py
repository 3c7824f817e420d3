"""A round: the updates that a group makes one after another, on batches that were drawn together.

Legend: U updates of a round, P agents, B batch, n reward steps.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

from evorl.algorithms.base import Algorithm, Batch
from evorl.experience.transitions import Samples
from evorl.networks.masks import Live
from evorl.networks.stacked import Network
from evorl.population.group import Group, Matrices, functional_update

Outcome = tuple[Tensor, Tensor]  # temporal-difference errors [U, P, B], summed losses [P]
RoundFunction = Callable[[Matrices, Live, Samples, Tensor, Tensor], Outcome]


def fold(samples: Samples, gamma: Tensor) -> Batch:
    """Fold each agent's own discount gamma [P] into samples [U, P, B, ...]: n steps become one."""
    bootstrap = samples.bootstrap.to(gamma.dtype)
    factor = gamma.view(1, -1, 1)
    if samples.rewards.shape[-1] == 1:
        # a sum of one: squeeze would make a program of its own for one agent
        reward, discount = samples.rewards.sum(-1), factor * bootstrap
    else:
        powers = factor.unsqueeze(-1) ** torch.arange(
            samples.rewards.shape[-1], device=gamma.device
        )
        reward = (samples.rewards * powers).sum(-1)
        discount = factor**bootstrap * (bootstrap > 0)
    return Batch(samples.obs, samples.action, reward, samples.next_obs, discount, samples.weight)


def updates_of(samples: Samples, gamma: Tensor, numbers: Tensor) -> Iterator[tuple[Batch, Tensor]]:
    """Batch and coefficients [6, P, 1] of every update, from those of the round [U, 6, P, 1]."""
    batches = map(Batch, *(field.unbind(0) for field in fold(samples, gamma)))
    return zip(batches, numbers.unbind(0), strict=True)


def eager_round(group: Group, algorithm: Algorithm, samples: Samples, numbers: Tensor) -> Outcome:
    """Move every row of the group by the updates of a round, in place."""
    updates = updates_of(samples, group.gamma, numbers)
    errors = torch.stack([group.update(algorithm, batch, own) for batch, own in updates])
    return errors, algorithm.loss(errors, samples.weight).sum(0)


def functional_round(network: Network, algorithm: Algorithm) -> RoundFunction:
    """The same as a function of plain tensors, for torch.compile: one program, however long."""
    update = functional_update(network, algorithm)

    def compiled_round(
        matrices: Matrices, live: Live, samples: Samples, gamma: Tensor, numbers: Tensor
    ) -> Outcome:
        batches, count = fold(samples, gamma), len(numbers)

        def goes_on(u: Tensor, *_: Tensor) -> Tensor:
            return u < count

        def body(u: Tensor, errors: Tensor, *before: Tensor) -> tuple[Tensor, ...]:
            place = int(u.item())
            torch._check(place >= 0)  # type: ignore[no-untyped-call]
            torch._check(place < count)  # type: ignore[no-untyped-call]
            batch = Batch(*(field.select(0, place) for field in batches))
            found, after = update(before, live, batch, numbers.select(0, place))
            return u + 1, torch.select_scatter(errors, found, 0, place), *after

        first = torch.zeros((), dtype=torch.int64, device=numbers.device)
        start = (first, torch.zeros_like(samples.weight), *(matrix.clone() for matrix in matrices))
        _, errors, *moved = while_loop(goes_on, body, start)  # type: ignore[no-untyped-call]
        for matrix, new in zip(matrices, moved, strict=True):
            matrix.copy_(new)
        return errors, algorithm.loss(errors, samples.weight).sum(0)

    return compiled_round
