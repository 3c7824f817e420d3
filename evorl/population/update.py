"""One update of all agents of a group, and a round of them, in one of three ways.

Legend: U updates of a round, K networks, P agents, B batch, D row length, n reward steps.

eager           `eager_round` moves the group's matrices in place
eager averaged  the same, with gradients averaged over the ranks that train the same agents
compiled        `make_functional_update` moves copies of them, in a loop within one program
                (compiled.py)

All run the algorithm's gradient and `step_`, the same functions of matrices, batch and
coefficients.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evorl.algorithms import Algorithm, Hyperparameters, Loss
from evorl.errors import ConfigError
from evorl.experience import Batch, RolloutBatch, Samples, UnrollBatch
from evorl.networks import NORMALIZER, Layout, Masks, Names, Networks, Weights, bind, scale_of
from evorl.population.group import Group, Matrices
from evorl.population.optimizer import (
    Coefficients,
    RoundCoefficients,
    adam_,
    clip_,
    limits_of,
    norm_of,
    stopped,
)

AnySamples = Samples | RolloutBatch | UnrollBatch
# named, as a traced function can have no subscript
Views = Mapping[str, Weights]  # of all networks
Tensors = tuple[Tensor, ...]
LossAndRest = tuple[Tensor, Tensors]
Bound = tuple[dict[str, Weights], dict[str, Weights], Networks]  # online, statistics, targets


class Outcome(NamedTuple):
    """What a round of updates showed."""

    priority: Tensor  # [U, P, B]
    loss: Tensor  # [P] summed over the updates
    made: Tensor | None = None  # [P] updates, where `loss` may stop them


class UpdateResult(NamedTuple):
    """What one update's batch showed."""

    gradient: Tensor  # [P, D]
    priority: Tensor  # [P, B]
    loss: Tensor | None  # [P]; None where it follows from the priorities (a closed form)
    stop: Tensor | None = None  # [P]


def updates_of(
    group: Group, samples: AnySamples, numbers: Tensor
) -> Iterator[tuple[Any, tuple[Tensor, ...]]]:
    """Batch and each network's coefficients [6, P, 1] of every update of a round."""
    round_ = samples.batches(group.hyperparameters["gamma"], scale_of(group.normalizer))
    kind: Any = type(round_)
    batches = map(kind, *(field.unbind(0) for field in round_))
    each = zip(*(own.unbind(0) for own in numbers.unbind(1)), strict=True)
    return zip(batches, each, strict=True)


def compute_gradient(
    group: Group, algorithm: Algorithm, batch: Any, idle: Names = frozenset()
) -> UpdateResult:
    """A batch's gradient, written into the group's own; zeros for networks that are `idle`."""
    if algorithm.has_closed_form():
        found = algorithm.gradients(group.online, group.target, batch, group.hyperparameters)
        return UpdateResult(group.layout.join(found.segments, group.gradient), found.priority, None)
    with torch.enable_grad():
        networks = group.differentiable.resting(idle)
        lost = _per_agent(algorithm.loss(networks, group.target, batch, group.hyperparameters))
        leaves = [leaf for own in group.leaves.values() for leaf in own.values()]
        values = torch.autograd.grad(lost.loss.sum(), leaves, allow_unused=True)
    gradient = group.layout.join(_by_name(group.leaves, values), group.gradient)
    return UpdateResult(gradient, _priority(lost.priority, batch), lost.loss.detach(), lost.stop)


def find_errors(group: Group, algorithm: Algorithm, samples: Samples) -> Tensor:
    """The errors [P, B] by which samples [P, B, ...] are drawn, as an update would find them."""
    one = Samples(*(field.unsqueeze(0) for field in samples))
    round_ = one.batches(group.hyperparameters["gamma"], scale_of(group.normalizer))
    batch = Batch(*(field.squeeze(0) for field in round_))
    networks = group.online.resting(frozenset(group.networks))
    lost = algorithm.loss(networks, group.target, batch, group.hyperparameters)
    return _priority(lost.priority, batch)


