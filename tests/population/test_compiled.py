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
from evorl.population.compiled import WORTH_UPDATES, CompiledRounds, has_compiler, wants_compiling
from evorl.population.grouping import kinds_of
from tests.population.test_population import (
    MIXED,
    NINE,
    PARTS,
    SPEC,
    assert_padding_zero,
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


def as_rows_of_a_buffer(field):
    """With memory between the items, as a replay has it."""
    apart = torch.zeros(len(field), field[0].numel() + 3, dtype=field.dtype)
    view = apart[:, : field[0].numel()].view(field.shape)
    return view.copy_(field)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)], ids=["f32", "f64"]
)
def test_compiled_equals_eager(dtype, tolerance):
    genomes = MIXED[5:7]  # one group with LayerNorm, a gate and absent layers
    updates = np.array([7, 10])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="torch.compile failed")
        compiled = trained(genomes, 1, updates, dtype=dtype, compiled=True)
    assert_equal_to_eager(compiled, DQN(), updates, dtype, tolerance)


@pytest.mark.slow
@needs_compiler
def test_a_program_on_disk_is_not_taken_for_another():
    """Programs that differ inside of their loop only: with double Q-learning and without."""
    updates = np.full(2, 3)
    for algorithm in (DQN(double=True), DQN(double=False)):
        compiled = trained(NINE[:2], 1, updates, algorithm, dtype=torch.float32, compiled=True)
        assert not compiled.compiled.failed
        assert_equal_to_eager(compiled, algorithm, updates, torch.float32, 1e-5)


def assert_equal_to_eager(compiled, algorithm, updates, dtype, tolerance):
    """After one round of the data that `trained` gives."""
    genomes = compiled.genomes
    eager = population_of(genomes, SPEC, algorithm, dtype=dtype)
    requests = compiled.requests(updates)  # its batches are wider: the data lie elsewhere
    eager.learn(random_samples(requests, SPEC, np.random.default_rng(0), dtype=dtype), requests)
    for i in range(len(genomes)):
        a, b = compiled.state(i), eager.state(i)
        for part in PARTS:
            for name, value in getattr(a, part).items():
                torch.testing.assert_close(
                    value, getattr(b, part)[name], rtol=0, atol=tolerance, msg=f"{i} {part} {name}"
                )
    assert_padding_zero(compiled)


@pytest.mark.slow
@needs_compiler
def test_single_updates_equal_a_round_of_them():
    """A round of one update is a program of its own; rewards of three steps are folded in both."""

    def learned(rounds):
        population = population_of(NINE[:2], SPEC, DQN(), compiled=True)
        requests = population.requests(np.full(2, 4))
        random = np.random.default_rng(0)
        samples = random_samples(requests, SPEC, random, dtype=torch.float32, steps=3)
        (shape,) = (request.shape for request in requests)
        apart = [field.view(*shape, *field.shape[1:]) for field in samples]
        losses = []
        for part in np.split(np.arange(4), rounds):
            batch = Samples(*(field[part].flatten(0, 2) for field in apart))
            losses.append(population.learn(batch, population.requests(np.full(2, len(part)))).loss)
        assert not population.compiled.failed
        return population, np.mean(losses, 0)

    (one, loss), (other, expected) = learned(1), learned(4)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for i in range(2):
        for part in PARTS:
            for name, value in getattr(one.state(i), part).items():
                torch.testing.assert_close(
                    value, getattr(other.state(i), part)[name], rtol=0, atol=1e-5
                )


