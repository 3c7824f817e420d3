"""Catch: a legal environment, whose optimum is what it says."""

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

from evorl.envs.catch import LEFT, RIGHT, SIZE, STAY


def landing(now, before):
    """Where the ball will land, from the two boards of an observation."""
    (row, column), (_, last) = (np.argwhere(board[:-1])[0] for board in (now, before))
    drift = int(column - last)
    for _ in range(SIZE - 1 - row):
        if not 0 <= column + drift < SIZE:
            drift = -drift
        column += drift
    return int(column)


def test_gymnasium_likes_it():
    check_env(gym.make("evorl.envs.catch:Catch-v0", render_mode="rgb_array").unwrapped)


def test_who_reads_both_boards_catches_every_ball():
    env = gym.make("evorl.envs.catch:Catch-v0")
    for seed in range(200):
        obs, _ = env.reset(seed=seed)
        ended, action, total, steps = False, STAY, 0.0, 0
        while not ended:
            obs, reward, ended, truncated, _ = env.step(action)
            assert not truncated
            total, steps = total + reward, steps + 1
            if not ended:
                target, paddle = landing(*obs), int(np.flatnonzero(obs[0, -1])[0])
                action = LEFT if target < paddle else RIGHT if target > paddle else STAY
        assert (total, steps) == (1.0, SIZE - 1)


def test_who_stands_still_seldom_does():
    env = gym.make("evorl.envs.catch:Catch-v0")
    caught = 0
    for seed in range(300):
        env.reset(seed=seed)
        ended = False
        while not ended:
            _, reward, ended, _, _ = env.step(STAY)
        caught += reward > 0
    assert 0.02 < caught / 300 < 0.2
