"""Exploration against its definition, and one agent's draws against its neighbours."""

import numpy as np
import pytest

from evorl.algorithms.dqn import epsilon
from evorl.algorithms.noise import BLOCK, Exploration
from evorl.seeding import generator

ENVS, ACTIONS = 3, 5


def streams(agents, seed=1):
    return [generator(seed, "explore", 0, agent) for agent in agents]


def drawn(agents, rounds, rate=0.5):
    """(explore, actions), each [rounds, P, N]."""
    exploration = Exploration(ENVS, ACTIONS)
    exploration.reseed(streams(agents))
    found = [exploration.draw(np.full(len(agents), rate)) for _ in range(rounds)]
    return tuple(np.stack(part) for part in zip(*found, strict=True))


def test_draws_are_the_agents_own_stream_block_by_block():
    explore, actions = drawn([0, 1], 2 * BLOCK, rate=0.3)
    for agent, random in enumerate(streams([0, 1])):
        for block in range(2):
            chances = random.random((BLOCK, ENVS))
            choices = random.integers(ACTIONS, size=(BLOCK, ENVS))
            rounds = slice(block * BLOCK, (block + 1) * BLOCK)
            np.testing.assert_array_equal(explore[rounds, agent], chances < 0.3)
            np.testing.assert_array_equal(actions[rounds, agent], choices)


def test_another_agent_changes_nobody_elses_draws():
    rounds = BLOCK + 10
    alone, few, more = (drawn(list(range(size)), rounds) for size in (1, 2, 4))
    for part in range(2):
        np.testing.assert_array_equal(alone[part][:, 0], more[part][:, 0])
        np.testing.assert_array_equal(few[part], more[part][:, :2])
    assert (more[0][:, 0] != more[0][:, 1]).any()


def test_rates_of_zero_and_one_are_never_and_always():
    exploration = Exploration(ENVS, ACTIONS)
    exploration.reseed(streams([0, 1]))
    for _ in range(BLOCK + 1):
        explore, actions = exploration.draw(np.array([0.0, 1.0]))
        assert not explore[0].any()
        assert explore[1].all()
        assert ((actions >= 0) & (actions < ACTIONS)).all()


def test_frequencies():
    explore, actions = drawn([0], 20 * BLOCK, rate=0.2)
    count = explore.size  # 15,360: five standard errors of a share p are below 0.021
    assert abs(explore.mean() - 0.2) < 0.021
    np.testing.assert_allclose(np.bincount(actions.ravel()) / count, 1 / ACTIONS, atol=0.021)


def test_reseeding_drops_what_was_drawn_ahead():
    exploration = Exploration(ENVS, ACTIONS)
    exploration.reseed(streams([0]))
    first = [exploration.draw(np.array([0.5])) for _ in range(5)]
    exploration.reseed(streams([0]))
    again = [exploration.draw(np.array([0.5])) for _ in range(5)]
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(("steps", "expected"), [(0, 1.0), (50, 0.55), (100, 0.1), (9999, 0.1)])
def test_schedule_at_start_middle_end_and_after(steps, expected):
    one = np.ones(1)
    found = epsilon(np.array([steps]), 1.0 * one, 0.1 * one, 100 * one)
    assert found == pytest.approx(expected)
