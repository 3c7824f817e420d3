"""Who shares a matrix: small agents ride along, large ones get their own."""

from collections import Counter
from itertools import combinations
from random import Random

import pytest
from hypothesis import example, given, settings, strategies as st

from evorl.genome import Architecture, Genome
from evorl.networks.layout import signature
from evorl.networks.spec import NetworkSpec
from evorl.population import grouping
from evorl.population.grouping import CALL, Kind, kinds_of, multiply_adds
from tests.reference import genome

SPEC = NetworkSpec(8, 4)
SPECS = {"q": SPEC}


def agent(i, hidden=(64, 64), batch=64):
    return genome(i, Architecture(hidden), batch_size=batch)


def sizes(genomes, compiled):
    return sorted(Counter(kinds_of(SPECS, genomes, compiled)).values())


@pytest.mark.parametrize("compiled", [True, False])
def test_alike_agents_are_one_matrix(compiled):
    alike = signature(Architecture((64, 64)))._replace(gates=not compiled)
    kinds = kinds_of(SPECS, [agent(i) for i in range(8)], compiled)
    assert set(kinds) == {Kind((alike,), 64, (False,))}


@pytest.mark.parametrize("compiled", [True, False])
def test_a_large_batch_gets_a_matrix_of_its_own_and_a_small_one_rides_along(compiled):
    others = [agent(i) for i in range(7)]
    assert sizes([*others, agent(7, batch=256)], compiled) == [1, 7]
    assert sizes([*others, agent(7, batch=16)], compiled) == [8]


def test_compiled_depths_part_where_arithmetic_counts():
    narrow = [agent(i, (16,)) for i in range(7)] + [agent(7, (16, 16))]
    wide = [agent(i, (128,)) for i in range(7)] + [agent(7, (128, 128, 128))]
    assert sizes(narrow, compiled=True) == [8]
    assert sizes(wide, compiled=True) == [1, 7]
    assert sizes(wide, compiled=False) == [8]  # eager layers are computed for those that have them


def test_a_narrow_agent_rides_along_and_a_wide_one_gets_a_matrix_of_its_own():
    others = [agent(i) for i in range(7)]
    kinds = kinds_of(SPECS, [*others, agent(7, (48, 48))], compiled=True)
    assert {kind.signatures[0].widths for kind in kinds} == {(64, 64)}
    kinds = kinds_of(SPECS, [*others, agent(7, (90, 60))], compiled=True)
    assert [kind.signatures[0].widths for kind in kinds] == [(64, 64)] * 7 + [(96, 64)]


@pytest.mark.parametrize("compiled", [True, False])
def test_layers_keep_their_own_widths_unless_some_agent_passes_one_by(compiled):
    tapered = [agent(i, (128, 32)) for i in range(4)]
    (kind,) = set(kinds_of(SPECS, tapered, compiled))
    assert (kind.signatures[0].widths, kind.skips) == ((128, 32), (False,))
    (kind,) = set(kinds_of(SPECS, [*tapered[:2], agent(4, (96, 48))], compiled))
    assert (kind.signatures[0].widths, kind.skips) == ((128, 48), (False,))
    gated = genome(0, Architecture((16, 16, 8), gated=(False, True, False)))
    (kind,) = kinds_of(SPECS, [gated], compiled)
    assert (kind.signatures[0].widths, kind.skips) == ((16, 16, 16), (True,))
    (kind,) = set(kinds_of(SPECS, [agent(0, (16, 8)), agent(1, (8,))], compiled))
    assert (kind.signatures[0].widths, kind.skips) == ((16, 16), (True,))


def test_agents_that_differ_in_more_than_size_share_no_matrix():
    tanh = genome(1, Architecture((64, 64), "tanh"))
    assert sizes([agent(0), tanh], compiled=False) == [1, 1]


def test_compiled_widths_are_rounded_up_by_little():
    """One program has them all. What is eager has fewer widths, and more agents in each matrix."""
    for compiled, expected in ((True, (80, 112)), (False, (96, 128))):
        (kind,) = kinds_of(SPECS, [agent(0, (70, 100), batch=48)], compiled)
        assert (kind.signatures[0].widths, kind.batch) == (expected, 48)


