"""A group whose agents are all dead is passed by, whatever the algorithm."""

import numpy as np
import pytest
import torch

from evorl.algorithms.ppo import PPO
from evorl.envs.spaces import ActionSpec
from evorl.experience.transitions import RolloutBatch
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NetworkSpec
from evorl.population.optimizer import Coefficients, adam_, stopped
from evorl.population.population import Population

ACTION = ActionSpec("discrete", 3)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dead", [[0], [0, 1, 2]])
def test_the_others_learn(compiled, dead):
    algorithm = PPO()
    genomes = [
        Genome(
            i,
            dict.fromkeys(("policy", "value"), Architecture((8,), kind)),
            algorithm.hyperparameters | {"batch_size": 4},
        )
        for i, kind in enumerate(("relu", "tanh", "tanh"))
    ]
    networks = algorithm.networks(NetworkSpec(4, 0), ACTION)
    population = Population(genomes, networks, algorithm, compiled=compiled)
    if compiled:
        population.compiled._ways.clear()  # what is not compiled is done the same way, eager
    population.alive[dead] = False
    requests = population.requests(np.full(3, 2))
    count = sum(int(np.prod(request.shape)) for request in requests)
    numbers = torch.randn(3, count)
    samples = RolloutBatch(
        torch.randn(count, 4), torch.randint(3, (count,)), *numbers, torch.full((count,), 0.25)
    )
    learned = population.learn(samples, requests)
    assert learned.updates.tolist() == [0 if i in dead else 2 for i in range(3)]


def test_what_has_stopped_keeps_its_row_whatever_its_gradient():
    numbers = torch.tensor([0.1, 0.001, -1.0, 1e-8, 0.0, torch.inf])[:, None, None].expand(6, 2, 1)
    going = torch.tensor([[True], [False]])
    theta, m, v = (torch.ones(2, 3) for _ in range(3))
    gradient = torch.tensor([[1.0, 2.0, 3.0], [torch.inf, torch.nan, 1.0]])
    gradient = torch.where(going, gradient, 0)  # as updates do
    c = Coefficients(*stopped(numbers, going).unbind(0))
    adam_(theta, m, v, gradient, c, torch.empty(2, 3))
    for matrix in (theta, m, v):
        assert torch.equal(matrix[1], torch.ones(3))
    assert not torch.equal(theta[0], torch.ones(3))
