"""Agents whose epochs end early: their rows stay, and so do their losses and step counts."""

import numpy as np
import pytest
import torch

from evorl.algorithms.ppo import PPO
from evorl.envs import ActionSpec
from evorl.experience import RolloutBatch
from evorl.genome import Architecture, Genome
from evorl.networks import NetworkSpec
from evorl.population import Population
from evorl.population.compiled import has_compiler

torch.set_num_threads(1)

UPDATES, SAMPLES = 8, 16


def population(compiled):
    """The second of three agents stops as soon as its policy has moved."""
    algorithm, architecture = PPO(), Architecture((16,))
    networks = algorithm.networks(NetworkSpec(3, 0), ActionSpec("discrete", 4))
    genomes = [
        Genome(
            i,
            {"policy": architecture, "value": architecture},
            algorithm.hyperparameters | {"lr": 2e-2, "target_kl": 2e-3 if i == 1 else 0.0},
        )
        for i in range(3)
    ]
    return Population(genomes, networks, algorithm, seed=3, compiled=compiled)


def learn(updates, compiled):
    """The first updates of a round; the population, and what it learned."""
    own = population(compiled)
    random = torch.Generator().manual_seed(5)
    obs = torch.randn(UPDATES, 3, SAMPLES, 3, generator=random)
    action = torch.randint(4, (UPDATES, 3, SAMPLES), generator=random)
    advantage = torch.randn(UPDATES, 3, SAMPLES, generator=random)
    with torch.no_grad():
        judged = [own.judge(o, a)[0].clone() for o, a in zip(obs, action, strict=True)]
    weight = torch.full_like(advantage, 1 / SAMPLES)
    fields = (obs, action, torch.stack(judged), advantage, advantage, weight)
    count = np.full(3, updates)
    batch = RolloutBatch(*(field[:updates].flatten(0, 2) for field in fields))
    return own, own.learn(batch, own.requests(count, np.full(3, SAMPLES)))


NEEDS = pytest.mark.skipif(not has_compiler(), reason="torch.compile needs g++")
WAYS = [False, pytest.param(True, marks=[NEEDS, pytest.mark.slow])]


@pytest.mark.parametrize("compiled", WAYS, ids=["eager", "compiled"])
def test_nothing_counts_after_an_agent_has_stopped(compiled):
    whole, all_of_it = learn(UPDATES, compiled)
    made = int(all_of_it.updates[1])
    assert all_of_it.updates.tolist() == [UPDATES, made, UPDATES]
    assert 0 < made < UPDATES
    until, first = learn(made, compiled)
    assert first.updates.tolist() == [made] * 3
    assert all_of_it.loss[1] == pytest.approx(first.loss[1], rel=1e-6)
    for i, same in enumerate([False, True, False]):
        before, after = until.state(i).online, whole.state(i).online
        assert all(torch.equal(before[name], after[name]) for name in before) == same
