"""What every backend must give: true transitions, and randomness keyed by seeds."""

import multiprocessing
from contextlib import closing

import numpy as np
import pytest

from evorl.envs import EnvSpec, make_vector_env

from . import tiny

AGENTS, ENVS = 3, 2
SLOTS = AGENTS * ENVS
TINY = [("Tiny-v0", "sync"), ("Tiny-v0", "async"), ("TinyNative-v0", "native")]
CARTPOLE = [("CartPole-v1", backend) for backend in ("sync", "async", "native", "envpool")]


def make(env_id, backend, **kwargs):
    if backend == "envpool":
        pytest.importorskip("envpool")
    spec = EnvSpec(env_id, backend, kwargs)
    return closing(make_vector_env(spec, num_agents=AGENTS, num_envs=ENVS))


def play(env, seeds, steps, seed=0):
    """Every Step, with the observation that was acted on and the actions before it."""
    rng = np.random.default_rng(seed)
    obs = env.reset(seeds)
    for _ in range(steps):
        actions = rng.integers(env.action.n, size=env.num_envs)
        step = env.step(actions)
        yield obs, actions, step
        obs = step.obs


def rows(step):
    return np.ones(SLOTS, bool) if step.valid is None else step.valid


@pytest.mark.parametrize(("env_id", "backend"), TINY)
def test_every_transition_is_true(env_id, backend):
    seen = set()
    with make(env_id, backend) as env:
        assert (env.backend, env.num_envs, env.action.n) == (backend, SLOTS, 2)
        assert env.max_episode_steps is None
        late = np.zeros(SLOTS, bool)  # native next-step slots that are to be reset
        for obs, actions, step in play(env, range(SLOTS), 120):
            number, steps = obs.T.astype(int)
            valid, ended = rows(step), step.terminated | step.truncated
            np.testing.assert_array_equal(valid, ~late)
            terminated, truncated = tiny.ends(number, steps + 1)
            np.testing.assert_array_equal(step.terminated[valid], terminated[valid])
            np.testing.assert_array_equal(step.truncated[valid], truncated[valid])
            truth = np.stack([number, steps + 1], 1)
            np.testing.assert_array_equal(step.next_obs[valid], truth[valid])
            gained = tiny.reward(steps + 1, actions).astype(np.float32)
            np.testing.assert_array_equal(step.reward[valid], gained[valid])
            np.testing.assert_array_equal(step.obs[~ended], step.next_obs[~ended])
            assert not ended[~valid].any()
            assert (step.obs[~valid, 1] == 0).all()
            if env_id == "TinyNative-v0":
                late = ended
            else:
                assert step.valid is None
                assert (step.obs[ended, 1] == 0).all()
                assert (step.obs is step.next_obs) == (not ended.any())
            seen |= set(zip(step.terminated, step.truncated, strict=True))
    assert len(seen) == 4  # neither, either and both


@pytest.mark.parametrize(("env_id", "backend"), CARTPOLE)
@pytest.mark.parametrize("limit", [500, 6])
def test_cartpole_moves_as_its_physics_say(env_id, backend, limit):
    with make(env_id, backend, max_episode_steps=limit) as env:
        assert env.max_episode_steps == limit
        assert (env.observation.shape, env.observation.dtype) == ((4,), np.float32)
        age = np.zeros(SLOTS, int)
        ends = cuts = 0
        for obs, _, step in play(env, range(SLOTS), 150):
            valid, ended = rows(step), step.terminated | step.truncated
            moved = obs[:, [0, 2]] + 0.02 * obs[:, [1, 3]]  # a reset in between would break this
            np.testing.assert_allclose(step.next_obs[valid][:, [0, 2]], moved[valid], atol=1e-6)
            fallen = (abs(step.next_obs[:, 0]) > 2.4) | (abs(step.next_obs[:, 2]) > 0.2094395)
            np.testing.assert_array_equal(step.terminated, fallen)
            age = np.where(valid, age + 1, 0)
            np.testing.assert_array_equal(step.truncated, age >= limit)
            if step.valid is None and backend != "native":
                age[ended] = 0
                assert (abs(step.obs[ended]) <= 0.05).all()
            assert (abs(step.obs[~valid]) <= 0.05).all()
            ends, cuts = ends + step.terminated.sum(), cuts + step.truncated.sum()
        assert (ends > 0, cuts > 0) == ((True, False) if limit == 500 else (False, True))


def record(env, seeds, steps=60):
    return [
        np.concatenate([np.asarray(field, np.float64).reshape(SLOTS, -1) for field in step[:5]], 1)
        for _, _, step in play(env, seeds, steps)
    ]


@pytest.mark.parametrize(("env_id", "backend"), TINY + CARTPOLE)
def test_seeds_give_the_bytes(env_id, backend):
    seeds = [7, 3, 11, 5, 2, 13]
    with make(env_id, backend) as env:
        first = np.stack(record(env, seeds))
        again = np.stack(record(env, seeds))  # a reset in the middle of episodes forgets them
        other = np.stack(record(env, [7, 3, 11, 500, 2, 13]))
    np.testing.assert_array_equal(first, again)
    changed = (first != other).any(axis=(0, 2))
    expected = [2, 3] if backend == "native" else [3]  # native: that agent's environments
    np.testing.assert_array_equal(np.flatnonzero(changed), expected)
    with make(env_id, backend) as env:
        np.testing.assert_array_equal(first, np.stack(record(env, seeds)))


@pytest.mark.parametrize("env_id", ["Tiny-v0", "CartPole-v1"])
def test_sync_and_async_give_the_same_bytes(env_id):
    with make(env_id, "sync") as one, make(env_id, "async") as other:
        np.testing.assert_array_equal(record(one, range(SLOTS)), record(other, range(SLOTS)))


@pytest.mark.parametrize(("env_id", "backend"), TINY + CARTPOLE)
def test_arrays_may_be_kept(env_id, backend):
    with make(env_id, backend) as env:
        first = env.reset(range(SLOTS))
        kept = [(first, first.copy())]
        for _, _, step in play(env, range(SLOTS), 30):
            kept += [(array, array.copy()) for array in step if array is not None]
        for array, copy in kept:
            assert array.flags.c_contiguous
            np.testing.assert_array_equal(array, copy)


def test_close_after_workers_were_killed():
    before = set(multiprocessing.active_children())
    with make("Tiny-v0", "async") as env:
        env.reset(range(SLOTS))
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
            process.join()
    assert set(multiprocessing.active_children()) == before