def step_(
    numbers: Tensor,
    matrices: Matrices,
    gradient: Tensor,
    scratch: Tensor,
    limits: Tensor | None,
    norm: Tensor | None = None,
) -> None:
    """Clip, Adam and target update for one network, in place; with coefficients [6, P, 1]."""
    c = Coefficients(*numbers.unbind(0))
    clip_(gradient, c.clip, norm)
    adam_(matrices.theta, matrices.m, matrices.v, gradient, c, scratch, limits)
    matrices.target.lerp_(matrices.theta, c.tau)


def move_target_(matrices: Matrices, numbers: Tensor) -> None:
    """Move the target of a network that rests: nothing else of it moves."""
    matrices.target.lerp_(matrices.theta, Coefficients(*numbers.unbind(0)).tau)


def eager_round(
    groups: Sequence[Group],
    algorithm: Algorithm,
    parts: Sequence[AnySamples],
    steps: Sequence[RoundCoefficients],
    average: Callable[[Tensor], None] | None = None,
) -> list[Outcome]:
    """Move every row by the updates of a round, in place.

    All groups update by update: gradients may be averaged over ranks, in one go.
    """
    each = zip(groups, parts, steps, strict=True)
    rounds = [list(updates_of(group, own, at.coefficients)) for group, own, at in each]
    found: list[list[UpdateResult]] = [[] for _ in groups]
    active = [torch.ones_like(group.theta[:, :1], dtype=torch.bool) for group in groups]
    made = [own.new_zeros(len(own), dtype=torch.int64) for own in active]
    for u in range(max(map(len, rounds), default=0)):
        due = [i for i, own in enumerate(rounds) if u < len(own)]
        for i in due:
            batch, idle = rounds[i][u][0], steps[i].idle[u]
            found[i].append(compute_gradient(groups[i], algorithm, batch, idle))
        if average is not None:
            _average([groups[i].gradient for i in due], average)
        for i in due:
            numbers_of = rounds[i][u][1]
            if (stop := found[i][-1].stop) is not None:
                if average is not None:  # one that stops on a rank stops on all that train it
                    _average([stop := stop.to(groups[i].theta)], average)
                active[i] &= stop.unsqueeze(1) == 0
                groups[i].gradient.masked_fill_(~active[i], 0)  # it may not be finite
                found[i][-1] = without_stopped(found[i][-1], active[i])
                numbers_of = tuple(stopped(own, active[i]) for own in numbers_of)
            made[i] += active[i].squeeze(1)
            _step_networks(groups[i], algorithm, numbers_of, steps[i].idle[u])
    outcomes = [
        outcome_of(algorithm, own, samples.weight)
        for own, samples in zip(found, parts, strict=True)
    ]
    if not algorithm.may_stop:
        return outcomes
    return [own._replace(made=count) for own, count in zip(outcomes, made, strict=True)]


def _step_networks(
    group: Group, algorithm: Algorithm, numbers_of: Sequence[Tensor], idle: Names
) -> None:
    """Move every network of a group by its gradient; of those that are idle, the target."""
    norm = norm_of(group.gradient) if algorithm.clips_together else None
    for own, (name, columns) in zip(numbers_of, group.columns.items(), strict=True):
        if name in idle:
            move_target_(columns[0], own)
        else:
            step_(own, *columns, norm)


def compute_gradients(
    groups: Sequence[Group], algorithm: Algorithm, parts: Sequence[AnySamples]
) -> list[UpdateResult]:
    """The gradients of a round's only update, with its losses; nothing moves."""
    found = []
    for group, samples in zip(groups, parts, strict=True):
        if not len(samples.weight):  # all of its agents are dead
            none = group.theta.new_zeros(group.size)
            found.append(UpdateResult(group.gradient.zero_(), none, none))
            continue
        round_ = samples.batches(group.hyperparameters["gamma"], scale_of(group.normalizer))
        kind: Any = type(round_)
        own = compute_gradient(group, algorithm, kind(*(field[0] for field in round_)))
        if own.loss is None:
            own = own._replace(loss=algorithm.loss_of(own.priority, samples.weight[0]))
        found.append(own)
    return found


