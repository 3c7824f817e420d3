"""Agents whose epochs end early: their rows stay, and so do their losses and step counts."""

import numpy as np
import pytest
import torch

from evorl.algorithms import Loss
from evorl.algorithms.ppo import PPO
from evorl.envs import ActionSpec
from evorl.experience import RolloutBatch
from evorl.genome import Architecture, Genome
from evorl.networks import NetworkSpec
from evorl.population import Population

torch.set_num_threads(1)

UPDATES, SAMPLES = 8, 16


class Unstoppable(PPO):
    """A loss of one's own, which says nothing of stopping."""

    def loss(self, networks, targets, batch, hp):
        return Loss(super().loss(networks, targets, batch, hp).loss)


def population(algorithm=None):
    """The second of three agents stops as soon as its policy has moved."""
    algorithm, architecture = algorithm or PPO(), Architecture((16,))
    networks = algorithm.networks(NetworkSpec(3, 0), ActionSpec("discrete", 4))
    genomes = [
        Genome(
            i,
            {"policy": architecture, "value": architecture},
            algorithm.hyperparameters | {"lr": 2e-2, "target_kl": 2e-3 if i == 1 else 0.0},
        )
        for i in range(3)
    ]
    return Population(genomes, networks, algorithm, seed=3)


def learn(updates, algorithm=None):
    """The first updates of a round; the population, and what it learned."""
    own = population(algorithm)
    random = torch.Generator().manual_seed(5)
    obs = torch.randn(UPDATES, 3, SAMPLES, 3, generator=random)
    action = torch.randint(4, (UPDATES, 3, SAMPLES), generator=random)
    advantage = torch.randn(UPDATES, 3, SAMPLES, generator=random)
    with torch.no_grad():
        judged = [own.log_prob(o, a).clone() for o, a in zip(obs, action, strict=True)]
    weight = torch.full_like(advantage, 1 / SAMPLES)
    fields = (obs, action, torch.stack(judged), advantage, advantage, weight)
    count = np.full(3, updates)
    batch = RolloutBatch(*(field[:updates].flatten(0, 2) for field in fields))
    return own, own.learn(batch, own.requests(count, np.full(3, SAMPLES)))


def test_nothing_counts_after_an_agent_has_stopped():
    """Compiled, too: tests/algorithms/test_policy_gradients.py compares that with plain PyTorch."""
    whole, all_of_it = learn(UPDATES)
    made = int(all_of_it.updates[1])
    assert all_of_it.updates.tolist() == [UPDATES, made, UPDATES]
    assert 0 < made < UPDATES
    until, first = learn(made)
    assert first.updates.tolist() == [made] * 3
    assert all_of_it.loss[1] == pytest.approx(first.loss[1], rel=1e-6)
    for i, same in enumerate([False, True, False]):
        before, after = until.state(i).online, whole.state(i).online
        assert all(torch.equal(before[name], after[name]) for name in before) == same


def test_a_loss_that_never_stops_anybody_counts_its_updates():
    own, learned = learn(UPDATES, Unstoppable())
    assert learned.updates.tolist() == [UPDATES] * 3
    assert [own.state(i).updates for i in range(3)] == [UPDATES] * 3
    assert np.isfinite(learned.loss).all()
