"""The compiled update: equal to the eager one, alive through changing groups, replaceable."""

import dataclasses
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.experience.transitions import Samples
from evorl.genome import Architecture
from evorl.networks.spec import NetworkSpec
from evorl.population.compiled import (
    WORTH_UPDATES,
    CompiledRounds,
    RoundPrograms,
    UpdatePrograms,
    has_compiler,
    wants_compiling,
)
from evorl.population.grouping import kinds_of
from tests.population.test_population import (
    MIXED,
    PARTS,
    SPEC,
    assert_padding_zero,
    opened_gates,
    trained,
)
from tests.reference import genome, population_of, random_samples

torch.set_num_threads(1)

# wide agents are grouped by depth when compiled, and their samples lie elsewhere
NARROW = [g for g in MIXED if max(g.architectures["q"].hidden) <= 64]


def test_auto_compiles_long_runs_where_there_is_a_compiler(monkeypatch):
    assert wants_compiling("auto", WORTH_UPDATES) == has_compiler()
    assert not wants_compiling("auto", WORTH_UPDATES - 1)
    assert wants_compiling(True, 1)
    assert not wants_compiling(False, WORTH_UPDATES)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not wants_compiling("auto", WORTH_UPDATES)


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="torch.compile needs g++")


class ByAutograd(DQN):
    """Without a closed form."""

    def loss(self, networks, targets, batch, hp):
        return super().loss(networks, targets, batch, hp)


def as_rows_of_a_buffer(field):
    """With memory between the items, as a replay has it."""
    apart = torch.zeros(len(field), field[0].numel() + 3, dtype=field.dtype)
    view = apart[:, : field[0].numel()].view(field.shape)
    return view.copy_(field)


def one_round(population, updates, seed=0):
    """Random samples for a round of so many updates each, as a replay gives them."""
    requests = population.requests(np.asarray(updates))
    dtype, random = population.dtype, np.random.default_rng(seed)
    samples = random_samples(requests, SPEC, random, dtype=dtype)
    return Samples(*map(as_rows_of_a_buffer, samples)), requests


def assert_near(left, right, tolerance):
    """Agents alike, and nothing in the padding of the first."""
    for i in range(left.size):
        mine, yours = left.state(i), right.state(i)
        for part in PARTS:
            for name, value in getattr(mine, part).items():
                other = getattr(yours, part)[name]
                message = f"{i} {part} {name}"
                torch.testing.assert_close(value, other, rtol=0, atol=tolerance, msg=message)
    assert_padding_zero(left)


# Each program takes 10 s, so there are few: most tests are about that of these, and share it.
BOTH = [genome(i, Architecture((20 + i,)), lr=1e-3 * (i + 1)) for i in range(2)]


@pytest.fixture(scope="module")
def programs():
    return CompiledRounds(DQN())


def compiled_by(programs, genomes=BOTH, **options):
    population = population_of(genomes, SPEC, compiled=True, **options)
    population.compiled = programs
    return population


@pytest.mark.slow
@needs_compiler
def test_compiled_equals_eager():
    """In float64: a group with LayerNorm, a gate and absent layers."""
    plain, gated = Architecture((16,), "gelu", True), ((False, True),)
    genomes = [genome(0, plain), genome(1, Architecture((12, 12), "gelu", True, False, *gated))]
    updates = np.array([7, 10])
    compiled, eager = (
        opened_gates(population_of(genomes, SPEC, dtype=torch.float64, compiled=c))
        for c in (True, False)
    )
    samples, requests = one_round(compiled, updates)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="torch.compile failed")
        found = compiled.learn(samples, requests)
    expected = eager.learn(samples, requests)
    assert len(compiled.groups) == 1
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-9)
    for mine, yours in zip(found.priorities, expected.priorities, strict=True):
        real = torch.arange(10)[:, None] < torch.from_numpy(requests[0].updates)  # [U, P]
        torch.testing.assert_close(mine[real], yours[real], rtol=0, atol=1e-9)
    assert_near(compiled, eager, 1e-9)