def apply_gradients(
    groups: Sequence[Group],
    algorithm: Algorithm,
    steps: Sequence[RoundCoefficients],
    average: Callable[[Tensor], None] | None = None,
) -> None:
    """Move every row by the gradient that is in its group, in place; steps are of one update."""
    due = [i for i, own in enumerate(steps) if len(own.coefficients)]
    if average is not None:
        _average([groups[i].gradient for i in due], average)
    for i in due:
        numbers, idle = steps[i].coefficients[0], steps[i].idle[0]
        _step_networks(groups[i], algorithm, numbers.unbind(0), idle)


def without_stopped(found: UpdateResult, active: Tensor) -> UpdateResult:
    """Without the losses of agents that have stopped; active [P, 1]."""
    assert found.loss is not None  # only a loss can stop them
    return found._replace(loss=torch.where(active.select(1, 0), found.loss, 0))


def _average(tensors: Sequence[Tensor], average: Callable[[Tensor], None]) -> None:
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    average(flat)
    sizes = [tensor.numel() for tensor in tensors]
    for tensor, part in zip(tensors, torch.split(flat, sizes), strict=True):
        tensor.copy_(part.view_as(tensor))


def outcome_of(algorithm: Algorithm, found: Sequence[UpdateResult], weight: Tensor) -> Outcome:
    """Priorities of all updates of a round, and the losses added up."""
    if not found:
        return Outcome(torch.zeros_like(weight), weight.new_zeros(weight.shape[1]))
    priorities = torch.stack([own.priority for own in found])
    losses = [own.loss for own in found if own.loss is not None]
    if losses:  # in order: how one tensor is summed depends on how many agents there are
        return Outcome(priorities, reduce(torch.add, losses))
    return Outcome(priorities, algorithm.loss_of(priorities, weight).sum(0))


UpdateFunction = Callable[
    [Matrices, Mapping[str, Masks], Any, Tensor, Tensor, Tensor],
    tuple[UpdateResult, Matrices, Tensor],
]


def make_functional_update(
    group: Group, algorithm: Algorithm, delayed: Names = frozenset()
) -> UpdateFunction:
    """Make a function of plain tensors that is an update, for torch.compile; it changes none.

    What is `delayed` is left out of an update that moves none of it, by a branch of the program.
    """
    layout, networks, names = group.layout, group.networks, group.names
    closed = algorithm.has_closed_form()
    places = [k for k, name in enumerate(layout.parts) if name in delayed]

    def update(
        before: Matrices,
        masks: Mapping[str, Masks],
        batch: Any,
        values: Tensor,
        numbers: Tensor,
        active: Tensor,
    ) -> tuple[UpdateResult, Matrices, Tensor]:
        hp = Hyperparameters(names, values)
        widths = widths_of(masks)

        def weights() -> Bound:
            online, old = (layout.views_of(each, widths) for each in before[:2])
            statistics = {name: online.pop(name) for name in layout.statistics}
            return online, statistics, bind(networks, {**old, **statistics}, masks)

        def differentiated(idle: Names) -> Tensors:
            # here: a branch must not be given two views of a matrix
            online, statistics, targets = weights()

            def total(views: Views) -> LossAndRest:
                bound = bind(networks, {**views, **statistics}, masks).resting(idle)
                lost = _per_agent(algorithm.loss(bound, targets, batch, hp))
                stop = () if lost.stop is None else (lost.stop,)  # there can be no None here
                return lost.loss.sum(), (_priority(lost.priority, batch), lost.loss, *stop)

            segments, rest = torch.func.grad(total, has_aux=True)(online)
            return layout.join(segments), *rest

        def everything() -> Tensors:
            return differentiated(frozenset())

        def without() -> Tensors:
            return differentiated(delayed)

        if closed:
            online, statistics, targets = weights()
            own = bind(networks, {**online, **statistics}, masks)
            by_hand = algorithm.gradients(own, targets, batch, hp)
            found = UpdateResult(layout.join(by_hand.segments), by_hand.priority, None)
        elif places:
            due = torch.stack([numbers.select(0, k).select(0, 0).any() for k in places]).any()
            found = UpdateResult(*torch.cond(due, everything, without))
        else:
            found = UpdateResult(*everything())
        if found.stop is not None:
            active = active & ~found.stop.unsqueeze(1)
            numbers = torch.stack([stopped(own, active) for own in numbers.unbind(0)])
            found = without_stopped(found, active)
            found = found._replace(gradient=torch.where(active, found.gradient, 0))
        norm = norm_of(found.gradient) if algorithm.clips_together else None
        return found, _moved(layout, widths, before, found.gradient, numbers, norm), active

    return update


