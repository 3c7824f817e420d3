"""Scoring reads by the statistics of training, and adds nothing to them."""

import numpy as np
import pytest
import torch

from evorl.algorithms.base import Trained
from evorl.algorithms.dqn import DQN
from evorl.algorithms.ppo import PPO
from evorl.envs import EnvSpec, make_episodes
from evorl.envs.spaces import ActionSpec
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NORMALIZER, NetworkSpec, NormalizerSpec
from evorl.pipeline import play
from evorl.population.population import Population
from evorl.reporting import Console
from evorl.runs.agent import Interface, SavedAgent
from evorl.training.score import play_alone

torch.set_num_threads(1)

CARTPOLE = EnvSpec("CartPole-v1", "sync")
SEEDS = [1, 2, 3]


def population_of(algorithm):
    """Two agents that have seen other numbers and rewards each."""
    networks = algorithm.networks(NetworkSpec(4, 0, normalize=True), ActionSpec("discrete", 2))
    shapes = [{name: Architecture(hidden) for name in networks} for hidden in ((8,), (6, 6))]
    genomes = [Genome(i, own, algorithm.hyperparameters) for i, own in enumerate(shapes)]
    networks[NORMALIZER] = Trained(NormalizerSpec(4, True))
    population = Population(genomes, networks, algorithm)
    random = np.random.default_rng(0)
    see(population, random.normal([[[3.0]], [[-1.0]]], 2, (2, 7, 4)))
    return population


def see(population, obs):
    population.observe(obs.astype(np.float32))
    population.observe_rewards(np.ones(obs.shape[:2]), np.zeros(obs.shape[:2], bool))


def contents(population):
    """Every agent's weights and statistics, and the running returns, as bytes."""
    states = [population.state(i) for i in range(population.size)]
    rows = [{k: v.numpy().tobytes() for k, v in own.online.items()} for own in states]
    return rows, population.running_returns.tobytes()


@pytest.mark.parametrize("algorithm", [DQN(), PPO()], ids=["dqn", "ppo"])
def test_playing_leaves_statistics_as_they_are(algorithm):
    population = population_of(algorithm)
    before = contents(population)
    assert f"{NORMALIZER}.obs_mean" in before[0][0]
    episodes = make_episodes(CARTPOLE, 4)
    try:
        played = play(population, episodes, SEEDS, 30)
    finally:
        episodes.close()
    assert played.steps > 30
    assert contents(population) == before
    see(population, np.ones((2, 7, 4)))  # training would show
    after = contents(population)
    for own, was in zip(after[0], before[0], strict=True):
        changed = {name for name in own if own[name] != was[name]}
        assert f"{NORMALIZER}.obs_mean" in changed
        assert f"{NORMALIZER}.return_var" in changed
        assert all(name.startswith(NORMALIZER) for name in changed)


def test_scoring_one_agent_leaves_its_statistics_as_they_are():
    algorithm = DQN()
    population = population_of(algorithm)
    values = algorithm.model_dump(mode="json")
    for i in range(2):
        row = population.state(i).online
        agent = SavedAgent(
            population.genomes[i], population.specs, row, values, Interface((4,)), {}
        )
        before = {name: value.numpy().tobytes() for name, value in row.items()}
        played, failures = play_alone(agent, CARTPOLE, SEEDS, 30, Console())
        assert (played.returns.shape, failures) == ((1, 3), 0)
        assert {k: v.numpy().tobytes() for k, v in agent.parameters.items()} == before