@pytest.mark.slow
@needs_compiler
def test_agents_that_see_images_are_compiled_too():
    spec = NetworkSpec(0, 3, image=(1, 6, 5), scale=1 / 255)
    architecture = Architecture((8,), channels=(2,), kernels=(3,), strides=(1,))
    genomes = [genome(i, architecture, batch_size=4) for i in range(2)]
    compiled, eager = (population_of(genomes, spec, DQN(), compiled=c) for c in (True, False))
    requests = compiled.requests(np.full(2, 3))
    samples = random_samples(
        requests, NetworkSpec(30, 3), np.random.default_rng(0), dtype=torch.float32
    )
    obs, later = (
        (40 * field.abs()).clamp(max=255).to(torch.uint8).view(-1, 1, 6, 5)
        for field in (samples.obs, samples.next_obs)
    )
    for population in (compiled, eager):
        population.learn(samples._replace(obs=obs, next_obs=later), requests)
    assert not compiled.compiled.failed
    for i in range(2):
        for name, value in compiled.state(i).online.items():
            expected = eager.state(i).online[name]
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)


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
    population = population_of(NINE[:2], SPEC, DQN(), compiled=True)
    torch._dynamo.utils.counters.clear()
    random = np.random.default_rng(0)
    sizes = (first, (2, 3), (1, 4), (5, 1))
    for size, updates in sizes:
        genomes = [resized(g, size) for g in NINE[:size]]
        fresh, eager = (population_of(genomes, SPEC, DQN()) for _ in range(2))
        population.rebuild(genomes, [fresh.state(i) for i in range(size)])
        requests = population.requests(np.full(size, updates))
        samples = random_samples(requests, SPEC, random, dtype=torch.float32)
        samples = Samples(*map(as_rows_of_a_buffer, samples))
        population.learn(samples, requests)
        eager.learn(samples, requests)
        for i in range(size):
            for name, value in population.state(i).online.items():
                torch.testing.assert_close(value, eager.state(i).online[name], rtol=0, atol=2e-5)
    assert not population.compiled.failed
    assert len(population.compiled._programs) == len(sizes)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.fixture
def traced_only(monkeypatch):
    """Nothing is compiled; sizes are settled before."""
    monkeypatch.setattr(CompiledRounds, "_backend", lambda self, graph, inputs: graph.forward)


@pytest.mark.parametrize(
    ("algorithm", "architecture"),
    [
        (DQN(), Architecture((8, 16))),
        (DQN(double=False, loss_kind="mse"), Architecture((8,), "tanh", dueling=True)),
        (DQN(), Architecture((8, 8), "gelu", True, True, gated=(False, True))),
    ],
)
@pytest.mark.parametrize("options", [{}, {"n_step": 3}, {"one_hot": True}])
def test_whatever_the_network_sizes_share_a_program(traced_only, algorithm, architecture, options):
    n_step, one_hot = options.get("n_step", 1), "one_hot" in options
    spec = NetworkSpec(6, 3, one_hot=one_hot)
    population = population_of([genome(0, architecture)], spec, algorithm, compiled=True)
    torch._dynamo.utils.counters.clear()
    random = np.random.default_rng(0)
    for size, updates, batch, wider in ((1, 3, 4, 1), (3, 3, 7, 5), (2, 1, 4, 1), (4, 2, 16, 9)):
        hidden = tuple(wider * units for units in architecture.hidden)
        grown = dataclasses.replace(architecture, hidden=hidden)
        genomes = [genome(i, grown, batch_size=batch) for i in range(size)]
        fresh = population_of(genomes, spec, algorithm)
        population.rebuild(genomes, [fresh.state(i) for i in range(size)])
        requests = population.requests(np.full(size, updates))
        samples = random_samples(requests, spec, random, steps=n_step, dtype=torch.float32)
        if one_hot:
            indices = torch.zeros_like(samples.action)
            samples = samples._replace(obs=indices, next_obs=indices)
        population.learn(Samples(*map(as_rows_of_a_buffer, samples)), requests)
    assert not population.compiled.failed
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_loop_over_agents_has_a_program_for_each_number_of_them(traced_only):
    """But not for each number of updates."""
    spec = NetworkSpec(0, 3, image=(1, 16, 16))
    convolved = Architecture((8,), channels=(4,), kernels=(3,), strides=(1,))
    population = population_of([genome(0, convolved)], spec, DQN(), compiled=True)
    torch._dynamo.utils.counters.clear()
    random = np.random.default_rng(0)
    for size, updates in ((2, 3), (3, 3), (3, 2), (3, 4), (2, 2)):
        genomes = [genome(i, convolved, batch_size=2) for i in range(size)]
        fresh = population_of(genomes, spec, DQN())
        population.rebuild(genomes, [fresh.state(i) for i in range(size)])
        requests = population.requests(np.full(size, updates))
        samples = random_samples(requests, NetworkSpec(256, 3), random, dtype=torch.float32)
        obs, later = (field.view(-1, 1, 16, 16) for field in (samples.obs, samples.next_obs))
        population.learn(samples._replace(obs=obs, next_obs=later), requests)
    assert not population.compiled.failed
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


