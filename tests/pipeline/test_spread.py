"""The new population on every rank: the same bits, or an error that says what differs."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.config import EvaluationConfig
from evorl.distributed.world import World
from evorl.envs import EnvSpec, make_episodes
from evorl.errors import RunError
from evorl.genome import Architecture, Genome
from evorl.networks.layout import Problem
from evorl.pipeline.broadcast import Spread, digest_of
from evorl.pipeline.context import Context
from evorl.pipeline.evaluate import Evaluate
from evorl.pipeline.gather import Gather, refuse_other
from evorl.population.population import Population
from tests.pipeline.people import together

torch.set_num_threads(1)


@pytest.fixture
def parts():
    genomes = [
        Genome(i, Architecture(hidden), DQN(lr=1e-3 * (i + 1)).hyperparameters)
        for i, hidden in enumerate([(8,), (8, 8), (40,)])
    ]
    population = Population(genomes, Problem(4, 2), DQN(), seed=1)
    everybody = together(population)
    world = World.start(3)
    yield population, everybody, world
    world.close()


def test_what_was_gathered_comes_back(parts):
    population, everybody, world = parts
    context = Context(3, env_steps=7, updates=5)
    context.agent_steps[:] = (1, 2, 3)
    context.returns = np.arange(6.0).reshape(3, 2)
    gather, spread = Gather(world, population, everybody), Spread(world, population, everybody)
    gather.begin(Context(3))
    before = [digest_of(population.state(i)) for i in range(3)]
    population.alive[1] = False
    gather(context)
    assert (context.env_steps, context.updates, context.agents) == (7, 5, 3)
    assert context.fitness.tolist() == [0.5, 2.5, 4.5]
    spread(context)
    assert [digest_of(population.state(i)) for i in range(3)] == before
    assert population.alive.tolist() == [True, False, True]
    assert context.agent_steps.tolist() == [1, 2, 3]


@pytest.mark.parametrize("episodes", [2, 5])
def test_episodes_that_ranks_share_come_together(parts, episodes):
    """Two ranks along population, with two agents and one, times two along data."""
    whole, everybody, _ = parts
    slots = make_episodes(EnvSpec("CartPole-v1", "sync"), 6 * episodes)
    config = EvaluationConfig(episodes=episodes, max_steps=60)
    expected = Context(3)
    Evaluate(whole, slots, config, 7)(expected)
    messages = []
    for row, copy in itertools.product((slice(0, 2), slice(2, 3)), (0, 1)):
        population = Population(whole.genomes[row], whole.problem, DQN(), seed=1)
        context = Context(population.size)
        Evaluate(population, slots, config, 7, slice(copy, None, 2))(context)
        world = SimpleNamespace(data=2, data_rank=copy)
        messages.append(Gather(world, population, everybody)._message(context))
    slots.close()
    main = SimpleNamespace(data=2, data_rank=0, barrier=lambda where: None)
    main.gather = lambda own: messages
    found = Context(3)
    Gather(main, whole, everybody)(found)
    assert found.returns.tolist() == expected.returns.tolist()
    assert found.fitness.tolist() == expected.fitness.tolist()
    assert found.evaluation_steps == expected.evaluation_steps
    assert len(set(expected.returns[2])) > 1  # else their order would not show


def spoil_weight(population):
    population.groups[0].theta[0, 0] += 1


def spoil_target(population):
    population.groups[0].target[0, 0] += 1


def spoil_hyperparameter(population):
    population.groups[0].hp["lr"][0] *= 2


def spoil_genome(population):
    population.genomes[0] = dataclasses.replace(population.genomes[0], id=9)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoil_weight, "online differs in hidden0.weight"),
        (spoil_target, "target differs in hidden0.weight"),
        (spoil_hyperparameter, "lr is"),
        (spoil_genome, "group is another genome's"),
    ],
)
def test_a_rank_that_has_something_else_is_named(parts, monkeypatch, spoil, told):
    population, everybody, world = parts
    rebuild = population.rebuild

    def careless(*args):
        rebuild(*args)
        spoil(population)

    monkeypatch.setattr(population, "rebuild", careless)
    with pytest.raises(RunError, match=f"rank 0 does not have what .* sent: agent .*{told}"):
        Spread(world, population, everybody)(Context(3))


def test_ranks_with_the_same_agents_must_have_the_same_weights():
    refuse_other(1, {"0.online.head.bias": "a"}, {"0.online.head.bias": "a"})
    with pytest.raises(RunError, match=r"rank 1 has other weights .*: 0\.online\.head\.bias"):
        refuse_other(1, {"0.online.head.bias": "a"}, {"0.online.head.bias": "b"})


def test_bytes_that_changed_on_their_way_are_named(parts, monkeypatch):
    population, everybody, world = parts
    spread = Spread(world, population, everybody)
    told = spread._message

    def other(context):
        message = told(context)
        message["digests"]["1.target.head.bias"] = "0" * 64
        return message

    monkeypatch.setattr(spread, "_message", other)
    with pytest.raises(
        RunError, match=r"rank 0: target\.head\.bias of agent 1 is not what the main"
    ):
        spread(Context(3))
