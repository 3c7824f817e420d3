"""Random networks with a past, and what they compute."""

import copy
import math

import numpy as np
import torch

from evorl.genome import ACTIVATIONS, Architecture
from evorl.networks.layout import fresh_parameters, network_part, shapes
from evorl.networks.module import to_module
from evorl.networks.spec import NetworkSpec
from evorl.population.group import AgentState, newborn
from tests.population.checks import check
from tests.reference import genome, population_of, random_samples

VECTOR = NetworkSpec(inputs=6, outputs=3)
IMAGE = NetworkSpec(inputs=0, outputs=3, image=(2, 9, 8))
PARTS = ("online", "target", "m", "v")


def random_architecture(random, spec=VECTOR, **fixed):
    """Depths 1 to 4, some layers gated; small convolutions if the spec is an image."""
    hidden, gated = [int(random.integers(3, 40))], [False]
    for _ in range(int(random.integers(0, 4))):
        gated.append(bool(random.random() < 0.4))
        hidden.append(hidden[-1] if gated[-1] else int(random.integers(3, 40)))
    values = {
        "hidden": tuple(hidden),
        "gated": tuple(gated),
        "activation": str(random.choice(ACTIVATIONS)),
        "layer_norm": bool(random.random() < 0.5),
        "dueling": bool(random.random() < 0.5),
    }
    if spec.image is not None:
        count = int(random.integers(1, 3))
        values["channels"] = tuple(int(c) for c in random.integers(2, 9, count))
        values["kernels"] = tuple(int(k) for k in random.integers(2, 4, count))
        values["strides"] = (2, 1)[:count]
    return Architecture(**values | fixed)


def fresh(architecture, spec=VECTOR, seed=0):
    """The weights of a newborn's network, by segment."""
    return network_part(fresh_parameters({"q": spec}, genome(0, architecture), seed), "q")


def whole(state):
    """An agent of one network, whose weights go by its name."""
    return newborn({}).with_network("q", state)._replace(updates=state.updates)


def random_state(random, architecture, spec=VECTOR, dtype=torch.float32, updates=5000):
    """Of one network: a newborn's weights, gates opened; another target network, and moments."""
    own = fresh(architecture, spec, int(random.integers(1000)))
    online, target, m, v = ({} for _ in PARTS)
    for name, value in own.items():
        noise, m[name], v[name] = (
            torch.from_numpy(random.standard_normal(value.shape)).to(dtype) for _ in range(3)
        )
        moved = value.to(dtype) + (0.3 * noise if name.endswith("gate") else 0.01 * noise)
        online[name], target[name] = moved, moved + 0.02 * m[name]
        m[name], v[name] = 1e-3 * m[name], 1e-6 * v[name].square()
    return AgentState(online, target, m, v, updates)


def random_obs(random, spec=VECTOR, count=64, dtype=torch.float32):
    shape = spec.image or (spec.inputs,)
    return torch.from_numpy(random.standard_normal((count, *shape))).to(dtype)


@torch.no_grad()
def module_values(spec, architecture, parameters, obs):
    """Q values [B, A] of an exported module."""
    return to_module(spec, architecture, parameters)(obs)


def live_values(spec, architecture, state, obs):
    """Q values [B, A] of a live population."""
    population = population_of([genome(0, architecture)], spec, dtype=obs.dtype)
    population.rebuild(population.genomes, [whole(state)])
    check(population, [whole(state)])
    return population.groups[0].online["q"](obs[None])[0]


def change(before, after):
    """The largest difference, relative to the largest value."""
    return float((after - before).abs().max() / before.abs().max())


def assert_fits(spec, architecture, state):
    expected = shapes(spec, architecture)
    for part in PARTS:
        found = getattr(state, part)
        assert {name: tuple(value.shape) for name, value in found.items()} == expected, part
    assert all(type(size) is int for size in architecture.hidden + architecture.channels)


def assert_same_state(left, right):
    assert left.updates == right.updates
    for part in PARTS:
        mine, yours = getattr(left, part), getattr(right, part)
        assert mine.keys() == yours.keys()
        for name, value in mine.items():
            assert value.dtype == yours[name].dtype
            assert torch.equal(value, yours[name]), (part, name)


def copied(state):
    return copy.deepcopy(state)


def learn(population, random, updates):
    """So many updates of every agent on random data; the samples used."""
    requests, spec = population.requests(np.full(population.size, updates)), population.specs["q"]
    shape = spec.image or (spec.inputs,)
    flat = NetworkSpec(math.prod(shape), spec.outputs)
    samples = random_samples(requests, flat, random, dtype=population.dtype)
    obs, next_obs = (part.unflatten(1, shape) for part in (samples.obs, samples.next_obs))
    samples = samples._replace(obs=obs, next_obs=next_obs)
    population.learn(samples, requests)
    return samples, requests


def trained(architectures, updates, spec=VECTOR, *, dtype=torch.float32, seed=0, **changed):
    """A population of these after some updates."""
    genomes = [genome(i, a, **changed) for i, a in enumerate(architectures)]
    population = population_of(genomes, spec, dtype=dtype)
    random = np.random.default_rng(seed)
    while updates > 0:
        learn(population, random, min(updates, 100))
        updates -= 100
    assert population.alive.all()
    return population
