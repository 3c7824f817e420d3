"""Noise against its definition, and one agent's draws against its neighbours."""

import numpy as np
import pytest

from evorl.algorithms.ddpg import DDPG
from evorl.algorithms.dqn import DQN
from evorl.algorithms.noise import BLOCK, NoiseStreams, coloured_noise
from evorl.algorithms.sac import SAC
from evorl.envs.spaces import ActionSpec
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NetworkSpec
from evorl.population.population import Population
from evorl.seeding import generator

ENVS, ACTIONS = 3, 5


def streams(agents, seed=1):
    return [generator(seed, "explore", 0, agent) for agent in agents]


def make_noise(agents):
    noise = NoiseStreams(DQN(), ENVS, ActionSpec("discrete", ACTIONS))
    noise.reseed(streams(agents))
    return noise


def drawn(agents, rounds):
    """(chance, action), each [rounds, P, N]."""
    noise = make_noise(agents)
    found = [noise.draw() for _ in range(rounds)]
    assert all(set(own) == {"chance", "action"} for own in found)
    return tuple(np.stack([own[name] for own in found]) for name in ("chance", "action"))


def test_draws_are_the_agents_own_stream_block_by_block():
    chance, actions = drawn([0, 1], 2 * BLOCK)
    for agent, random in enumerate(streams([0, 1])):
        for block in range(2):
            chances = random.random((BLOCK, ENVS))
            choices = random.integers(ACTIONS, size=(BLOCK, ENVS))
            rounds = slice(block * BLOCK, (block + 1) * BLOCK)
            np.testing.assert_array_equal(chance[rounds, agent], chances)
            np.testing.assert_array_equal(actions[rounds, agent], choices)


def test_another_agent_changes_nobody_elses_draws():
    rounds = BLOCK + 10
    alone, few, more = (drawn(list(range(size)), rounds) for size in (1, 2, 4))
    for part in range(2):
        np.testing.assert_array_equal(alone[part][:, 0], more[part][:, 0])
        np.testing.assert_array_equal(few[part], more[part][:, :2])
    assert (more[0][:, 0] != more[0][:, 1]).any()


def test_rates_of_zero_and_one_are_never_and_always():
    chance, actions = drawn([0, 1], BLOCK + 1)
    assert not (chance < 0.0).any()
    assert (chance < 1.0).all()
    assert ((actions >= 0) & (actions < ACTIONS)).all()


def test_frequencies():
    chance, actions = drawn([0], 20 * BLOCK)
    count = chance.size  # 15,360: five standard errors of a share p are below 0.021
    assert abs((chance < 0.2).mean() - 0.2) < 0.021
    np.testing.assert_allclose(np.bincount(actions.ravel()) / count, 1 / ACTIONS, atol=0.021)


def test_reseeding_drops_what_was_drawn_ahead():
    noise = make_noise([0])
    first = [noise.draw()["chance"] for _ in range(5)]
    noise.reseed(streams([0]))
    again = [noise.draw()["chance"] for _ in range(5)]
    np.testing.assert_array_equal(first, again)


class Continuous(DQN):
    """Noise of the action's own shape."""

    def noise(self, random, shape, action):
        return {"disturbance": random.standard_normal((*shape, *action.shape))}


def test_noise_may_have_any_shape():
    noise = NoiseStreams(Continuous(), ENVS, ActionSpec("continuous", None, (2,)))
    noise.reseed(streams([0, 1]))
    random = streams([0, 1])[1]
    np.testing.assert_array_equal(
        np.stack([noise.draw()["disturbance"][1] for _ in range(BLOCK)]),
        random.standard_normal((BLOCK, ENVS, 2)),
    )


@pytest.mark.parametrize(("steps", "expected"), [(0, 1.0), (50, 0.55), (100, 0.1), (9999, 0.1)])
def test_schedule_at_start_middle_end_and_after(steps, expected):
    hp = {"epsilon_start": 1.0, "epsilon_end": 0.1, "epsilon_steps": 100}
    own = {name: np.array([value]) for name, value in hp.items()}
    assert DQN().exploration(own, np.array([steps])) == pytest.approx(expected)


# coloured noise

COLORS = (0.0, 1.0, 2.0)
SERIES = (2000, 2)


def coloured(color, length=BLOCK, seed=0):
    return coloured_noise(np.random.default_rng(seed), (length, *SERIES), color)


def kept(values):
    """The correlation [T, ...] with the step before."""
    return float((values[1:] * values[:-1]).mean() / (values * values).mean())


@pytest.mark.parametrize("length", [BLOCK, BLOCK - 1])
@pytest.mark.parametrize("color", COLORS)
def test_coloured_noise_is_standard_normal_at_every_step(color, length):
    found = coloured(color, length)
    assert (found.shape, found.dtype) == ((length, *SERIES), np.float32)
    assert found.std() == pytest.approx(1, abs=0.05)
    each = found.reshape(length, -1)  # five standard errors of 4,000 numbers
    np.testing.assert_allclose(each.std(1), 1, atol=0.06)
    np.testing.assert_allclose(each.mean(1), 0, atol=0.08)
    np.testing.assert_allclose((np.abs(each) < 1).mean(1), 0.6827, atol=0.04)


def test_the_more_colour_the_longer_a_direction_is_kept():
    white, pink, red = (kept(coloured(color)) for color in COLORS)
    assert abs(white) < 0.01
    assert 0.5 < pink < 0.9
    assert red > 0.95


@pytest.mark.parametrize("color", [*COLORS, 0.5])
def test_power_falls_with_frequency_by_the_colour(color):
    power = (np.abs(np.fft.rfft(coloured(color), axis=0)) ** 2).mean((1, 2))
    places = np.arange(1, BLOCK // 2)  # neither the mean nor the highest, which is real
    slope = np.polyfit(np.log(places), np.log(power[places]), 1)[0]
    assert slope == pytest.approx(-color, abs=0.03)


@pytest.mark.parametrize("color", COLORS)
def test_coloured_noise_is_its_generators_own(color):
    assert coloured(color).tobytes() == coloured(color).tobytes()
    assert coloured(color).tobytes() != coloured(color, seed=1).tobytes()


@pytest.mark.parametrize("algorithm", [DDPG(noise_color=1), SAC(noise_color=1)])
def test_actions_before_learning_are_uniform_in_any_colour(algorithm):
    action = ActionSpec("continuous", None, (2,), np.dtype(np.float32))
    networks = algorithm.networks(NetworkSpec(3, 0), action)
    shapes = {
        name: Architecture((8,))
        for name in networks
        if isinstance(networks[name].spec, NetworkSpec)
    }
    genomes = [Genome(i, shapes, algorithm.hyperparameters) for i in range(2)]
    population = Population(genomes, networks, algorithm)
    noise = NoiseStreams(algorithm, 2000, action)
    noise.reseed(streams([0, 1]))
    early = population.exploration(np.full(2, algorithm.learning_starts - 1))
    obs = np.zeros((2, 2000, 3), np.float32)
    actions = np.stack([population.act(obs, noise.draw(), early) for _ in range(20)])
    assert (np.abs(actions) <= 1).all()
    for each in (actions[0], actions[-1], actions[:, 0], actions[:, 1]):
        shares = np.histogram(each, 10, (-1, 1))[0] / each.size
        np.testing.assert_allclose(shares, 0.1, atol=0.02)
    assert kept(actions) > 0.4
    assert abs((actions[:, 0] * actions[:, 1]).mean()) < 0.03  # each agent has its own
