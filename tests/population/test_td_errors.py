"""First TD errors of new windows are those that the next update finds with the same weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from evorl.algorithms.ddpg import DDPG, TD3
from evorl.algorithms.dqn import DQN
from evorl.algorithms.sac import SAC
from evorl.experience import PrioritisedSampler, ReplayBuffer, Samples, Transitions
from evorl.population import first_errors
from evorl.seeding import generator
from tests.algorithms.test_actor_critics import ACTION, ACTIONS, OBS, agents_of, make, random_round
from tests.population.test_normalizer import normalizing, shown
from tests.population.test_population import MIXED, SPEC, opened_gates
from tests.reference import places, population_of, random_samples

torch.set_num_threads(1)

STEPS = 3
COUNTS = [5, 1, 9, 0, 4, 7, 2, 3, 6, 8, 4, 5]  # windows of each agent


def windows(random, agents, size, action, steps=STEPS):
    """Some shorter than the others, and some that end in a termination."""
    count = len(agents)
    length = random.integers(1, steps + 1, count)
    rewards = 2 * random.normal(size=(count, steps))
    rewards[np.arange(steps) >= length[:, None]] = 0
    obs, next_obs = random.normal(size=(2, count, size))
    bootstrap = np.where(random.random(count) < 0.3, 0, length).astype(np.uint8)
    return Transitions(obs, action, rewards, next_obs, bootstrap, np.zeros(count, np.int64))


def found_by_an_update(population, transitions, agents, noise=None):
    """The same windows as the batches of a round: what priorities would become, [K]."""
    counts = np.bincount(agents, minlength=population.size)
    requests = population.requests((counts > 0).astype(np.int64), np.maximum(counts, 1))
    length = sum(int(np.prod(request.shape)) for request in requests)
    source = np.full(length, np.flatnonzero(agents == agents[0])[0])
    where = {}
    for agent, _, at in places(requests):
        source[at] = np.flatnonzero(agents == agent)
        where[agent] = at
    weight = np.zeros(length)
    for at in where.values():
        weight[at] = 1 / len(at)
    given = np.zeros((len(agents), 0)) if noise is None else noise
    fields = [*(field[source] for field in transitions[:5]), weight, source, given[source]]
    samples = Samples(*map(torch.from_numpy, fields))
    learned = population.learn(samples, requests)
    flat = torch.cat([own.reshape(-1) for own in learned.priorities]).numpy()
    found = np.empty(len(agents))
    for agent, at in where.items():
        found[agents == agent] = flat[at]
    return found


def check(population, transitions, agents, noise=None):
    before = [group.theta.clone() for group in population.groups]
    first = first_errors(population, transitions, agents, noise)
    assert all(map(torch.equal, before, (group.theta for group in population.groups)))
    expected = found_by_an_update(population, transitions, agents, noise)
    np.testing.assert_allclose(first, expected, rtol=1e-12, atol=1e-12)
    assert np.abs(first).min() > 0
    return first


def mixed_agents(random, size):
    return random.permutation(np.repeat(np.arange(size), COUNTS[:size]))


def behind(population, random, spec=SPEC):
    """Updates, so that targets are others than the networks."""
    requests = population.requests(np.full(population.size, 5))
    population.learn(random_samples(requests, spec, random, steps=STEPS), requests)
    return population


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("loss_kind", ["huber", "mse"])
def test_dqn(double, loss_kind):
    """Dueling and not, of every activation, with and without LayerNorm and gates."""
    random = np.random.default_rng(0)
    algorithm = DQN(double=double, loss_kind=loss_kind)
    population = opened_gates(population_of(MIXED, SPEC, algorithm, dtype=torch.float64))
    behind(population, random)
    assert not population._in_order
    agents = mixed_agents(random, population.size)
    actions = random.integers(0, SPEC.outputs, len(agents))
    check(population, windows(random, agents, SPEC.inputs, actions), agents)


@pytest.mark.parametrize("double", [False, True])
def test_dqn_with_masks_of_actions(double):
    random, masked = np.random.default_rng(1), replace(SPEC, mask=SPEC.outputs)
    population = population_of(MIXED, masked, DQN(double=double), dtype=torch.float64)
    behind(population, random, replace(SPEC, inputs=SPEC.inputs + SPEC.outputs))
    agents = mixed_agents(random, population.size)
    actions = random.integers(0, SPEC.outputs, len(agents))
    own = windows(random, agents, SPEC.inputs, actions)
    masks = random.random((2, len(agents), SPEC.outputs)) < 0.5
    masks[..., 0] |= ~masks.any(-1)
    free = own._replace(
        obs=np.concatenate((own.obs, np.ones_like(masks[0])), 1),
        next_obs=np.concatenate((own.next_obs, np.ones_like(masks[1])), 1),
    )
    own = free._replace(next_obs=np.concatenate((own.next_obs, masks[1]), 1))
    unmasked = first_errors(population, free, agents)
    assert (np.abs(check(population, own, agents) - unmasked) > 1e-6).any()


def test_dqn_with_normalised_observations_and_rewards():
    random = np.random.default_rng(2)
    population = shown(normalizing(dtype=torch.float64), random)
    behind(population, random)
    agents = mixed_agents(random, population.size)
    actions = random.integers(0, SPEC.outputs, len(agents))
    check(population, windows(random, agents, SPEC.inputs, actions), agents)


ACTOR_CRITICS = {"ddpg": DDPG(), "twin": DDPG(twin=True), "td3": TD3(), "sac": SAC()}


@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_actor_critics(name):
    random, algorithm = np.random.default_rng(3), ACTOR_CRITICS[name]
    population = make(algorithm, agents_of(algorithm))
    requests = population.requests(np.full(population.size, 6))
    population.learn(random_round(requests, algorithm, random), requests)
    agents = mixed_agents(random, population.size)
    actions = random.uniform(-1, 1, (len(agents), ACTIONS))
    noise = random.normal(size=(len(agents), algorithm.loss_noise(ACTION)))
    own = windows(random, agents, OBS, actions)
    first = check(population, own, agents, noise)
    # they are of the action that was taken
    other = first_errors(population, own._replace(action=-actions), agents, noise)
    assert (np.abs(first - other) > 1e-6).mean() > 0.9


def test_without_windows_there_are_no_errors():
    population = population_of(MIXED, SPEC)
    none = np.zeros(0, np.int64)
    own = windows(np.random.default_rng(0), none, SPEC.inputs, none)
    assert first_errors(population, own, none).shape == (0,)


@pytest.mark.parametrize("shared", [True, False])
def test_priorities_by_first_errors_are_those_after_an_update(shared):
    """One replay is told when windows come, the other when they were learned from."""
    random, size = np.random.default_rng(4), len(MIXED)
    population = behind(population_of(MIXED, SPEC, dtype=torch.float64), random)
    agents = mixed_agents(random, size)
    own = windows(random, agents, SPEC.inputs, random.integers(0, SPEC.outputs, len(agents)))
    errors = first_errors(population, own, agents)
    first, later = (
        PrioritisedSampler(
            ReplayBuffer(len(agents), (SPEC.inputs,), torch.float64, STEPS, 1 if shared else size),
            [generator(0, "sample", agent) for agent in range(size)],
        )
        for _ in range(2)
    )
    first.insert(own, agents, errors)
    later.insert(own, agents)
    place = np.arange(len(agents)) if shared else np.empty(len(agents), np.int64)
    for agent in () if shared else range(size):
        place[agents == agent] = np.arange(COUNTS[agent])
    later.priorities.update(agents, place, found_by_an_update(population, own, agents))
    np.testing.assert_allclose(
        first.priorities.tree.priorities(), later.priorities.tree.priorities(), rtol=1e-12
    )
    np.testing.assert_allclose(first.priorities._highest, later.priorities._highest, rtol=1e-12)
