"""What is measured once a generation is what plain torch finds, and changes nothing."""

import numpy as np
import pytest
import torch

from evorl.pipeline.training_context import TrainingContext
from tests.pipeline.test_learn import assert_same_agents, make_learn, make_population, run
from tests.reference import module_of


def drawn(learn, agents):
    requests = learn.population.requests(np.ones(agents, np.int64))
    streams = [np.random.default_rng(i) for i in range(agents)]
    return learn.sampler.peek(requests, streams), requests


def test_gradient_norms_and_values_are_those_of_each_agent_alone():
    """Double Q-learning, Huber loss, by torch modules and autograd."""
    population = make_population()
    learn = make_learn(population)
    samples, requests = drawn(learn, population.size)
    found = population.measure(samples, requests)
    assert set(found) == {"gradient_norm", "q_value"}
    at = 0
    for request in requests:
        for row, agent in enumerate(request.agents):
            place = at + row * request.width
            rows = slice(place, place + int(request.batch_sizes[row]))
            module, target = module_of(population, agent), module_of(population, agent)
            gamma = float(population.hyperparameter("gamma")[agent])
            q, reward = module(samples.obs[rows]), samples.rewards[rows, 0]
            with torch.no_grad():
                best = module(samples.next_obs[rows]).argmax(1, keepdim=True)
                future = target(samples.next_obs[rows]).gather(1, best).squeeze(1)
                goal = reward + gamma * (samples.bootstrap[rows] > 0) * future
            chosen = q.gather(1, samples.action[rows].unsqueeze(1)).squeeze(1)
            torch.nn.functional.smooth_l1_loss(chosen, goal).backward()
            norm = torch.sqrt(sum((own.grad**2).sum() for own in module.parameters()))
            assert found["gradient_norm"][agent] == pytest.approx(float(norm), rel=1e-3)
            assert found["q_value"][agent] == pytest.approx(
                float(q.detach().amax(1).mean()), rel=1e-4
            )
        at += len(request.agents) * request.width


@pytest.mark.parametrize("prioritised", [False, True])
def test_nothing_changes_by_it(prioritised):
    """Weights, moments and all that is drawn later, after it was asked between any two rounds."""
    plain, asked = (make_population() for _ in range(2))
    one, other = (make_learn(own, prioritised, learning_starts=8) for own in (plain, asked))
    run(one, rounds=7)
    context = TrainingContext(4)
    for _ in range(7):
        context.new_steps = np.full(4, 8)
        context.agent_steps = context.agent_steps + context.new_steps
        other(context)
        other.measure(context)
    assert set(context.log.measured) == {"gradient_norm", "q_value"}
    assert_same_agents(plain, asked, range(4))
    assert one.sampler._generators[0].random() == other.sampler._generators[0].random()


def test_it_is_the_same_every_time_and_nobody_dead_has_any():
    learn, context = make_learn(make_population()), TrainingContext(4)
    run(learn, rounds=1)
    learn.measure(context)
    first = context.log.measured
    learn.population.alive[2] = False
    learn.measure(context)
    again = context.log.measured
    for name, values in first.items():
        assert np.isfinite(values).all()
        assert again[name][[0, 1, 3]].tolist() == values[[0, 1, 3]].tolist()
        assert np.isnan(again[name][2])


def test_before_anything_is_learned_there_is_nothing_to_say():
    learn, context = make_learn(make_population(), items=0), TrainingContext(4)
    learn.measure(context)
    assert context.log.measured == {}