def widths_of(masks: Mapping[str, Masks]) -> dict[str, list[int]]:
    """Of the layers of each network, as symbols where it is compiled."""
    return {name: [mask.units.shape[2] for mask in own] for name, own in masks.items()}


def reward_scale(layout: Layout, theta: Tensor, masks: Mapping[str, Masks]) -> Tensor | None:
    """What a group's rewards are multiplied by, [P], from its matrix; for torch.compile."""
    if not layout.statistics:
        return None
    return scale_of(layout.views_of(theta, widths_of(masks))[NORMALIZER])


def _moved(
    layout: Layout,
    widths: Mapping[str, Sequence[int]],
    before: Matrices,
    gradient: Tensor,
    numbers: Tensor,
    norm: Tensor | None,
) -> Matrices:
    """The matrices after a step. They are copied after all else has read them: a copy that is
    written to at once costs nothing.
    """
    slices = layout.slices_of(widths)
    if len(slices) == 1:
        after = Matrices(*(matrix.clone() for matrix in before))
        # limits always: one program, whether or not some weights are marked
        scratch, limits = torch.empty_like(gradient), limits_of(after.v)
        step_(numbers.select(0, 0), after, gradient, scratch, limits, norm)
        return after
    parts = []
    for k, (name, own) in enumerate(slices.items()):
        part = Matrices(*(matrix[:, own].clone() for matrix in before))
        if name in layout.statistics:  # behind all networks, and as they were
            parts.append(part)
            continue
        change = gradient[:, own].clone()
        scratch, limits = torch.empty_like(change), limits_of(part.v)
        step_(numbers.select(0, k), part, change, scratch, limits, norm)
        parts.append(part)
    return Matrices(*(torch.cat(columns, 1) for columns in zip(*parts, strict=True)))


def _by_name(leaves: Mapping[str, Weights], values: Sequence[Tensor | None]) -> dict[str, Weights]:
    """Gradients in the order of the leaves, by network and segment; zeros for those unused."""
    each = iter(values)
    found: dict[str, Weights] = {}
    for name, own in leaves.items():
        found[name] = {}
        for segment, leaf in own.items():
            value = next(each)
            found[name][segment] = torch.zeros_like(leaf) if value is None else value
    return found


def _per_agent(found: Loss) -> Loss:
    """Agents must not share a loss: a mean over all of them would shrink everybody's gradient."""
    if found.loss.ndim != 1:
        rule = "one number per agent, [P], as its samples' weights add them up"
        raise ConfigError(f"algorithm.name: loss must be {rule}; got {found.loss.ndim} dimensions")
    return found


def _priority(priority: Tensor | None, batch: Any) -> Tensor:
    """Without any, all samples of a batch count alike."""
    return torch.zeros_like(batch.weight) if priority is None else priority
