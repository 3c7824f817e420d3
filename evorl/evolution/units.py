"""Where in an agent's weights its units lie: what each one reads, and who reads it.

Units of a hidden layer and channels of a convolution are handled alike. A gated layer adds to its
input, so it is as wide as the layer before: such a run of layers gains and loses units together.
"""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from evorl.genome import Architecture
from evorl.networks import NetworkSpec, Parameters, shapes
from evorl.population import AgentState

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


class UnitAxes(NamedTuple):
    """All units of a run of hidden layers, or all channels of a convolution."""

    kind: str  # units or channels
    layers: tuple[int, ...]
    size: int
    incoming: tuple[Axis, ...]
    outgoing: tuple[Axis, ...]


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


def resized(architecture: Architecture, layer: UnitAxes, size: int) -> Architecture:
    """The architecture with this many of these units."""
    widths = architecture.hidden if layer.kind == "units" else architecture.channels
    new = tuple(size if k in layer.layers else width for k, width in enumerate(widths))
    if layer.kind == "units":
        return dataclasses.replace(architecture, hidden=new)
    return dataclasses.replace(architecture, channels=new)


def take(parameters: Parameters, axes: tuple[Axis, ...], units: Tensor) -> Parameters:
    """These units in this order (some may come twice), along these axes; the rest as it is."""
    found = dict(parameters)
    for axis in axes:
        value = found[axis.segment]
        before = torch.arange(axis.first, device=value.device)
        places = torch.cat((before, _places(axis, units, value)))
        found[axis.segment] = value.index_select(axis.axis, places)
    return found


def fill(
    parameters: Parameters, axes: tuple[Axis, ...], units: Tensor, number: float
) -> Parameters:
    """A number in all places of these units along these axes; the rest as it is."""
    found = dict(parameters)
    for axis in axes:
        value = found[axis.segment]
        found[axis.segment] = value.index_fill(axis.axis, _places(axis, units, value), number)
    return found


def put(parameters: Parameters, axis: Axis, units: Tensor, values: Tensor) -> Parameters:
    """Values in the places of these units along an axis; the rest as it is."""
    value = parameters[axis.segment]
    places = _places(axis, units, value)
    return parameters | {axis.segment: value.index_copy(axis.axis, places, values.to(value))}


def sum_of_squares(parameters: Parameters, axes: tuple[Axis, ...], size: int) -> Tensor:
    """For each unit [size] the sum of all its squared places along these axes."""
    total = torch.zeros(size, dtype=torch.float64)
    for axis in axes:
        total += by_unit(parameters, axis, size).double().square().sum(1).cpu()
    return total


def by_unit(parameters: Parameters, axis: Axis, size: int) -> Tensor:
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
        moments = torch.cat([by_unit(state.v, axis, layer.size) for axis in own], 1)
        learned = moments.abs().double().sum(1).cpu()  # below zero for new ones: see optimizer.py
        nothing = not learned.any()  # a newborn, or a gate that is shut
        shares.append(torch.ones_like(learned) if nothing else learned / learned.mean())
    return torch.stack(shares)


def dormant_units(state: AgentState, layer: UnitAxes) -> Tensor:
    """Which units [size] learn nothing; of layers that are tied, the first one decides."""
    return (learning_shares(state, layer)[0] < DORMANT) & (state.steps >= MEMORY)


def _places(axis: Axis, units: Tensor, value: Tensor) -> Tensor:
    within = torch.arange(axis.each) + axis.first
    return (units.view(-1, 1) * axis.each + within).view(-1).to(value.device)
