"""Box, MultiDiscrete and MultiBinary actions: evorl's own form in, the environment's own out."""

from contextlib import closing

import numpy as np
import pytest
from gymnasium import spaces

from evorl.envs import ActionSpec, EnvSpec, adapt, make_episodes, make_vector_env
from evorl.envs.spaces import FLOAT32

from . import tiny

SEEN = spaces.Box(0, 1, (2,), np.float32)


def box(low, high, shape=None, dtype=np.float32):
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), shape, dtype)


def continuous(low, high):
    return ActionSpec("continuous", None, (len(low),), FLOAT32, tuple(low), tuple(high))


def multi(*parts):
    return ActionSpec("multidiscrete", None, (len(parts),), parts=parts)


# space, what evorl sees, an action of evorl's, and the environment's
FORMS = {
    "bounds": (box([-2, 0], [2, 10]), continuous([-2, 0], [2, 10]), [0.5, -0.5], [1, 2.5]),
    "ends": (box([-2, 0], [2, 10]), continuous([-2, 0], [2, 10]), [-1, 1], [-2, 10]),
    "clipped": (box([-2, 0], [2, 10]), continuous([-2, 0], [2, 10]), [-7, 1.5], [-2, 10]),
    "infinite": (box([-2, 0], [2, 10]), continuous([-2, 0], [2, 10]), [np.inf, -np.inf], [2, 0]),
    "no number": (box([-2, 0], [2, 10]), continuous([-2, 0], [2, 10]), [np.nan, 0], [0, 5]),
    "scalar": (box(-3, 1), continuous([-3], [1]), [0.5], 0),
    "matrix": (
        box([[0, 0], [0, -4]], [[1, 2], [4, 4]]),
        continuous([0, 0, 0, -4], [1, 2, 4, 4]),
        [-1, 0, 1, 0.5],
        [[0, 1], [4, 2]],
    ),
    "float64": (box([-2], [0.1], dtype=np.float64), continuous([-2], [0.1]), [1], [0.1]),
    "one value": (box([2], [2]), continuous([2], [2]), [0.3], [2]),
    "multidiscrete": (spaces.MultiDiscrete([3, 2, 5]), multi(3, 2, 5), [2, 0, 4], [2, 0, 4]),
    "starts": (spaces.MultiDiscrete([3, 2], start=[-1, 10]), multi(3, 2), [2, 0], [1, 10]),
    "int32": (spaces.MultiDiscrete([3, 2], np.int32), multi(3, 2), [2, 0], [2, 0]),
    "grid": (
        spaces.MultiDiscrete([[3, 2], [4, 2]], start=[[0, 1], [0, 2]]),
        multi(3, 2, 4, 2),
        [2, 1, 3, 0],
        [[2, 2], [3, 2]],
    ),
    "one part": (spaces.MultiDiscrete([3], start=[5]), ActionSpec("discrete", 3), 2, [7]),
    "binary": (spaces.MultiBinary(3), multi(2, 2, 2), [1, 0, 1], [1, 0, 1]),
    "binary grid": (spaces.MultiBinary([2, 2]), multi(2, 2, 2, 2), [1, 0, 1, 0], [[1, 0], [1, 0]]),
    "one bit": (spaces.MultiBinary(1), ActionSpec("discrete", 2), 1, [1]),
    "small": (spaces.Discrete(3, start=-1, dtype=np.int32), ActionSpec("discrete", 3), 0, -1),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_environment_gets_its_own_form(name):
    space, expected, ours, theirs = FORMS[name]
    adapter = adapt("X-v0", SEEN, space)
    assert adapter.action == expected
    given = np.array([ours, ours], expected.dtype)
    (first, again), before = adapter.actions(given), given.copy()
    np.testing.assert_array_equal(given, before)
    np.testing.assert_allclose(first, theirs, rtol=1e-6)
    np.testing.assert_array_equal(first, again)
    assert space.contains(first), first
    assert first.dtype == space.dtype


def test_a_box_from_minus_one_to_one_changes_no_digit():
    adapter = adapt("X-v0", SEEN, spaces.Box(-1, 1, (3,), np.float32))
    drawn = np.random.default_rng(0).uniform(-1, 1, (1000, 3)).astype(np.float32)
    np.testing.assert_array_equal(adapter.actions(drawn), drawn)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scaled_actions_never_leave_their_box(dtype):
    random = np.random.default_rng(0)
    low = random.normal(size=300)
    space = box(low, low + random.exponential(size=300), dtype=dtype)
    adapter = adapt("X-v0", SEEN, space)
    for ends in (-1, 1, *random.uniform(-1.2, 1.2, 20)):
        (own,) = adapter.actions(np.full((1, 300), ends, np.float32))
        assert space.contains(own)
    for end, bound in ((1, space.high), (-1, space.low)):
        (own,) = adapter.actions(np.full((1, 300), end, np.float32))
        np.testing.assert_allclose(own, bound, rtol=0 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_plain_environments_take_them(name, backend):
    """TinyCustom raises if an action is none of its space, and gives the sum of it as a reward."""
    space, expected, ours, theirs = FORMS[name]
    spec = EnvSpec("TinyCustom-v0", backend, {"observation_space": SEEN, "action_space": space})
    actions = np.array([ours] * 3, expected.dtype)
    with closing(make_vector_env(spec, 3, 1)) as env, closing(make_episodes(spec, 3)) as episodes:
        assert env.action == episodes.action == expected
        env.reset([0, 1, 2])
        episodes.start([0, 1, 2], np.arange(3))
        step, total = env.step(actions), np.sum(theirs)
        np.testing.assert_allclose(step.reward, [total] * 3, rtol=1e-6)
        reward, _ = episodes.step(actions[:2], np.array([0, 2]))
        np.testing.assert_allclose(reward, [total] * 2, rtol=1e-6)
        assert not env.failures.take()
        assert not episodes.failures.take()


@pytest.mark.parametrize(
    ("env_id", "backend"), [("Aim-v0", "sync"), ("Aim-v0", "async"), ("AimNative-v0", "native")]
)
def test_every_transition_of_a_box_is_true(env_id, backend):
    random, seen = np.random.default_rng(0), set()
    with closing(make_vector_env(EnvSpec(env_id, backend), 3, 2)) as env:
        obs = env.reset(range(6))
        for _ in range(60):
            actions = random.uniform(-1.5, 1.5, (6, 1)).astype(np.float32)
            step = env.step(actions)
            valid = np.ones(6, bool) if step.valid is None else step.valid
            number, steps = obs.T.astype(int)
            force = 1 + 4 * np.clip(actions[:, 0], -1, 1)
            np.testing.assert_allclose(step.reward[valid], force[valid], rtol=1e-6)
            terminated, truncated = tiny.ends(number, steps + 1)
            np.testing.assert_array_equal(step.terminated[valid], terminated[valid])
            np.testing.assert_array_equal(step.truncated[valid], truncated[valid])
            truth = np.stack([number, steps + 1], 1)
            np.testing.assert_array_equal(step.next_obs[valid], truth[valid])
            assert step.reward.dtype == np.float32
            seen |= set(zip(step.terminated, step.truncated, strict=True))
            obs = step.obs
        assert not env.failures.take()
    assert len(seen) == 4


PENDULUM = [("Pendulum-v1", backend) for backend in ("sync", "async", "envpool")]


@pytest.mark.parametrize(("env_id", "backend"), PENDULUM)
def test_pendulum_moves_as_its_physics_say(env_id, backend):
    if backend == "envpool":
        pytest.importorskip("envpool")
    random = np.random.default_rng(1)
    with closing(make_vector_env(EnvSpec(env_id, backend), 2, 2)) as env:
        assert env.action == continuous([-2], [2])
        assert (env.observation.shape, env.max_episode_steps) == ((3,), 200)
        obs, cut = env.reset(range(4)), 0
        for _ in range(205):
            actions = random.uniform(-1.5, 1.5, (4, 1)).astype(np.float32)
            step = env.step(actions)
            angle, speed = np.arctan2(obs[:, 1], obs[:, 0]), obs[:, 2]
            force = 2 * np.clip(actions[:, 0], -1, 1)
            cost = angle**2 + 0.1 * speed**2 + 0.001 * force**2
            np.testing.assert_allclose(step.reward, -cost, rtol=1e-3, atol=1e-3)
            moved = np.clip(speed + 0.05 * (15 * np.sin(angle) + 3 * force), -8, 8)
            np.testing.assert_allclose(step.next_obs[:, 2], moved, atol=1e-3)
            assert not step.terminated.any()
            cut += step.truncated.sum()
            obs = step.obs
    assert cut == 4


@pytest.mark.parametrize(
    ("env_id", "numbers"),
    [("LunarLanderContinuous-v3", 2), ("BipedalWalker-v3", 4), ("MountainCarContinuous-v0", 1)],
)
@pytest.mark.parametrize("backend", ["sync", "envpool"])
def test_box_environments(env_id, numbers, backend):
    if backend == "envpool":
        pytest.importorskip("envpool")
    with closing(make_vector_env(EnvSpec(env_id, backend), 1, 3)) as env:
        assert env.action == continuous([-1] * numbers, [1] * numbers)
        env.reset([1, 2, 3])
        for _ in range(20):
            step = env.step(np.full((3, numbers), 1.5, np.float32))
            assert np.isfinite(step.reward).all()
            assert np.isfinite(step.obs).all()
        assert not env.failures.take()