@pytest.mark.slow
@needs_compiler
def test_a_program_on_disk_is_not_taken_for_another(programs):
    """Programs that differ inside of their loop only: with double Q-learning and without."""
    other = CompiledRounds(DQN(double=False))
    for own in (programs, other):
        compiled, eager = compiled_by(own), population_of(BOTH, SPEC, own.algorithm)
        samples, requests = one_round(compiled, [3, 3])
        compiled.learn(samples, requests)
        eager.learn(samples, requests)
        assert rounds_of(compiled)
        assert_near(compiled, eager, 1e-5)


@pytest.mark.slow
@needs_compiler
def test_single_updates_equal_a_round_of_them(programs):
    def learned(rounds):
        population = compiled_by(programs)
        samples, requests = one_round(population, [4, 4])
        (shape,) = (request.shape for request in requests)
        apart = [field.view(*shape, *field.shape[1:]) for field in samples]
        losses = []
        for part in np.split(np.arange(4), rounds):
            batch = Samples(*(field[part].flatten(0, 2) for field in apart))
            losses.append(population.learn(batch, population.requests(np.full(2, len(part)))).loss)
        assert rounds_of(population)
        return population, np.mean(losses, 0)

    (one, loss), (other, expected) = learned(1), learned(4)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert_near(one, other, 1e-5)


@pytest.mark.slow
@needs_compiler
def test_images_and_half_precision_are_compiled_too():
    """Products are in bfloat16; so much of both that they are near, though never alike."""
    spec = NetworkSpec(0, 3, image=(1, 6, 5), scale=1 / 255)
    architecture = Architecture((8,), channels=(2,), kernels=(3,), strides=(1,))
    genomes = [genome(i, architecture, batch_size=4) for i in range(2)]
    compiled, eager = (
        population_of(genomes, spec, compiled=c, half=torch.bfloat16) for c in (True, False)
    )
    requests = compiled.requests(np.full(2, 3))
    samples = random_samples(
        requests, NetworkSpec(30, 3), np.random.default_rng(0), dtype=torch.float32
    )
    obs, later = (
        (40 * field.abs()).clamp(max=255).to(torch.uint8).view(-1, 1, 6, 5)
        for field in (samples.obs, samples.next_obs)
    )
    samples = samples._replace(obs=obs, next_obs=later)
    losses = [population.learn(samples, requests).loss for population in (compiled, eager)]
    assert rounds_of(compiled)
    np.testing.assert_allclose(*losses, rtol=0.05)
    for i in range(2):
        for name, value in compiled.state(i).online.items():  # three steps of Adam at most
            torch.testing.assert_close(value, eager.state(i).online[name], rtol=0, atol=6e-3)
    assert_padding_zero(compiled)


def resized(own, by):
    """Wider, with larger batches."""
    hidden = tuple(units + 20 * by for units in own.architectures["q"].hidden)
    batch = own.hyperparameters["batch_size"] + by
    return genome(own.id, Architecture(hidden), batch_size=batch)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("first", [(3, 3), (1, 2)])  # what they have in common is no rule
def test_groups_and_rounds_of_any_size_share_a_program(first):
    """Of one, too; other genomes each time, of other widths and with other batches."""
    population = population_of(BOTH, SPEC, compiled=True)
    torch._dynamo.utils.counters.clear()
    random = np.random.default_rng(0)
    sizes = (first, (2, 3), (1, 4), (5, 1))
    for size, updates in sizes:
        genomes = [resized(genome(i, Architecture((20,))), size) for i in range(size)]
        fresh, eager = (population_of(genomes, SPEC) for _ in range(2))
        population.rebuild(genomes, [fresh.state(i) for i in range(size)])
        requests = population.requests(np.full(size, updates))
        samples = random_samples(requests, SPEC, random, dtype=torch.float32)
        samples = Samples(*map(as_rows_of_a_buffer, samples))
        population.learn(samples, requests)
        eager.learn(samples, requests)
        assert_near(population, eager, 2e-5)
    assert len(rounds_of(population)._programs) == len(sizes)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def rounds_of(population):
    """The programs of whole rounds, unless they failed."""
    way = population.compiled._ways[-1]
    assert isinstance(way, RoundPrograms)
    return way


@pytest.fixture
def traced_only(monkeypatch):
    """Nothing is compiled; sizes are settled before."""
    monkeypatch.setattr(RoundPrograms, "_backend", lambda self, graph, inputs: graph.forward)


