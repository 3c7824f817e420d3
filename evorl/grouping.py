"""Who shares a matrix with whom: few calls against little wasted arithmetic.

The agents of one matrix are computed alike: as wide and, compiled, as deep as the largest of them,
on batches as wide as the largest. So a large agent among small ones makes all of them dear, and an
agent in a matrix of its own costs another call. Both are weighed here in multiply-adds.

The answer depends on the genomes alone, never on what was there before: a run that is resumed, or
spread over other ranks, is computed alike to the last bit.
"""

import math
from collections.abc import Sequence
from functools import cache
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


def kinds_of(problem: Problem, genomes: Sequence[Genome], compiled: bool) -> list[Kind]:
    """The kind of each agent; those of one kind share a matrix."""
    own = [_own_kind(genome, compiled) for genome in genomes]
    parts = [[kind] * own.count(kind) for kind in sorted(set(own))]
    while best := _best_merge(problem, parts, compiled):
        a, b = best
        parts = [part for part in parts if part is not a and part is not b] + [a + b]
    shared = {kind: _joined(part) for part in parts for kind in part}
    return [shared[kind] for kind in own]


def _own_kind(genome: Genome, compiled: bool) -> Kind:
    batch = int(genome.hyperparameters["batch_size"])
    if compiled:  # mutated batch sizes mostly keep their program
        batch = power_of_two(batch)
    return Kind(signature(genome.architecture), genome.architecture.depth, batch)


def _best_merge(
    problem: Problem, parts: list[list[Kind]], compiled: bool
) -> tuple[list[Kind], list[Kind]] | None:
    """The two parts that save the most as one; None if none do."""
    costs = [_cost(problem, part, compiled) for part in parts]
    best, most = None, 0.0
    for i, j in combinations(range(len(parts)), 2):
        if _apart_from_width(parts[i]) == _apart_from_width(parts[j]):
            saved = costs[i] + costs[j] - _cost(problem, parts[i] + parts[j], compiled)
            if saved > most:
                best, most = (parts[i], parts[j]), saved
    return best


def _cost(problem: Problem, part: list[Kind], compiled: bool) -> float:
    """Multiply-adds of one update; eager layers are computed only for the agents that have them."""
    as_one = _joined(part)
    depths = [as_one.depth if compiled else kind.depth for kind in part]
    work = sum(multiply_adds(problem, as_one.signature, depth) for depth in depths)
    return CALL[compiled] + as_one.batch * work


def _joined(part: list[Kind]) -> Kind:
    widest = part[0].signature._replace(width=max(k.signature.width for k in part))
    return Kind(widest, max(k.depth for k in part), max(k.batch for k in part))


def _apart_from_width(part: list[Kind]) -> Signature:
    return part[0].signature._replace(width=0)


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
