"""The layout of a row: where each weight of an agent lies in the population's matrix.

Legend: P agents of a group, D row length.

A row holds all networks of an agent, one after another. A group's agents share one layout, wide and
deep enough for all of them. An agent's own weights fill the leading corner of each segment and the
rest is zero. It stays zero for ever: a unit whose incoming and outgoing weights are zero outputs
f(0) = 0 and gets a zero gradient.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from evorl.genome import Activation, Architecture, Genome
from evorl.networks.spec import VALUE, NetworkSpec, NormalizerSpec, ParameterSpec, Spec
from evorl.seeding import generator

# Segments start at multiples of this many numbers: matrix kernels give other last bits at another
# alignment, and an agent must not depend on which row it is in.
ALIGNED = 16

Weights = dict[str, Tensor]  # segment name → [P, *segment shape], of one network
Parameters = dict[str, Tensor]  # segment name → one agent's own weights, without padding
Shapes = dict[str, tuple[int, ...]]
Architectures = Mapping[str, Architecture]  # by network


class Segment(NamedTuple):
    """Where some weights lie in a row."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int


class Signature(NamedTuple):
    """What the networks of a matrix have in common; narrower ones fit in, and depths mix."""

    widths: tuple[int, ...]  # of the hidden layers; all alike where some agents lack some of them
    activation: Activation
    layer_norm: bool
    dueling: bool
    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    gates: bool = True  # is there room for one wherever a layer can have a gate?


def signature(architecture: Architecture) -> Signature:
    """The signature of an architecture: sizes are rounded up."""
    return Signature(
        widths=tuple(bucket(units) for units in architecture.hidden),
        activation=architecture.activation,
        layer_norm=architecture.layer_norm,
        dueling=architecture.dueling,
        channels=tuple(bucket(c) for c in architecture.channels),
        kernels=architecture.kernels,
        strides=architecture.strides,
    )


def shapes(spec: NetworkSpec, architecture: Architecture) -> Shapes:
    """The shape of every weight of one network, by segment name, without padding.

    Hidden weights are [in, out] and the head is [out, in]: with the longer side last, the small
    matrix products of both passes are up to three times faster on a CPU.
    """
    found: Shapes = {}
    inputs = spec.inputs
    if spec.image is not None:
        if not architecture.channels:
            raise ValueError("an image needs one convolution or more")
        maps, height, width = spec.image
        sizes = zip(architecture.channels, architecture.kernels, architecture.strides, strict=True)
        for k, (channels, kernel, stride) in enumerate(sizes):
            found[f"conv{k}.weight"] = (channels, maps, kernel, kernel)
            found[f"conv{k}.bias"] = (channels,)
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            maps = channels
        if min(height, width) < 1:
            raise ValueError(f"the convolutions leave nothing of a {spec.image} image")
        inputs = maps * height * width
    inputs += spec.extra  # before the rest: behind it there may be padding
    for k, units in enumerate(architecture.hidden):
        found[f"hidden{k}.weight"] = (inputs, units)
        found[f"hidden{k}.bias"] = (units,)
        if architecture.layer_norm:
            found[f"hidden{k}.scale"] = (units,)
            found[f"hidden{k}.shift"] = (units,)
        if architecture.gated[k]:
            found[f"hidden{k}.gate"] = (1,)
        inputs = units
    outputs = spec.outputs + architecture.dueling  # a dueling head's first output is the value
    found["head.weight"] = (outputs, inputs)
    found["head.bias"] = (outputs,)
    return found


class NetworkLayout:
    """Named segments of one network, for one signature."""

    def __init__(self, spec: NetworkSpec, signature: Signature) -> None:
        self.spec, self.signature = spec, signature
        widths = signature.widths
        self.depth = len(widths)
        widest = Architecture(
            hidden=widths,
            activation=signature.activation,
            layer_norm=signature.layer_norm,
            dueling=signature.dueling,
            gated=(False, *(signature.gates and a == b for a, b in pairwise(widths))),
            channels=signature.channels,
            kernels=signature.kernels,
            strides=signature.strides,
        )
        self.shapes = shapes(spec, widest)
        self.fill = fill_of(self.shapes)

    def resized(self, widths: Sequence[int]) -> Shapes:
        """The shapes if hidden layers had these widths, which may be symbols."""
        return {name: _resized(name, shape, widths) for name, shape in self.shapes.items()}


