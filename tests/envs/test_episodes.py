"""One episode a slot, the same as playing single environments by hand."""

from contextlib import closing

import gymnasium
import numpy as np
import pytest

from evorl.envs import EnvSpec, make_episodes

from . import tiny

COUNT = 5


def policy(obs):
    """Some fixed rule, so that actions depend on what is seen."""
    return (np.abs(obs.reshape(len(obs), -1).sum(1) * 1000).astype(np.int64)) % 2


def play(env_id, backend, seeds, **kwargs):
    """Return and length of every slot's episode, and its last observation."""
    if backend == "envpool":
        pytest.importorskip("envpool")
    with closing(make_episodes(EnvSpec(env_id, backend, kwargs), len(seeds))) as episodes:
        slots = np.arange(len(seeds))
        episodes.start(seeds, slots)
        returns, lengths = np.zeros(len(seeds)), np.zeros(len(seeds), int)
        while slots.size:
            before, others = episodes.obs.copy(), np.setdiff1d(np.arange(len(seeds)), slots)
            reward, ended = episodes.step(policy(episodes.obs[slots]), slots)
            np.testing.assert_array_equal(episodes.obs[others], before[others])
            returns[slots] += reward
            lengths[slots] += 1
            slots = slots[~ended]
    return returns, lengths, episodes.obs


def by_hand(env_id, seed, **kwargs):
    env = gymnasium.make(env_id, disable_env_checker=True, **kwargs)
    obs, _ = env.reset(seed=seed)
    total, steps, over = 0.0, 0, False
    while not over:
        action = policy(np.asarray(obs, np.float32)[None])[0]
        obs, reward, terminated, truncated, _ = env.step(action)
        total, steps, over = total + np.float32(reward), steps + 1, terminated or truncated
    env.close()
    return total, steps, np.array(obs, np.float32)


@pytest.mark.parametrize("backend", ["sync", "async", "native"])
@pytest.mark.parametrize("env_id", ["TinyNative-v0", "CartPole-v1"])
def test_equals_single_environments_played_by_hand(env_id, backend):
    seeds = [4, 8, 15, 16, 23]
    returns, lengths, last = play(env_id, backend, seeds)
    for slot, seed in enumerate(seeds):
        total, steps, obs = by_hand(env_id, seed)
        assert (returns[slot], lengths[slot]) == (total, steps)
        np.testing.assert_array_equal(last[slot], obs)


def test_only_active_slots_are_stepped():
    before = tiny.steps_taken
    _, lengths, last = play("Tiny-v0", "sync", range(COUNT))
    assert tiny.steps_taken - before == lengths.sum() + 1  # one to try it out
    np.testing.assert_array_equal(lengths, tiny.length(last[:, 0].astype(int)))
    assert len(set(lengths)) > 1


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_slots_begin_one_after_another(backend):
    """Each with its own seed, while the others stay where they are."""
    with closing(make_episodes(EnvSpec("Tiny-v0", backend), COUNT)) as episodes:
        assert episodes.seeds_some
        episodes.start([7, 8], np.array([3, 1]))
        for slot, seed in ((3, 7), (1, 8)):
            first, _ = gymnasium.make("Tiny-v0").reset(seed=seed)
            np.testing.assert_array_equal(episodes.obs[slot], first)
        episodes.step(np.zeros(1, np.int64), np.array([3]))
        moved = episodes.obs[3].copy()
        episodes.start([7], np.array([1]))
        np.testing.assert_array_equal(episodes.obs[3], moved)
        np.testing.assert_array_equal(moved - episodes.obs[1], [0, 1])  # a step further


def test_envpool_steps_a_subset():
    seeds = [4, 8, 15, 16, 23]
    returns, lengths, last = play("CartPole-v1", "envpool", seeds)
    np.testing.assert_array_equal(returns, lengths)
    assert len(set(lengths)) > 1
    assert (abs(last[:, 2]) > 0.2094395).all()  # where they fell, not where they were reset
    alone = play("CartPole-v1", "envpool", seeds[2:3])
    assert alone[0][0] == returns[2]
    np.testing.assert_array_equal(alone[2][0], last[2])
    cut = play("CartPole-v1", "envpool", seeds, max_episode_steps=6)
    np.testing.assert_array_equal(cut[1], 6)
