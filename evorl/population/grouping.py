"""Who shares a matrix with whom: few calls against little wasted arithmetic.

The agents of one matrix are computed alike: each layer as wide and, compiled, all as deep as the
largest of them, on batches as wide as the largest. So a large agent among small ones makes all of
them dear, and an agent in a matrix of its own costs another call. Both are weighed here in
multiply-adds.

The answer depends on the genomes alone, never on what was there before: a run that is resumed, or
spread over other ranks, is computed alike to the last bit.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import combinations, zip_longest
from typing import NamedTuple

from evorl.genome import Genome
from evorl.networks.layout import Layout, Problem, Signature, aligned, signature

# What a further matrix costs per update, in multiply-adds of an update: about 0.35 ms eager on one
# core. Compiled it is 0.09 ms, half in the program and half in a round's calls.
CALL = {True: 0.5e6, False: 2.4e6}


class Kind(NamedTuple):
    """How the agents of one matrix are computed."""

    signature: Signature
    batch: int  # width of the batches
    skips: bool = False  # does any agent pass a layer by, as it lacks it or has it gated?


class Part(NamedTuple):
    """Agents that are computed as one."""

    kinds: list[Kind]  # their own, each once
    depths: dict[int, int]  # how many agents have so many layers
    as_one: Kind
    work: dict[Signature, int]  # of all of them, computed as this; as far as it was asked


def kinds_of(problem: Problem, genomes: Sequence[Genome], compiled: bool) -> list[Kind]:
    """The kind of each agent; those of one kind share a matrix."""
    own = [_own_kind(genome, compiled) for genome in genomes]
    counts, alike = Counter(own), dict[Signature, list[Part]]()
    for kind in sorted(counts):
        part = Part([kind], {len(kind.signature.widths): counts[kind]}, kind, {})
        alike.setdefault(kind.signature._replace(widths=(), gates=True), []).append(part)
    merge = Merge(problem, compiled)
    merged = [part for parts in alike.values() for part in merge(parts)]
    shared = {kind: part.as_one for part in merged for kind in part.kinds}
    return [shared[kind] for kind in own]


def _own_kind(genome: Genome, compiled: bool) -> Kind:
    architecture, own = genome.architecture, signature(genome.architecture)
    if compiled:  # one program for all widths: few of them would save nothing
        own = own._replace(widths=tuple(map(aligned, architecture.hidden)))
    batch = int(genome.hyperparameters["batch_size"])
    return _with_room(Kind(own, batch, any(architecture.gated)), compiled)


class Merge:
    """Joins the two parts that save the most as one; again and again, until none save anything."""

    def __init__(self, problem: Problem, compiled: bool) -> None:
        self.problem, self.compiled = problem, compiled

    def __call__(self, parts: Sequence[Part]) -> Iterable[Part]:
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
        return left.values()

    def _cost(self, kind: Kind, *parts: Part) -> float:
        """Multiply-adds of one update of all of these, computed as this kind."""
        signature, work = kind.signature, 0
        for part in parts:
            if signature not in part.work:
                part.work[signature] = self._work(signature, part)
            work += part.work[signature]
        return CALL[self.compiled] + kind.batch * work

    def _work(self, signature: Signature, part: Part) -> int:
        """For one observation; eager layers are computed only for the agents that have them."""
        if self.compiled:
            return sum(part.depths.values()) * multiply_adds(self.problem, signature)
        return sum(
            agents * multiply_adds(self.problem, signature._replace(widths=signature.widths[:own]))
            for own, agents in part.depths.items()
        )

    def _joined(self, a: Part, b: Part) -> Part:
        together = self._largest(a, b)
        return Part(a.kinds + b.kinds, Counter(a.depths) + Counter(b.depths), together, {})

    def _largest(self, a: Part, b: Part) -> Kind:
        """As wide, deep and large as the larger of the two in each; they differ in size alone."""
        one, other = a.as_one, b.as_one
        pairs = zip_longest(one.signature.widths, other.signature.widths, fillvalue=0)
        widths = tuple(max(pair) for pair in pairs)
        skips = one.skips or other.skips or len(one.signature.widths) != len(other.signature.widths)
        signature = one.signature._replace(widths=widths)
        kind = Kind(signature, max(one.batch, other.batch), skips)
        return _with_room(kind, self.compiled)


def _with_room(kind: Kind, compiled: bool) -> Kind:
    """Even where some agents pass a layer by: what goes in must be as wide as what comes out.

    Compiled, there is room for gates only there. A program does not ask whether widths happen to
    be equal.
    """
    widths = kind.signature.widths
    if kind.skips:
        widths = (max(widths),) * len(widths)
    gates = kind.skips or not compiled
    return kind._replace(signature=kind.signature._replace(widths=widths, gates=gates))


@cache
def multiply_adds(problem: Problem, signature: Signature) -> int:
    """Of one forward pass of one observation, padding included."""
    total = 0
    if problem.image is not None:
        _, height, width = problem.image
    for name, shape in Layout(problem, signature).shapes.items():
        positions = 1
        if name.startswith("conv") and name.endswith("weight"):
            layer = int(name.removeprefix("conv").removesuffix(".weight"))
            kernel, stride = signature.kernels[layer], signature.strides[layer]
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            positions = height * width
        total += positions * math.prod(shape)
    return total