class BareLayout:
    """The segments of a bare parameter, or of statistics."""

    def __init__(self, spec: ParameterSpec | NormalizerSpec) -> None:
        self.spec = spec
        self.shapes: Shapes = {name: (size,) for name, (size, _) in spec.segments.items()}
        self.fill = fill_of(self.shapes)

    def resized(self, widths: Sequence[int]) -> Shapes:
        """It has no layers."""
        return self.shapes


Signatures = Mapping[str, Signature]  # of the networks of a row, by name
Widths = Mapping[str, Sequence[int]]


class Layout:
    """Where everything lies in a row: the networks and parameters of an agent by name, in order."""

    def __init__(self, specs: Mapping[str, Spec], signatures: Signatures) -> None:
        self.specs, self.signatures = dict(specs), dict(signatures)
        self.parts: dict[str, NetworkLayout | BareLayout] = {
            name: NetworkLayout(spec, signatures[name])
            if isinstance(spec, NetworkSpec)
            else BareLayout(spec)
            for name, spec in specs.items()
        }
        self.networks = {
            name: part for name, part in self.parts.items() if isinstance(part, NetworkLayout)
        }
        self.statistics = [  # never trained
            name for name, spec in specs.items() if isinstance(spec, NormalizerSpec)
        ]
        self._segments, self.length = self._laid_out({})  # D
        self.slices = self.slices_of({})

    def views(self, theta: Tensor) -> dict[str, Weights]:
        """The matrix [P, D] as named views; writing to one writes to the matrix."""
        return _views(theta, self._segments, theta.stride(0), int(theta.storage_offset()))

    def views_of(self, theta: Tensor, widths: Widths) -> dict[str, Weights]:
        """The same for torch.compile, of a matrix with layers of any widths: they may be symbols.

        It has all of its memory to itself, and widths are multiples of what segments begin at.
        """
        return _views(theta, *self._laid_out(widths))

    def _laid_out(self, widths: Widths) -> tuple[dict[str, dict[str, Segment]], int]:
        """Where each segment lies if layers have these widths, and how long a row is."""
        found: dict[str, dict[str, Segment]] = {}
        end = 0
        for name, part in self.parts.items():
            found[name] = {}
            own = part.resized(widths[name]) if name in widths else part.shapes
            for segment, shape in own.items():
                strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
                found[name][segment] = Segment(shape, strides, end)
                end += math.prod(shape) + part.fill[segment]
        return found, end

    def slices_of(self, widths: Widths) -> dict[str, slice]:
        """Which columns of the matrix belong to which network, if layers have these widths."""
        segments, length = self._laid_out(widths)
        starts = [next(iter(own.values())).start for own in segments.values()]
        ends = [*starts[1:], length]
        each = zip(self.parts, starts, ends, strict=True)
        return {name: slice(start, end) for name, start, end in each}

    def join(self, segments: Mapping[str, Weights], out: Tensor | None = None) -> Tensor:
        """Named segments of all networks as a matrix [P, D], written into `out` if given.

        Where a segment has fewer rows the rest is zero: `out` must be zero there already. So are
        statistics, which are not given, behind all else.
        """
        own = segments[next(iter(self.parts))]
        agents = (own["head.bias"] if "head.bias" in own else own[VALUE]).shape[0]
        # not len: of a tensor it takes ten times as long
        if any(value.shape[0] < agents for part in segments.values() for value in part.values()):
            if out is None:
                out = next(iter(own.values())).new_zeros(agents, self.length)
            views = self.views(out)
            for name, own in segments.items():
                for segment, value in own.items():
                    views[name][segment][: len(value)] = value
            return out
        columns: list[Tensor] = []
        for name, part in self.parts.items():
            if name in self.statistics:
                size = self.slices[name].stop - self.slices[name].start  # for all widths of layers
                columns.append(columns[-1].new_zeros(agents, size))
                continue
            for segment, fill in part.fill.items():
                columns.append(segments[name][segment].flatten(1))
                if fill:
                    columns.append(columns[-1].new_zeros(agents, fill))
        return torch.cat(columns, 1) if out is None else torch.cat(columns, 1, out=out)

    def pack(self, parameters: Parameters) -> Tensor:
        """One agent's own weights, by names such as `q.head.bias`, as a zero-padded row [D]."""
        first = next(iter(parameters.values()))
        row = torch.zeros(1, self.length, dtype=first.dtype, device=first.device)
        views = self.views(row)
        for name, value in parameters.items():
            network, segment = name.split(".", 1)
            views[network][segment][0][_corner(value.shape)] = value
        return row[0]

    def unpack(self, row: Tensor, architectures: Architectures) -> Parameters:
        """A row's own weights without the padding, copied."""
        views = self.views(row.unsqueeze(0))
        found: Parameters = {}
        for name, shape in row_shapes(self.specs, architectures).items():
            network, segment = name.split(".", 1)
            found[name] = views[network][segment][0][_corner(shape)].clone()
        return found

    def mask(self, architectures: Architectures) -> Tensor:
        """A row [D] that is True where the agent has a weight of its own."""
        own = row_shapes(self.specs, architectures)
        ones = {name: torch.ones(shape, dtype=torch.bool) for name, shape in own.items()}
        return self.pack(ones)


