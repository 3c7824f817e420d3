"""The new population on every rank: the same bits, or an error that says what differs."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.config import EvaluationConfig
from evorl.distributed.mesh import Mesh
from evorl.distributed.world import World
from evorl.envs import EnvSpec, make_episodes
from evorl.errors import RunError
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NetworkSpec
from evorl.pipeline.evaluate import Evaluate
from evorl.pipeline.gather import Broadcast, Gather, check_same_weights
from evorl.pipeline.snapshot import Snapshot, digests
from evorl.pipeline.training_context import TrainingContext
from evorl.population.population import Population
from tests.pipeline.snapshots import snapshot_of
from tests.reference import population_of

torch.set_num_threads(1)


@pytest.fixture
def parts():
    genomes = [
        Genome(i, {"q": Architecture(hidden)}, DQN(lr=1e-3 * (i + 1)).hyperparameters)
        for i, hidden in enumerate([(8,), (8, 8), (40,)])
    ]
    population = population_of(genomes, NetworkSpec(4, 2), seed=1)
    world = World.start(3)
    yield population, world
    world.close()


def all_digests(population):
    return digests([population.state(i) for i in range(population.size)])


def test_what_was_gathered_comes_back(parts):
    population, world = parts
    context = TrainingContext(3, generation=4, env_steps=7, updates=5)
    context.agent_steps[:] = (1, 2, 3)
    context.returns = np.arange(6.0).reshape(3, 2)
    before = all_digests(population)
    population.alive[1] = False
    Gather(world, population)(context)
    snapshot = context.snapshot
    assert (snapshot.env_steps, snapshot.updates, snapshot.agents) == (7, 5, 3)
    assert (snapshot.ended, snapshot.generation, context.generation) == (4, 5, 4)
    assert snapshot.fitness.tolist() == [0.5, -np.inf, 4.5]
    Broadcast(world, population)(context)
    assert all_digests(population) == before
    assert population.alive.tolist() == [True, False, True]
    assert context.agent_steps.tolist() == [1, 2, 3]
    assert context.generation == 5
    assert (context.before["env_steps"], context.before["updates"]) == (7, 5)


def test_in_one_process_nothing_is_serialised_or_hashed(parts, monkeypatch):
    population, world = parts
    for name in ("serialise", "digest"):
        for module in ("gather", "snapshot"):
            path = f"evorl.pipeline.{module}.{name}"
            monkeypatch.setattr(path, lambda *_: pytest.fail("it was"), raising=False)
    context = TrainingContext(3)
    Gather(world, population)(context)
    Broadcast(world, population)(context)


def test_a_snapshot_survives_its_bytes(parts):
    population, _ = parts
    one = snapshot_of(population, generation=3)
    one.alive[2], one.best, one.evolved, one.env_steps = False, -12.5, True, 99
    one.returns, one.agent_steps = np.arange(6.0).reshape(3, 2), np.array([3, 4, 5])
    json.dumps(one.to_json(), allow_nan=False)
    two = Snapshot.from_bytes(one.to_bytes())
    assert two.to_json() == one.to_json()
    assert two.to_bytes() == one.to_bytes()
    assert digests(two.states) == digests(one.states)
    assert (two.best, two.evolved, two.ended, two.env_steps) == (-12.5, True, 3, 99)
    one.best = -np.inf  # nobody was ever any good
    assert Snapshot.from_bytes(one.to_bytes()).best == -np.inf


@pytest.mark.parametrize("episodes", [2, 5])
def test_episodes_that_ranks_share_come_together(parts, episodes):
    """Two ranks along population, with two agents and one, times two along data."""
    whole, _ = parts
    slots = make_episodes(EnvSpec("CartPole-v1", "sync"), 6 * episodes)
    config = EvaluationConfig(episodes=episodes, max_steps=60)
    expected = TrainingContext(3)
    Evaluate(whole, slots, config, 7)(expected)
    sent, proofs, contexts = [], [], []
    for row, copy in itertools.product((slice(0, 2), slice(2, 3)), (0, 1)):
        population = Population(whole.genomes[row], whole.networks, DQN(), seed=1)
        context = TrainingContext(population.size)
        Evaluate(population, slots, config, 7, slice(copy, None, 2))(context)
        own = Gather(SimpleNamespace(), population)._own(context)
        sent.append(own.to_bytes(weights=copy == 0))
        proofs.append(json.dumps(digests(own.states)).encode())
        contexts.append((population, context))
    slots.close()
    main = SimpleNamespace(size=4, data=2, data_rank=0, main=True, mesh=Mesh(2, 2))
    main.barrier, replies = (lambda where: None), [sent, proofs]
    main.gather = lambda own: replies.pop(0)
    main.trainers = SimpleNamespace(joined=True, size=4, gather=main.gather)
    population, context = contexts[0]
    Gather(main, population)(context)
    found = context.snapshot
    assert found.genomes == whole.genomes
    assert digests(found.states) == all_digests(whole)
    assert found.returns.tolist() == expected.returns.tolist()
    assert found.fitness.tolist() == expected.returns.mean(1).tolist()
    assert found.evaluation_steps == expected.evaluation_steps
    assert len(set(expected.returns[2])) > 1  # else their order would not show
    assert context.agents == 2  # the context stays this rank's


def test_a_rank_whose_agents_are_not_those_of_the_snapshot_is_named(parts):
    population, _ = parts
    snapshot = snapshot_of(population)
    own = digests(snapshot.states)
    sent = [own[:2], own[:2], own[2:], own[2:]]
    team = SimpleNamespace(gather=lambda own: [json.dumps(each).encode() for each in sent])
    check_same_weights(team, Mesh(2, 2), population, snapshot)
    sent[1] = [own[0], "0" * 64]
    with pytest.raises(RunError, match="rank 1: agent 1 has other weights than on the main rank"):
        check_same_weights(team, Mesh(2, 2), population, snapshot)