some_agents = st.lists(
    st.tuples(
        st.lists(st.sampled_from([16, 64, 100]), min_size=1, max_size=3),
        st.sampled_from([16, 32, 64, 256]),
    ),
    min_size=1,
    max_size=9,
)


def cost(genomes, kinds, compiled):
    """As grouping counts it: one call a matrix, and what every agent is computed as."""
    total = len(set(kinds)) * CALL[compiled]
    for own, kind in zip(genomes, kinds, strict=True):
        depth = len(kind.signatures[0].widths) if compiled else own.architectures["q"].depth
        total += kind.batch * multiply_adds(SPEC, first_layers(kind.signatures[0], depth))
    return total


def first_layers(signature, depth):
    return signature._replace(widths=signature.widths[:depth])


# Merged pair by pair these end a little dearer than all in one matrix.
PAIRS_ARE_DEARER = [
    ([16], 16),
    ([16, 16], 16),
    ([16, 16, 64], 64),
    ([16, 64], 64),
    ([16, 100], 16),
    ([100], 32),
]


def as_one_kind(kinds, compiled):
    """All of these in one matrix."""
    found = [
        as_one_signature(
            [kind.signatures[k] for kind in kinds], any(kind.skips[k] for kind in kinds), compiled
        )
        for k in range(len(kinds[0].signatures))
    ]
    signatures, skips = zip(*found, strict=True)
    return Kind(signatures, max(kind.batch for kind in kinds), skips)


def as_one_signature(signatures, skips, compiled):
    """(signature, skips) of one network of all of these."""
    deepest = max(len(own.widths) for own in signatures)
    padded = [(*own.widths, *[0] * (deepest - len(own.widths))) for own in signatures]
    widths = tuple(max(layer) for layer in zip(*padded, strict=True))
    skips = skips or any(len(own.widths) < deepest for own in signatures)
    if skips:
        widths = (max(widths),) * deepest
    return signatures[0]._replace(widths=widths, gates=skips or not compiled), skips


@given(some_agents, st.booleans(), st.randoms(use_true_random=False))
@example(PAIRS_ARE_DEARER, False, Random(0))
@settings(max_examples=200, deadline=None)
def test_the_answer_fits_is_no_dearer_than_the_extremes_and_knows_no_order(found, compiled, random):
    genomes = [agent(i, tuple(hidden), batch) for i, (hidden, batch) in enumerate(found)]
    kinds = kinds_of(SPECS, genomes, compiled)
    for own, kind in zip(genomes, kinds, strict=True):
        hidden, widths = own.architectures["q"].hidden, kind.signatures[0].widths
        room = {"widths": widths, "gates": kind.skips[0] or not compiled}
        assert kind.signatures[0] == signature(own.architectures["q"])._replace(**room)
        assert len(widths) >= len(hidden)
        assert all(had >= units for had, units in zip(widths, hidden, strict=False))
        assert all(width % 16 == 0 for width in widths) or not compiled
        assert not kind.skips[0] or len(set(widths)) == 1
        assert kind.skips[0] or len(widths) == own.architectures["q"].depth
        assert kind.batch >= own.hyperparameters["batch_size"]
    alone = [kinds_of(SPECS, [own], compiled)[0] for own in genomes]
    together = [as_one_kind(alone, compiled)] * len(alone)
    for extreme in (alone, together):
        assert cost(genomes, kinds, compiled) <= cost(genomes, extreme, compiled) * (1 + 1e-9)
    order = list(range(len(genomes)))
    random.shuffle(order)
    assert kinds_of(SPECS, [genomes[i] for i in order], compiled) == [kinds[i] for i in order]