@pytest.mark.parametrize(
    ("algorithm", "architecture", "n_step", "one_hot"),
    [
        (DQN(double=False, loss_kind="mse"), Architecture((8, 16), "tanh", dueling=True), 3, False),
        (DQN(), Architecture((8, 8), "gelu", True, True, gated=(False, True)), 1, True),
        (ByAutograd(), Architecture((8, 8), "relu", True, gated=(False, True)), 1, False),
    ],
    ids=["single", "double", "by autograd"],
)
def test_whatever_the_network_sizes_share_a_program(
    traced_only, algorithm, architecture, n_step, one_hot
):
    spec = NetworkSpec(6, 3, one_hot=one_hot)
    population = population_of([genome(0, architecture)], spec, algorithm, compiled=True)
    torch._dynamo.utils.counters.clear()
    random = np.random.default_rng(0)
    for size, updates, batch, wider in ((1, 3, 4, 1), (3, 3, 7, 5), (2, 1, 4, 1), (4, 2, 16, 9)):
        hidden = tuple(wider * units for units in architecture.hidden)
        grown = dataclasses.replace(architecture, hidden=hidden)
        genomes = [genome(i, grown, batch_size=batch) for i in range(size)]
        eager = opened_gates(population_of(genomes, spec, algorithm))
        population.rebuild(genomes, [eager.state(i) for i in range(size)])
        requests = population.requests(np.full(size, updates))
        samples = random_samples(requests, spec, random, steps=n_step, dtype=torch.float32)
        if one_hot:
            indices = torch.zeros_like(samples.action)
            samples = samples._replace(obs=indices, next_obs=indices)
        samples = Samples(*map(as_rows_of_a_buffer, samples))
        found, expected = (each.learn(samples, requests).loss for each in (population, eager))
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        assert_near(population, eager, 2e-5)
    assert rounds_of(population)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_loop_over_agents_has_a_program_for_each_number_of_them(traced_only):
    """But not for each number of updates."""
    spec = NetworkSpec(0, 3, image=(1, 16, 16))
    convolved = Architecture((8,), channels=(4,), kernels=(3,), strides=(1,))
    population = population_of([genome(0, convolved)], spec, compiled=True)
    torch._dynamo.utils.counters.clear()
    random = np.random.default_rng(0)
    for size, updates in ((2, 3), (3, 3), (3, 2), (3, 4), (2, 2)):
        genomes = [genome(i, convolved, batch_size=2) for i in range(size)]
        eager = population_of(genomes, spec)
        population.rebuild(genomes, [eager.state(i) for i in range(size)])
        requests = population.requests(np.full(size, updates))
        samples = random_samples(requests, NetworkSpec(256, 3), random, dtype=torch.float32)
        obs, later = (field.view(-1, 1, 16, 16) for field in (samples.obs, samples.next_obs))
        for each in (population, eager):
            each.learn(samples._replace(obs=obs, next_obs=later), requests)
        assert_near(population, eager, 2e-5)
    assert rounds_of(population)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


@pytest.mark.slow
@needs_compiler
def test_a_program_called_directly_gives_the_same_bits(programs, monkeypatch):
    """Rounds of 3, 2 and 3 updates, with the guards of torch.compile at every call and without."""
    wide = [genome(2, Architecture((40,)))]
    kinds = [k for own in (BOTH, wide) for k in kinds_of({"q": SPEC}, own, compiled=True)]

    def states(programs):
        population = compiled_by(programs, [*BOTH, *wide], kinds=kinds)
        assert [group.size for group in population.groups] == [2, 1]
        for seed, most in enumerate((3, 2, 3)):
            population.learn(*one_round(population, [most, most - 1, most], seed=seed))
        return rounds_of(population), [population.state(i) for i in range(3)]

    direct, found = states(programs)
    assert len({shape for shape, *_ in direct._programs}) >= 2
    monkeypatch.setattr(RoundPrograms, "_found", lambda *_: None)
    guarded, expected = states(CompiledRounds(DQN()))
    assert not guarded._programs
    for ours, theirs in zip(found, expected, strict=True):
        for part in PARTS:
            for name, value in getattr(ours, part).items():
                assert torch.equal(value, getattr(theirs, part)[name])


