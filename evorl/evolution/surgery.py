"""Changing an agent's network: units, channels and layers, gained and lost.

Pure functions from an architecture and an agent's state to new ones. What is added leaves the
agent's function as it was: exactly, but for units under LayerNorm, as they join its mean and
variance. What is removed does not, and is chosen to matter little. Weights that stay keep Adam's
moments. New ones are marked as such: see optimizer.py.

Units of a hidden layer and channels of a convolution are handled alike. A gated layer adds to its
input, so it is as wide as the layer before: such a run of layers gains and loses units together.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from evorl.genome import Architecture
from evorl.networks import NetworkSpec, Parameters, shapes
from evorl.population import NEW, AgentState

NOISE = 0.3  # of a new unit's weights, relative to the root mean square of its donor's
LARGEST_STRETCH = 2.0  # of new units under LayerNorm, if their donors are all alike
MEMORY = 1000  # updates that Adam's second moments remember, about

# Second moments of a unit, as a share of its layer's mean. Below the first it learns nothing: its
# gradients are a thousandth of others'. One that falls silent gets there in 14,000 updates, and a
# new one that works is far above after ten. Above the second it is lively: nearly all ReLU units
# that are silent on a whole batch are below.
DORMANT, LIVELY = 1e-6, 0.1


class Axis(NamedTuple):
    """An axis of a segment along which units lie one after another."""

    segment: str
    axis: int
    each: int = 1  # places of one unit: the last convolution's channel is height × width features
    first: int = 0  # places before those of the first unit


Axes = tuple[Axis, ...]


class UnitAxes(NamedTuple):
    """All units of a run of hidden layers, or all channels of a convolution."""

    kind: str  # units or channels
    layers: tuple[int, ...]
    size: int
    incoming: Axes
    outgoing: Axes


def hidden_units(architecture: Architecture, layer: int) -> UnitAxes:
    """The units of a hidden layer, and of the gated ones that are tied to it."""
    first = last = layer
    while architecture.gated[first]:
        first -= 1
    while last + 1 < architecture.depth and architecture.gated[last + 1]:
        last += 1
    run = tuple(range(first, last + 1))
    incoming = []
    for k in run:
        incoming += [Axis(f"hidden{k}.weight", 1), Axis(f"hidden{k}.bias", 0)]
        if architecture.layer_norm:
            incoming += [Axis(f"hidden{k}.scale", 0), Axis(f"hidden{k}.shift", 0)]
    outgoing = [Axis(f"hidden{k}.weight", 0) for k in run[1:]]
    ends = last + 1 == architecture.depth
    outgoing.append(Axis("head.weight", 1) if ends else Axis(f"hidden{last + 1}.weight", 0))
    size = architecture.hidden[layer]
    return UnitAxes("units", run, size, tuple(incoming), tuple(outgoing))


def channel_units(spec: NetworkSpec, architecture: Architecture, layer: int) -> UnitAxes:
    """The channels of a convolution."""
    size = architecture.channels[layer]
    incoming = Axis(f"conv{layer}.weight", 0), Axis(f"conv{layer}.bias", 0)
    outgoing = Axis(f"conv{layer + 1}.weight", 1)
    if layer + 1 == len(architecture.channels):
        features = shapes(spec, architecture)["hidden0.weight"][0] - spec.extra
        outgoing = Axis("hidden0.weight", 0, features // size, spec.extra)
    return UnitAxes("channels", (layer,), size, incoming, (outgoing,))


def all_units(spec: NetworkSpec, architecture: Architecture) -> list[UnitAxes]:
    """One for each convolution and each hidden layer; layers that are tied give the same."""
    channels = range(len(architecture.channels) if spec.image is not None else 0)
    found = [channel_units(spec, architecture, k) for k in channels]
    return found + [hidden_units(architecture, k) for k in range(architecture.depth)]


def _resized(architecture: Architecture, layer: UnitAxes, size: int) -> Architecture:
    """The architecture with this many of these units."""
    name = "hidden" if layer.kind == "units" else "channels"
    widths = enumerate(getattr(architecture, name))
    new: Any = {name: tuple(size if k in layer.layers else width for k, width in widths)}
    return dataclasses.replace(architecture, **new)


def _take(parameters: Parameters, axes: Axes, units: Tensor) -> Parameters:
    """These units in this order (some may come twice), along these axes; the rest as it is."""
    found = dict(parameters)
    for axis in axes:
        value = found[axis.segment]
        places = torch.cat((torch.arange(axis.first), _places(axis, units)))
        found[axis.segment] = value.index_select(axis.axis, places.to(value.device))
    return found


def _fill(parameters: Parameters, axes: Axes, units: Tensor, number: float) -> Parameters:
    """A number in all places of these units along these axes; the rest as it is."""
    found = dict(parameters)
    for axis in axes:
        value = found[axis.segment]
        places = _places(axis, units).to(value.device)
        found[axis.segment] = value.index_fill(axis.axis, places, number)
    return found


def _places(axis: Axis, units: Tensor) -> Tensor:
    within = torch.arange(axis.each) + axis.first
    return (units.view(-1, 1) * axis.each + within).view(-1)


def _by_unit(parameters: Parameters, axis: Axis, size: int) -> Tensor:
    """A segment's numbers by unit, [size, ...]."""
    return parameters[axis.segment].movedim(axis.axis, 0)[axis.first :].reshape(size, -1)


