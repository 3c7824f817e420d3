"""Which agents share a matrix: few calls against little wasted arithmetic.

The agents of one matrix are computed alike: each layer as wide and, compiled, all as deep as the
largest of them, on batches as wide as the largest. So a large agent among small ones makes all of
them dear, and an agent in a matrix of its own costs another call. Both are weighed here in
multiply-adds.

The answer depends on the genomes alone, never on what was there before: a run that is resumed, or
spread over other ranks, is computed alike to the last bit.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, reduce
from heapq import heapify, heappop, heappush
from itertools import combinations, zip_longest
from typing import NamedTuple

from evorl.genome import Genome
from evorl.networks import NetworkLayout, NetworkSpec, Signature, Spec, aligned, signature

# What a further matrix costs per update, in multiply-adds of an update: about 0.35 ms eager on one
# core. Compiled it is 0.09 ms, half in the program and half in a round's calls.
CALL = {True: 0.5e6, False: 2.4e6}


class Kind(NamedTuple):
    """How the agents of one matrix are computed; signatures and skips are by network, in order."""

    signatures: tuple[Signature, ...]
    batch: int  # width of the batches
    skips: tuple[bool, ...]  # does any agent pass a layer by, as it lacks it or has it gated?


class MatrixPart(NamedTuple):
    """Agents that are computed as one."""

    kinds: list[Kind]  # their own, each once
    depths: dict[tuple[int, ...], int]  # how many agents have networks of these depths
    as_one: Kind
    work: dict[tuple[Signature, ...], int]  # of all of them, computed as this; as far as asked


def kinds_of(specs: Mapping[str, Spec], genomes: Sequence[Genome], compiled: bool) -> list[Kind]:
    """The kind of each agent; those of one kind share a matrix."""
    networks = {name: spec for name, spec in specs.items() if isinstance(spec, NetworkSpec)}
    own = [_own_kind(networks, genome, compiled) for genome in genomes]
    counts, alike = Counter(own), dict[tuple[Signature, ...], list[MatrixPart]]()
    for kind in sorted(counts):
        depths = tuple(len(signature.widths) for signature in kind.signatures)
        part = MatrixPart([kind], {depths: counts[kind]}, kind, {})
        same = tuple(one._replace(widths=(), gates=True) for one in kind.signatures)
        alike.setdefault(same, []).append(part)
    merge = Merge(tuple(networks.values()), compiled)
    merged = [part for parts in alike.values() for part in merge(parts)]
    shared = {kind: part.as_one for part in merged for kind in part.kinds}
    return [shared[kind] for kind in own]


def _own_kind(networks: Mapping[str, NetworkSpec], genome: Genome, compiled: bool) -> Kind:
    signatures, skips = [], []
    for name in networks:
        architecture = genome.architectures[name]
        own = signature(architecture)
        if compiled:  # one program for all widths: few of them would save nothing
            own = own._replace(widths=tuple(map(aligned, architecture.hidden)))
        signatures.append(own)
        skips.append(any(architecture.gated))
    batch = int(genome.hyperparameters.get("batch_size", 1))
    return _with_room(Kind(tuple(signatures), batch, tuple(skips)), compiled)


class Merge:
    """Joins the two parts that save the most as one; again and again, until none save anything."""

    def __init__(self, specs: tuple[NetworkSpec, ...], compiled: bool) -> None:
        self.specs, self.compiled = specs, compiled

    def __call__(self, parts: Sequence[MatrixPart]) -> Iterable[MatrixPart]:
        """Of parts that differ in size alone; of equal savings those of the earliest parts count.

        What a pair saves never changes: each is worked out once, and those of parts that are gone
        are passed over.
        """
        left = dict(enumerate(parts))
        costs = [self._cost(part.as_one, part) for part in parts]
        pairs = [
            (-saved, i, j)
            for (i, a), (j, b) in combinations(left.items(), 2)
            if (saved := costs[i] + costs[j] - self._cost(self._largest(a, b), a, b)) > 0
        ]
        heapify(pairs)
        while pairs:
            _, i, j = heappop(pairs)
            if i not in left or j not in left:
                continue
            new, number = self._joined(left.pop(i), left.pop(j)), len(costs)
            costs.append(self._cost(new.as_one, new))
            for k, part in left.items():
                saved = costs[k] + costs[number] - self._cost(self._largest(part, new), part, new)
                if saved > 0:
                    heappush(pairs, (-saved, k, number))
            left[number] = new
        whole = reduce(self._joined, parts)  # pair by pair may end a little dearer than that
        if self._cost(whole.as_one, whole) < sum(costs[number] for number in left):
            return [whole]
        return left.values()

    def _cost(self, kind: Kind, *parts: MatrixPart) -> float:
        """Multiply-adds of one update of all of these, computed as this kind."""
        work = 0
        for part in parts:
            if kind.signatures not in part.work:
                part.work[kind.signatures] = self._work(kind.signatures, part)
            work += part.work[kind.signatures]
        return CALL[self.compiled] + kind.batch * work

    def _work(self, signatures: tuple[Signature, ...], part: MatrixPart) -> int:
        """For one observation; eager layers are computed only for the agents that have them."""
        if self.compiled:
            return sum(part.depths.values()) * self._forward(signatures)
        return sum(
            agents
            * self._forward(
                tuple(
                    one._replace(widths=one.widths[:own])
                    for one, own in zip(signatures, depths, strict=True)
                )
            )
            for depths, agents in part.depths.items()
        )

    def _forward(self, signatures: tuple[Signature, ...]) -> int:
        return sum(multiply_adds(*own) for own in zip(self.specs, signatures, strict=True))

    def _joined(self, a: MatrixPart, b: MatrixPart) -> MatrixPart:
        together = self._largest(a, b)
        return MatrixPart(a.kinds + b.kinds, Counter(a.depths) + Counter(b.depths), together, {})

    def _largest(self, a: MatrixPart, b: MatrixPart) -> Kind:
        """As wide, deep and large as the larger of the two in each; they differ in size alone."""
        one, other = a.as_one, b.as_one
        signatures, skips = [], []
        for k, (mine, theirs) in enumerate(zip(one.signatures, other.signatures, strict=True)):
            pairs = zip_longest(mine.widths, theirs.widths, fillvalue=0)
            signatures.append(mine._replace(widths=tuple(max(pair) for pair in pairs)))
            uneven = len(mine.widths) != len(theirs.widths)
            skips.append(one.skips[k] or other.skips[k] or uneven)
        kind = Kind(tuple(signatures), max(one.batch, other.batch), tuple(skips))
        return _with_room(kind, self.compiled)


def _with_room(kind: Kind, compiled: bool) -> Kind:
    """Even where some agents pass a layer by: what goes in must be as wide as what comes out.

    Compiled, there is room for gates only there. A program does not ask whether widths happen to
    be equal.
    """
    signatures = []
    for own, skips in zip(kind.signatures, kind.skips, strict=True):
        widths = (max(own.widths),) * len(own.widths) if skips else own.widths
        signatures.append(own._replace(widths=widths, gates=skips or not compiled))
    return kind._replace(signatures=tuple(signatures))


@cache
def multiply_adds(spec: NetworkSpec, signature: Signature) -> int:
    """Of one forward pass of one observation, padding included."""
    total = 0
    if spec.image is not None:
        _, height, width = spec.image
    for name, shape in NetworkLayout(spec, signature).shapes.items():
        positions = 1
        if name.startswith("conv") and name.endswith("weight"):
            layer = int(name.removeprefix("conv").removesuffix(".weight"))
            kernel, stride = signature.kernels[layer], signature.strides[layer]
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            positions = height * width
        total += positions * math.prod(shape)
    return total