@pytest.mark.slow
@needs_compiler
def test_in_half_precision_too():
    """Products are in bfloat16; so much of both that they are near, though never alike."""
    pair = [
        population_of(NINE[:2], SPEC, DQN(), compiled=compiled, half=torch.bfloat16)
        for compiled in (True, False)
    ]
    random = np.random.default_rng(0)
    requests = pair[0].requests(np.full(2, 3))
    samples = random_samples(requests, SPEC, random, dtype=torch.float32)
    losses = [population.learn(samples, requests).loss for population in pair]
    assert not pair[0].compiled.failed
    np.testing.assert_allclose(*losses, rtol=0.05)


@pytest.mark.slow
@needs_compiler
def test_a_program_called_directly_gives_the_same_bits(monkeypatch):
    """Rounds of 3, 2 and 3 updates, with the guards of torch.compile at every call and without."""
    genomes = NARROW[-3:]  # a group of two, and one of one

    def states():
        population = population_of(genomes, SPEC, DQN(), compiled=True)
        random = np.random.default_rng(0)
        for most in (3, 2, 3):
            requests = population.requests(most - np.arange(len(genomes)) % 2)
            population.learn(random_samples(requests, SPEC, random, dtype=torch.float32), requests)
        assert not population.compiled.failed
        return population, [population.state(i) for i in range(len(genomes))]

    direct, found = states()
    assert len({kind for kind, *_ in direct.compiled._programs}) == len(direct.groups)
    monkeypatch.setattr(CompiledRounds, "_found", lambda *_: None)
    guarded, expected = states()
    assert not guarded.compiled._programs
    for ours, theirs in zip(found, expected, strict=True):
        for part in PARTS:
            for name, value in getattr(ours, part).items():
                assert torch.equal(value, getattr(theirs, part)[name])


def test_when_compiling_fails_the_update_goes_on_eagerly(monkeypatch):
    calls = []

    def failing(*args, **kwargs):
        def call(*_):
            calls.append(1)
            raise RuntimeError("no compiler\nand a long story")

        return call

    monkeypatch.setattr(torch, "compile", failing)
    sizes = np.full(len(NARROW), 4)
    with pytest.warns(UserWarning, match=r"going on without it: no compiler$") as caught:
        compiled = trained(NARROW, 2, sizes, compiled=True)
    assert len(caught) == len(calls) == 1
    eager = population_of(NARROW, SPEC, DQN(), kinds=kinds_of(SPEC, NARROW, compiled=True))
    random = np.random.default_rng(0)
    for _ in range(2):
        requests = compiled.requests(sizes)
        eager.learn(random_samples(requests, SPEC, random, dtype=torch.float32), requests)
    for i in range(len(NARROW)):
        for name, value in compiled.state(i).online.items():
            assert torch.equal(value, eager.state(i).online[name])


FALLBACK = """
import warnings
from tests.population.test_population import MIXED, np, torch, trained

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    population = trained(MIXED[:3], 2, np.full(3, 4), compiled=True)
found = [w for w in caught if "torch.compile failed" in str(w.message)]
assert len(found) == 1, [str(w.message) for w in caught]
assert population.compiled.failed and population.alive.all()
torch.save([population.state(i).online for i in range(3)], "online.pt")
"""


@pytest.mark.slow
def test_without_a_compiler_there_is_one_warning(tmp_path):
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
    found = torch.load(tmp_path / "online.pt")
    kinds = kinds_of(SPEC, MIXED[:3], compiled=True)
    eager = population_of(MIXED[:3], SPEC, DQN(), kinds=kinds)
    random = np.random.default_rng(0)
    for _ in range(2):
        requests = eager.requests(np.full(3, 4))
        eager.learn(random_samples(requests, SPEC, random, dtype=torch.float32), requests)
    for i in range(3):
        for name, value in found[i].items():
            assert torch.equal(value, eager.state(i).online[name])