# what fails is done another way


@pytest.mark.slow
@needs_compiler
def test_where_private_functions_fail_the_public_ones_do_the_same(monkeypatch):
    """With one warning, though there are two rounds."""

    def failing(self, graph, inputs):
        raise AttributeError("no such function\nand a long story")

    monkeypatch.setattr(RoundPrograms, "_backend", failing)
    compiled, eager = (population_of(BOTH, SPEC, compiled=c) for c in (True, False))

    def learn():
        for seed in range(2):
            samples, requests = one_round(compiled, [3, 2], seed=seed)
            losses = [each.learn(samples, requests).loss for each in (compiled, eager)]
            np.testing.assert_allclose(*losses, rtol=1e-5)

    with pytest.warns(UserWarning, match="torch.compile failed") as caught:
        learn()
    (warning,) = caught
    assert "trying its public way: " in str(warning.message)
    assert "long story" not in str(warning.message)
    (way,) = compiled.compiled._ways
    assert isinstance(way, UpdatePrograms)
    assert not compiled.compiled.failed
    assert_near(compiled, eager, 1e-5)


@pytest.mark.slow
@needs_compiler
def test_without_private_functions_nothing_fails():
    """Another algorithm, whose program is not taken for the one above."""
    programs = CompiledRounds(DQN(double=False, loss_kind="mse"), private=False)
    compiled, eager = compiled_by(programs), population_of(BOTH, SPEC, programs.algorithm)
    samples, requests = one_round(compiled, [3, 2])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="torch.compile failed")
        found, expected = (each.learn(samples, requests) for each in (compiled, eager))
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-5)
    for mine, yours in zip(found.priorities, expected.priorities, strict=True):
        torch.testing.assert_close(mine[:2], yours[:2], rtol=0, atol=1e-5)
    assert_near(compiled, eager, 1e-5)


def assert_trained_eagerly(found, genomes, updates):
    """Weights after two rounds have the bits of a population that was never to be compiled."""
    kinds = kinds_of({"q": SPEC}, genomes, compiled=True)
    eager = population_of(genomes, SPEC, kinds=kinds)
    random = np.random.default_rng(0)
    for _ in range(2):
        requests = eager.requests(updates)
        eager.learn(random_samples(requests, SPEC, random, dtype=torch.float32), requests)
    for i, weights in enumerate(found):
        for name, value in weights.items():
            assert torch.equal(value, eager.state(i).online[name])


def test_when_compiling_fails_both_ways_updates_are_eager(monkeypatch):
    calls = []

    def failing(*args, **kwargs):
        def call(*_):
            calls.append(1)
            raise RuntimeError("no compiler\nand a long story")

        return call

    monkeypatch.setattr(torch, "compile", failing)
    updates = np.full(len(NARROW), 4)
    with pytest.warns(UserWarning, match="torch.compile failed") as caught:
        compiled = trained(NARROW, 2, updates, compiled=True)
    assert compiled.compiled.failed
    assert len(calls) == 2
    assert [str(warning.message) for warning in caught] == [
        "torch.compile failed, trying its public way: no compiler",
        "torch.compile failed, updates are eager from here on: no compiler",
    ]
    found = [compiled.state(i).online for i in range(len(NARROW))]
    assert_trained_eagerly(found, NARROW, updates)


FALLBACK = """
import warnings
from tests.population.test_compiled import BOTH, np, torch, trained

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    population = trained(BOTH, 2, np.full(2, 4), compiled=True)
found = [str(w.message) for w in caught if "torch.compile failed" in str(w.message)]
assert len(found) == 2 and "eager from here on" in found[1], found
assert population.compiled.failed and population.alive.all()
torch.save([population.state(i).online for i in range(2)], "online.pt")
"""


@pytest.mark.slow
def test_without_a_compiler_there_is_a_warning_for_each_way(tmp_path):
    environment = os.environ | {
        "CXX": str(tmp_path / "no-such-compiler"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", FALLBACK],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert_trained_eagerly(torch.load(tmp_path / "online.pt"), BOTH, np.full(2, 4))