def learning_shares(state: AgentState, layer: UnitAxes) -> Tensor:
    """How much each unit learns, [layers, size]: second moments relative to its layer's mean.

    They are those of the weights it reads with. Under LayerNorm a dead unit's weights still have
    gradients, through the mean and the variance of the others: there its scale and shift count.
    """
    shares = []
    each = len(layer.incoming) // len(layer.layers)
    for k in range(len(layer.layers)):
        own = layer.incoming[k * each : (k + 1) * each][-2:]
        moments = torch.cat([_by_unit(state.v, axis, layer.size) for axis in own], 1)
        learned = moments.abs().double().sum(1).cpu()  # below zero for new ones: see optimizer.py
        nothing = not learned.any()  # a newborn, or a gate that is shut
        shares.append(torch.ones_like(learned) if nothing else learned / learned.mean())
    return torch.stack(shares)


def dormant_units(state: AgentState, layer: UnitAxes) -> Tensor:
    """Which units [size] learn nothing; of layers that are tied, the first one decides."""
    return (learning_shares(state, layer)[0] < DORMANT) & (state.updates >= MEMORY)


class ChangedAgent(NamedTuple):
    """A network after a change."""

    architecture: Architecture
    state: AgentState


def add_units(
    architecture: Architecture, state: AgentState, layer: UnitAxes, count: int, random: Generator
) -> ChangedAgent:
    """More units or channels: copies of lively ones, with noise, that nothing listens to yet.

    Under LayerNorm they have no noise, come from all units that are not dormant, and are moved to
    keep its mean and variance: see _same_statistics. Doubling a layer then changes nothing, if
    none is dormant. Only further copies of a unit have noise: they would learn the same for ever.
    """
    new = torch.arange(layer.size, layer.size + count)
    normalised = architecture.layer_norm and layer.kind == "units"
    donors = _donors(state, layer, count, DORMANT if normalised else LIVELY, random)
    index = torch.cat((torch.arange(layer.size), donors))
    axes, chosen = layer.incoming + layer.outgoing, donors.tolist()
    noisy = [not normalised or donor in chosen[:i] for i, donor in enumerate(chosen)]
    noise = _noise(state.online, layer, donors, torch.tensor(noisy), random)

    def grown(parameters: Parameters) -> Parameters:
        found = _take(parameters, layer.incoming, index)
        for axis, values in noise.items():
            places = new.to(values.device)
            found[axis.segment] = found[axis.segment].index_add(axis.axis, places, values)
        if normalised and count > 1:  # one alone would become the mean of all, and say nothing
            for k in layer.layers:
                found |= _same_statistics(found, f"hidden{k}", layer.size)
        return _fill(_take(found, layer.outgoing, index), layer.outgoing, new, 0)

    online, target = grown(state.online), grown(state.target)
    m, v = (_take(moment, axes, index) for moment in (state.m, state.v))
    m, v = _fill(m, axes, new, 0), _fill(v, axes, new, NEW)
    changed = _resized(architecture, layer, layer.size + count)
    return ChangedAgent(changed, AgentState(online, target, m, v, state.updates))


def remove_units(
    architecture: Architecture, state: AgentState, layer: UnitAxes, count: int
) -> ChangedAgent:
    """Fewer units or channels: without those whose outgoing weights are smallest."""
    by_axis = (_by_unit(state.online, axis, layer.size).double() for axis in layer.outgoing)
    silence = torch.zeros(layer.size, dtype=torch.float64)
    heard = sum((values.square().sum(1).cpu() for values in by_axis), silence)
    kept = heard.argsort(descending=True, stable=True)[: layer.size - count].sort().values
    axes = layer.incoming + layer.outgoing
    online, target, m, v = (_take(part, axes, kept) for part in state[:4])
    changed = _resized(architecture, layer, layer.size - count)
    return ChangedAgent(changed, AgentState(online, target, m, v, state.updates))


def add_layer(
    architecture: Architecture, state: AgentState, after: int, random: Generator
) -> ChangedAgent:
    """A gated layer behind a hidden layer, its gate shut: what it computes does not enter yet."""
    k, width = after + 1, architecture.hidden[after]
    drawn = random.normal(0, np.sqrt(2 / width), (width, width))
    weight = torch.from_numpy(drawn - drawn.mean(0))  # positive inputs leave few units dead
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
    return ChangedAgent(changed, AgentState(online, target, m, v, state.updates))