def the_slow_way(specs, genomes, compiled):
    """By the definition: all agents listed, and all pairs weighed anew before every merge."""
    own = [kinds_of(specs, [g], compiled)[0] for g in genomes]

    def work(kind, as_one):
        """Of one observation for one agent of this kind."""
        total = 0
        each = zip(specs.values(), kind.signatures, as_one.signatures, strict=True)
        for spec, mine, shared in each:
            depth = len((shared if compiled else mine).widths)
            total += multiply_adds(spec, first_layers(shared, depth))
        return total

    def weighed(part):
        as_one = as_one_kind(part, compiled)
        return CALL[compiled] + as_one.batch * sum(work(kind, as_one) for kind in part)

    def same(kind):
        return [own._replace(widths=(), gates=True) for own in kind.signatures]

    def best_merge(parts):
        costs = [weighed(part) for part in parts]
        best, most = None, 0.0
        for i, j in combinations(range(len(parts)), 2):
            alike = same(parts[i][0]) == same(parts[j][0])
            if alike and (saved := costs[i] + costs[j] - weighed(parts[i] + parts[j])) > most:
                best, most = (parts[i], parts[j]), saved
        return best

    parts = [[kind] * own.count(kind) for kind in sorted(set(own))]
    while best := best_merge(parts):
        a, b = best
        parts = [part for part in parts if part is not a and part is not b] + [a + b]
    shared = {kind: as_one_kind(part, compiled) for part in parts for kind in part}
    return [shared[kind] for kind in own]


@st.composite
def crowds(draw):
    """Specs, and agents of them that differ in everything that counts, many of them alike."""
    image = draw(st.sampled_from([None, (2, 9, 9)]))
    spec = NetworkSpec(0 if image else 8, 3, image)
    specs = (
        {"actor": spec, "critic": spec.giving(1, extra=3)} if draw(st.booleans()) else {"q": spec}
    )
    widths = draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    batches = draw(st.lists(st.integers(1, 300), min_size=1, max_size=24))
    hidden = st.lists(st.sampled_from(widths), min_size=1, max_size=4)
    network = st.tuples(
        hidden, st.sampled_from(["relu", "relu", "tanh"]), st.sampled_from([3, 4, 9])
    )
    agent = st.tuples(st.tuples(*[network] * len(specs)), st.sampled_from(batches))
    genomes = []
    for i, (networks, batch) in enumerate(draw(st.lists(agent, min_size=1, max_size=24))):
        own = {}
        for name, (hidden, activation, channels) in zip(specs, networks, strict=True):
            maps = {"channels": (channels,), "kernels": (3,), "strides": (2,)} if image else {}
            own[name] = Architecture(tuple(hidden), activation, **maps)
        genomes.append(Genome(i, own, {"batch_size": batch}))
    return specs, genomes


@given(crowds(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_answer_is_that_of_the_slow_way(crowd, compiled):
    assert kinds_of(*crowd, compiled) == the_slow_way(*crowd, compiled)


@pytest.mark.parametrize("compiled", [True, False])
def test_many_agents_get_the_answer_of_the_slow_way(compiled):
    """Among them pairs that save alike: batches in equal steps."""
    hidden = [(64, 64), (48,), (64, 32, 16)]
    genomes = [agent(i, hidden[i % 7 % 3], 8 + 2 * (i % 40)) for i in range(50)]
    assert kinds_of(SPECS, genomes, compiled) == the_slow_way(SPECS, genomes, compiled)


def test_the_work_of_a_part_is_counted_once(monkeypatch):
    """And not once for every agent and pair and merge, which takes seconds for 200 agents."""
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return multiply_adds(*arguments)

    monkeypatch.setattr(grouping, "multiply_adds", counted)
    kinds_of(SPECS, [agent(i, batch=16 + i) for i in range(60)], compiled=False)
    assert len(calls) <= 2 * 60  # there are at most as many merges as agents


def test_multiply_adds_of_known_networks():
    assert multiply_adds(NetworkSpec(8, 4), signature(Architecture((64, 64)))) == (
        8 * 64 + 64 + 64 * 64 + 64 + 1 + 64 * 4 + 4
    )
    images = NetworkSpec(0, 3, image=(4, 10, 10))
    convolved = Architecture((32,), channels=(16,), kernels=(3,), strides=(1,))
    weights = 8 * 8 * (16 * 4 * 9) + 16 + 16 * 64 * 32 + 32 + 32 * 3 + 3
    assert multiply_adds(images, signature(convolved)) == weights
