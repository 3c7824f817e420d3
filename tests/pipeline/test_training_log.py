"""Curves of a generation: each part by itself, each rank's episodes, one agent after the other."""

import json

import numpy as np
import pytest

from evorl.pipeline.training_log import PARTS, TrainingLog, curves_of, join_logs


def log(agents=2, iterations=10, updates=1):
    """Agent i ends an episode of return 10 i + part in every part, of 3 steps; loss 0.5."""
    found = TrainingLog(agents)
    for done in range(iterations):
        found.step(done, iterations, np.full(agents, 4))
        found.update(np.full(agents, updates), np.full(agents, 0.5 * updates))
        if done * PARTS % iterations == 0:
            for agent in range(agents):
                found.episode(agent, 10.0 * agent + found.part, 3)
    return found


def test_every_part_is_a_point():
    found = curves_of(log(), 100, 180)
    assert found["env_steps"] == [116, 132, 148, 164, 180]
    assert found["return"] == [[part, 10.0 + part] for part in range(5)]
    assert found["length"] == [[3.0, 3.0]] * 5
    assert found["loss"] == [[0.5, 0.5]] * 5
    assert found["updates_per_step"] == [[0.25, 0.25]] * 5
    assert found["measured"] == {}


def test_parts_without_a_step_are_left_out():
    found = curves_of(log(iterations=2), 0, 16)
    assert found["env_steps"] == [8, 16]
    assert len(found["return"]) == 2


def test_what_is_not_known_is_null():
    own = TrainingLog(2)
    own.step(0, 1, np.array([3, 0]))
    own.episode(0, 7.0)  # of an actor, which does not say how long it was
    own.measured = {"q_value": np.array([1.23456789, np.nan])}
    found = curves_of(own, 0, 3)
    assert found["return"] == [[7.0, None]]
    assert found["length"] == [[None, None]]
    assert found["loss"] == [[None, None]]
    assert found["measured"] == {"q_value": [1.2346, None]}
    json.dumps(found, allow_nan=False)


def test_ranks_have_different_agents():
    left, right = log(), log(agents=3)
    right.measured = {"entropy": np.array([1.0, 2.0, 3.0])}
    joined = join_logs([left.to_bytes(), right.to_bytes()], data=1)
    found = curves_of(joined, 0, 200)
    assert found["return"][0] == [0.0, 10.0, 0.0, 10.0, 20.0]
    assert found["measured"] == {"entropy": [None, None, 1.0, 2.0, 3.0]}


def test_ranks_that_train_the_same_agents_play_episodes_of_their_own():
    """Steps and updates are known to both of them; returns are of both."""
    left, right = log(), log()
    right.episode(1, 28.0, 9)  # in the last part, where it had 14, and 14 on the other rank
    found = curves_of(join_logs([left.to_bytes(), right.to_bytes()], data=2), 0, 80)
    assert found["return"][4] == pytest.approx([4.0, 56 / 3], rel=1e-4)
    assert found["length"][4] == [3.0, 5.0]
    assert found["updates_per_step"] == [[0.25, 0.25]] * 5
