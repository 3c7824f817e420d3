"""Changing an agent's network: units, channels and layers, gained and lost.

Pure functions from an architecture and an agent's state to new ones. What is added leaves the
agent's function as it was: exactly, but for units under LayerNorm, as they join its mean and
variance. What is removed does not, and is chosen to matter little.

Weights that stay keep Adam's moments. New ones are marked as such: see optimizer.py.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from evorl.evolution.units import (
    DORMANT,
    LIVELY,
    Axis,
    UnitAxes,
    all_units,
    dormant_units,
    fill,
    learning_shares,
    put,
    resized,
    sum_of_squares,
    take,
)
from evorl.genome import Architecture
from evorl.networks import NetworkSpec, Parameters
from evorl.population import NEW, AgentState

NOISE = 0.3  # of a new unit's weights, relative to the root mean square of its donor's
LARGEST_STRETCH = 2.0  # of new units under LayerNorm, if their donors are all alike


class Changed(NamedTuple):
    """A network after a change."""

    architecture: Architecture
    state: AgentState


def add_units(
    architecture: Architecture,
    state: AgentState,
    layer: UnitAxes,
    count: int,
    random: np.random.Generator,
) -> Changed:
    """More units or channels: copies of lively ones, with noise, that nothing listens to yet.

    Under LayerNorm they have no noise, come from all units that are not dormant, and are moved to
    keep its mean and variance: see _same_statistics. Doubling a layer then changes nothing, if
    none is dormant. Only further copies of a unit have noise: they would learn the same for ever.
    """
    new = torch.arange(layer.size, layer.size + count)
    normalised = architecture.layer_norm and layer.kind == "units"
    donors = _donors(state, layer, count, DORMANT if normalised else LIVELY, random)
    index = torch.cat((torch.arange(layer.size), donors))
    axes = layer.incoming + layer.outgoing
    noise = _noise(state.online, layer, donors, random)
    if normalised:
        noise = {axis: _of_further_copies(values, axis, donors) for axis, values in noise.items()}

    def grown(parameters: Parameters) -> Parameters:
        found = take(parameters, layer.incoming, index)
        for axis, values in noise.items():
            places = new.to(values.device)
            found[axis.segment] = found[axis.segment].index_add(axis.axis, places, values)
        if normalised and count > 1:  # one alone would become the mean of all, and say nothing
            for k in layer.layers:
                found |= _same_statistics(found, f"hidden{k}", layer.size)
        return fill(take(found, layer.outgoing, index), layer.outgoing, new, 0)

    online, target = grown(state.online), grown(state.target)
    m, v = (take(moment, axes, index) for moment in (state.m, state.v))
    m, v = fill(m, axes, new, 0), fill(v, axes, new, NEW)
    changed = resized(architecture, layer, layer.size + count)
    return Changed(changed, AgentState(online, target, m, v, state.steps))


def remove_units(
    architecture: Architecture, state: AgentState, layer: UnitAxes, count: int
) -> Changed:
    """Fewer units or channels: without those whose outgoing weights are smallest."""
    heard = sum_of_squares(state.online, layer.outgoing, layer.size)
    kept = heard.argsort(descending=True, stable=True)[: layer.size - count].sort().values
    axes = layer.incoming + layer.outgoing
    online, target, m, v = (take(part, axes, kept) for part in state[:4])
    changed = resized(architecture, layer, layer.size - count)
    return Changed(changed, AgentState(online, target, m, v, state.steps))


def add_layer(
    architecture: Architecture, state: AgentState, after: int, random: np.random.Generator
) -> Changed:
    """A gated layer behind a hidden layer, its gate shut: what it computes does not enter yet.

    Each unit's weights sum to zero, so that inputs that are all positive, as ReLU gives them, leave
    few units dead.
    """
    k, width = after + 1, architecture.hidden[after]
    drawn = random.normal(0, np.sqrt(2 / width), (width, width))
    weight = torch.from_numpy(drawn - drawn.mean(0))
    fresh = {"weight": weight, "bias": torch.zeros(width)}
    if architecture.layer_norm:
        fresh |= {"scale": torch.ones(width), "shift": torch.zeros(width)}
    fresh["gate"] = torch.zeros(1)

    def grown(parameters: Parameters, number: float | None = None) -> Parameters:
        found = _renumbered(parameters, k, 1)
        for part, values in fresh.items():
            own = values if number is None else torch.full_like(values, number)
            found[f"hidden{k}.{part}"] = own.to(parameters["head.bias"])
        return found

    online, target = grown(state.online), grown(state.target)
    m, v = grown(state.m, 0), grown(state.v, NEW)
    changed = dataclasses.replace(
        architecture,
        hidden=(*architecture.hidden[:k], width, *architecture.hidden[k:]),
        gated=(*architecture.gated[:k], True, *architecture.gated[k:]),
    )
    return Changed(changed, AgentState(online, target, m, v, state.steps))


def remove_layer(architecture: Architecture, state: AgentState) -> Changed:
    """One layer less: the gated one whose gate is most nearly shut, else the last.

    Without the last layer, the head reads the one before with the weights it has, as far as they
    go, and with zeros beyond.
    """
    shut = {
        k: float(state.online[f"hidden{k}.gate"].abs())
        for k in range(architecture.depth)
        if architecture.gated[k]
    }
    k = min(shut, key=lambda layer: shut[layer]) if shut else architecture.depth - 1
    before, width = architecture.hidden[k - 1], architecture.hidden[k]
    head = (Axis("head.weight", 1),)
    beyond = torch.arange(min(width, before), before)
    index = torch.cat((torch.arange(min(width, before)), torch.zeros_like(beyond)))

    def shrunk(parameters: Parameters, number: float) -> Parameters:
        others = {n: x for n, x in parameters.items() if n.split(".")[0] != f"hidden{k}"}
        found = _renumbered(others, k + 1, -1)
        return found if shut else fill(take(found, head, index), head, beyond, number)

    parts = zip(state[:4], (0, 0, 0, NEW), strict=True)
    online, target, m, v = (shrunk(part, number) for part, number in parts)
    changed = dataclasses.replace(
        architecture,
        hidden=architecture.hidden[:k] + architecture.hidden[k + 1 :],
        gated=architecture.gated[:k] + architecture.gated[k + 1 :],
    )
    return Changed(changed, AgentState(online, target, m, v, state.steps))


def reset_dormant(
    spec: NetworkSpec, architecture: Architecture, state: AgentState, random: np.random.Generator
) -> AgentState:
    """Units that learn nothing begin again: a newborn's weights, and nothing listens to them yet.

    Not those that share their place with a gated layer's: what that adds would be lost with them.
    """
    found = [
        (layer, torch.nonzero(dormant_units(state, layer)).view(-1))
        for layer in all_units(spec, architecture)
        if len(layer.layers) == 1
    ]
    for layer, units in found:
        if len(units):
            state = _reset(state, layer, units, random)
    return state


def _reset(
    state: AgentState, layer: UnitAxes, units: Tensor, random: np.random.Generator
) -> AgentState:
    online, target, m, v, steps = state
    weight = online[layer.incoming[0].segment]
    bound = 1 / np.sqrt(weight.numel() / layer.size)  # of fan in, as in initialization.py
    for axis in layer.incoming:
        shape = list(online[axis.segment].shape)
        shape[axis.axis] = len(units)
        part = axis.segment.split(".")[1]
        if part in ("weight", "bias"):
            values = torch.from_numpy(random.uniform(-bound, bound, shape))
        else:
            values = torch.full(shape, 1.0 if part == "scale" else 0.0)
        online, target = (put(weights, axis, units, values) for weights in (online, target))
    online, target = (fill(weights, layer.outgoing, units, 0) for weights in (online, target))
    axes = layer.incoming + layer.outgoing
    return AgentState(online, target, fill(m, axes, units, 0), fill(v, axes, units, NEW), steps)


def _donors(
    state: AgentState, layer: UnitAxes, count: int, least: float, random: np.random.Generator
) -> Tensor:
    """Units to copy [count]: of those that learn so much, each about as often as any other."""
    learning = (learning_shares(state, layer) >= least).all(0)
    living = np.flatnonzero(learning.numpy()) if learning.sum() > 1 else np.arange(layer.size)
    rounds, rest = divmod(count, len(living))
    chosen = random.choice(living, rest, replace=False)
    return torch.from_numpy(np.concatenate((np.tile(living, rounds), chosen)))


def _noise(
    online: Parameters, layer: UnitAxes, donors: Tensor, random: np.random.Generator
) -> dict[Axis, Tensor]:
    """What is added to the weights that new units read with; the same for both networks."""
    found = {}
    for axis in layer.incoming:
        if axis.segment.endswith("weight"):
            weight = take(online, (axis,), donors)[axis.segment]
            within = [d for d in range(weight.dim()) if d != axis.axis]
            size = NOISE * weight.square().mean(within, keepdim=True).sqrt()
            found[axis] = size * torch.from_numpy(random.standard_normal(weight.shape)).to(weight)
    return found


def _of_further_copies(noise: Tensor, axis: Axis, donors: Tensor) -> Tensor:
    """Noise for those new units only of whose donor there was a copy before."""
    chosen = donors.tolist()
    again = torch.tensor([donor in chosen[:i] for i, donor in enumerate(chosen)])
    shape = [1] * noise.dim()
    shape[axis.axis] = len(chosen)
    return noise * again.to(noise).view(shape)


def _same_statistics(parameters: Parameters, layer: str, old: int) -> Parameters:
    """A layer's weights with those of its new units moved to keep LayerNorm's mean and variance.

    The mean over new units becomes that over old ones, for any input. The variance does so on
    average over inputs.
    """
    both = torch.cat((parameters[f"{layer}.weight"], parameters[f"{layer}.bias"].unsqueeze(0)))
    own, new = both[:, :old], both[:, old:]
    mean = own.mean(1, keepdim=True)
    apart = new - new.mean(1, keepdim=True)
    spread, wanted = apart.square().mean(), (own - mean).square().mean()
    stretch = (wanted / spread.clamp(min=1e-30)).sqrt().clamp(max=LARGEST_STRETCH)
    both = torch.cat((own, mean + stretch * apart), 1)
    return {f"{layer}.weight": both[:-1].clone(), f"{layer}.bias": both[-1].clone()}


def _renumbered(parameters: Parameters, start: int, by: int) -> Parameters:
    """Segments of hidden layers from `start` on under another number."""
    found = {}
    for name, value in parameters.items():
        layer, part = name.split(".")
        number = int(layer.removeprefix("hidden")) if layer.startswith("hidden") else -1
        found[f"hidden{number + by}.{part}" if number >= start else name] = value
    return found
