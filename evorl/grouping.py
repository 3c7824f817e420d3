"""Who shares a matrix with whom: few calls against little wasted arithmetic.

The agents of one matrix are computed alike: as wide and, compiled, as deep as the largest of them,
on batches as wide as the largest. So a large agent among small ones makes all of them dear, and an
agent in a matrix of its own costs another call. Both are weighed here in multiply-adds.

The answer depends on the genomes alone, never on what was there before: a run that is resumed, or
spread over other ranks, is computed alike to the last bit.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import NamedTuple

from evorl.genome import Genome
from evorl.networks.layout import Layout, Problem, Signature, power_of_two, signature

# What a further matrix costs per update and act, in multiply-adds of an update: about 0.2 and
# 0.35 ms on one core. Compiled, a new program has to be made as well.
CALL = {True: 1.5e6, False: 2.4e6}


class Kind(NamedTuple):
    """How the agents of one matrix are computed."""

    signature: Signature
    depth: int  # layers of the deepest
    batch: int  # width of the batches


class Part(NamedTuple):
    """Agents that are computed as one."""

    kinds: list[Kind]  # their own, each once
    depths: dict[int, int]  # how many agents have so many layers
    as_one: Kind
    work: dict[tuple[int, int], int]  # of all of them, by width and depth; as far as it was asked


def kinds_of(problem: Problem, genomes: Sequence[Genome], compiled: bool) -> list[Kind]:
    """The kind of each agent; those of one kind share a matrix."""
    own = [_own_kind(genome, compiled) for genome in genomes]
    counts, alike = Counter(own), dict[Signature, list[Part]]()
    for kind in sorted(counts):
        part = Part([kind], {kind.depth: counts[kind]}, kind, {})
        alike.setdefault(kind.signature._replace(width=0), []).append(part)
    merge = Merge(problem, compiled)
    merged = [part for parts in alike.values() for part in merge(parts)]
    shared = {kind: part.as_one for part in merged for kind in part.kinds}
    return [shared[kind] for kind in own]


def _own_kind(genome: Genome, compiled: bool) -> Kind:
    batch = int(genome.hyperparameters["batch_size"])
    if compiled:  # mutated batch sizes mostly keep their program
        batch = power_of_two(batch)
    return Kind(signature(genome.architecture), genome.architecture.depth, batch)


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
            if (saved := costs[i] + costs[j] - self._cost(_largest(a, b), a, b)) > 0
        ]
        heapify(pairs)
        while pairs:
            _, i, j = heappop(pairs)
            if i not in left or j not in left:
                continue
            new, number = _joined(left.pop(i), left.pop(j)), len(costs)
            costs.append(self._cost(new.as_one, new))
            for k, part in left.items():
                saved = costs[k] + costs[number] - self._cost(_largest(part, new), part, new)
                if saved > 0:
                    heappush(pairs, (-saved, k, number))
            left[number] = new
        return left.values()

    def _cost(self, kind: Kind, *parts: Part) -> float:
        """Multiply-adds of one update of all of these, computed as this kind."""
        size, work = (kind.signature.width, kind.depth), 0
        for part in parts:
            if size not in part.work:
                part.work[size] = self._work(kind, part)
            work += part.work[size]
        return CALL[self.compiled] + kind.batch * work

    def _work(self, kind: Kind, part: Part) -> int:
        """For one observation; eager layers are computed only for the agents that have them."""
        whole = self.compiled
        return sum(
            agents * multiply_adds(self.problem, kind.signature, kind.depth if whole else own)
            for own, agents in part.depths.items()
        )


def _joined(a: Part, b: Part) -> Part:
    return Part(a.kinds + b.kinds, Counter(a.depths) + Counter(b.depths), _largest(a, b), {})


def _largest(a: Part, b: Part) -> Kind:
    """As wide, deep and large as the larger of the two in each."""
    (wide, deep, large), (other_wide, other_deep, other_large) = a.as_one, b.as_one
    # the signatures differ in their width alone, and that comes first
    return Kind(max(wide, other_wide), max(deep, other_deep), max(large, other_large))


@cache
def multiply_adds(problem: Problem, signature: Signature, depth: int) -> int:
    """Of one forward pass of one observation, padding included."""
    total = 0
    if problem.image is not None:
        _, height, width = problem.image
    for name, shape in Layout(problem, signature, depth).shapes.items():
        positions = 1
        if name.startswith("conv") and name.endswith("weight"):
            layer = int(name.removeprefix("conv").removesuffix(".weight"))
            kernel, stride = signature.kernels[layer], signature.strides[layer]
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            positions = height * width
        total += positions * math.prod(shape)
    return total