def row_shapes(specs: Mapping[str, Spec], architectures: Architectures) -> Shapes:
    """The shape of every weight of one agent, by names such as `q.head.bias`, without padding."""
    return {
        f"{name}.{segment}": shape
        for name, spec in specs.items()
        for segment, shape in (
            shapes(spec, architectures[name])
            if isinstance(spec, NetworkSpec)
            else BareLayout(spec).shapes
        ).items()
    }


def fresh_parameters(specs: Mapping[str, Spec], genome: Genome, seed: int) -> Parameters:
    """PyTorch's own default for layers, drawn from a generator that is keyed by the agent.

    Weights and biases are uniform within 1/sqrt(fan in), scales start at 1, shifts and gates at 0,
    bare parameters and statistics where they say.
    """
    random = generator(seed, "weights", genome.id)
    found: Parameters = {}
    bound = 0.0
    for name, shape in row_shapes(specs, genome.architectures).items():
        network, layer, part = (*name.split("."), "")[:3]
        if part == "weight":  # hidden weights are [in, out]
            fan_in = shape[0] if layer.startswith("hidden") else math.prod(shape[1:])
            bound = 1 / math.sqrt(fan_in)
        if part in ("weight", "bias"):
            found[name] = torch.from_numpy(random.uniform(-bound, bound, shape)).float()
        elif not isinstance(spec := specs[network], NetworkSpec):
            found[name] = torch.full(shape, spec.segments[layer][1])
        else:
            found[name] = torch.full(shape, 1.0 if part == "scale" else 0.0)
    return found


def network_part(parameters: Mapping[str, Tensor], network: str) -> Parameters:
    """The weights of one network of an agent, by segment."""
    start = f"{network}."
    return {
        name.removeprefix(start): value
        for name, value in parameters.items()
        if name.startswith(start)
    }


def fill_of(shapes: Shapes) -> dict[str, int]:
    """How many zeros follow each segment."""
    return {name: -math.prod(shape) % ALIGNED for name, shape in shapes.items()}


def _views(
    theta: Tensor, segments: dict[str, dict[str, Segment]], length: int, first: int = 0
) -> dict[str, Weights]:
    """as_strided is one call, and makes no guard on the number of rows where it is compiled."""
    return {
        name: {
            segment: torch.as_strided(
                theta, (len(theta), *shape), (length, *strides), first + start
            )
            for segment, (shape, strides, start) in own.items()
        }
        for name, own in segments.items()
    }


def _resized(name: str, shape: tuple[int, ...], widths: Sequence[int]) -> tuple[int, ...]:
    """The shape of a segment if hidden layers had these widths."""
    layer, part = name.split(".")
    if layer == "head" and part == "weight":
        return (shape[0], widths[-1])
    if not layer.startswith("hidden") or part == "gate":
        return shape
    k = int(layer.removeprefix("hidden"))
    if part != "weight":
        return (widths[k],)
    return (widths[k - 1] if k else shape[0], widths[k])


def _corner(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(0, size) for size in shape)


def bucket(size: int) -> int:
    """Rounded up to a power of two, or to the middle of two: 32, 48, 64, 96, 128, 192 and so on.

    Few sizes make few matrices, and of channels few programs; but rounding 80 up to 128 alone would
    more than double the arithmetic. All above 16 are multiples of what segments are aligned to.
    """
    above = power_of_two(size)
    middle = above // 4 * 3
    return middle if size <= middle and middle % ALIGNED == 0 else above


def aligned(size: int) -> int:
    """Rounded up to a multiple of what segments are aligned to."""
    return -(-size // ALIGNED) * ALIGNED


def power_of_two(size: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << (size - 1).bit_length()


def freeze(parameters: Mapping[str, Tensor]) -> Parameters:
    """Parameters copied to the CPU, for a file or another process."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in parameters.items()}