def remove_layer(architecture: Architecture, state: AgentState) -> ChangedAgent:
    """One layer less: the gated one whose gate is most nearly shut, else the last.

    Then the head reads the one before with the weights it has, and with zeros beyond.
    """
    gated = [k for k in range(architecture.depth) if architecture.gated[k]]
    openings = [float(state.online[f"hidden{k}.gate"].abs()) for k in gated]
    k = min(zip(openings, gated, strict=True))[1] if gated else architecture.depth - 1
    before, width = architecture.hidden[k - 1], architecture.hidden[k]
    head = (Axis("head.weight", 1),)
    beyond = torch.arange(min(width, before), before)
    index = torch.cat((torch.arange(min(width, before)), torch.zeros_like(beyond)))

    def shrunk(parameters: Parameters, number: float) -> Parameters:
        others = {n: x for n, x in parameters.items() if n.split(".")[0] != f"hidden{k}"}
        found = _renumbered(others, k + 1, -1)
        return found if gated else _fill(_take(found, head, index), head, beyond, number)

    parts = zip(state[:4], (0, 0, 0, NEW), strict=True)
    online, target, m, v = (shrunk(part, number) for part, number in parts)
    changed = dataclasses.replace(
        architecture,
        hidden=architecture.hidden[:k] + architecture.hidden[k + 1 :],
        gated=architecture.gated[:k] + architecture.gated[k + 1 :],
    )
    return ChangedAgent(changed, AgentState(online, target, m, v, state.updates))


def reset_dormant(
    spec: NetworkSpec, architecture: Architecture, state: AgentState, random: Generator
) -> AgentState:
    """Units that learn nothing begin again: a newborn's weights, that nothing listens to yet."""
    # not where a gated layer adds to them: that would be lost as well
    layers = [layer for layer in all_units(spec, architecture) if len(layer.layers) == 1]
    dormant = [torch.nonzero(dormant_units(state, layer)).view(-1) for layer in layers]
    for layer, units in zip(layers, dormant, strict=True):
        if len(units):
            state = _reset(state, layer, units, random)
    return state


def _reset(state: AgentState, layer: UnitAxes, units: Tensor, random: Generator) -> AgentState:
    axes = layer.incoming + layer.outgoing
    online, target = (
        _fill(part, layer.outgoing, units, 0) for part in (state.online, state.target)
    )
    m, v = _fill(state.m, axes, units, 0), _fill(state.v, axes, units, NEW)
    # of fan in, as in fresh_parameters
    bound = 1 / np.sqrt(online[layer.incoming[0].segment].numel() / layer.size)
    for segment, axis, *_ in layer.incoming:
        shape = list(online[segment].shape)
        shape[axis] = len(units)
        values = torch.full(shape, 1.0 if segment.endswith("scale") else 0.0)
        if segment.endswith(("weight", "bias")):
            values = torch.from_numpy(random.uniform(-bound, bound, shape))
        for weights in (online, target):
            old = weights[segment]
            weights[segment] = old.index_copy(axis, units.to(old.device), values.to(old))
    return AgentState(online, target, m, v, state.updates)


def _donors(
    state: AgentState, layer: UnitAxes, count: int, least: float, random: Generator
) -> Tensor:
    """Units to copy [count]: of those that learn so much, each about as often as any other."""
    learning = (learning_shares(state, layer) >= least).all(0)
    living = np.flatnonzero(learning.numpy()) if learning.sum() > 1 else np.arange(layer.size)
    rounds, rest = divmod(count, len(living))
    chosen = random.choice(living, rest, replace=False)
    return torch.from_numpy(np.concatenate((np.tile(living, rounds), chosen)))


def _noise(
    online: Parameters, layer: UnitAxes, donors: Tensor, noisy: Tensor, random: Generator
) -> dict[Axis, Tensor]:
    """What is added to the weights that new units read with, for those that are to have some."""
    found = {}
    for axis in layer.incoming:
        if axis.segment.endswith("weight"):
            weight = _take(online, (axis,), donors)[axis.segment]
            within = [d for d in range(weight.dim()) if d != axis.axis]
            size = NOISE * weight.square().mean(within, keepdim=True).sqrt()
            noise = size * torch.from_numpy(random.standard_normal(weight.shape)).to(weight)
            shape = [1 if d in within else -1 for d in range(weight.dim())]
            found[axis] = noise * noisy.to(noise).view(shape)
    return found


def _same_statistics(parameters: Parameters, layer: str, old: int) -> Parameters:
    """New units of a layer moved to keep LayerNorm's mean, and its variance on average."""
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
