"""Every kind of observation and action, in the one form that evorl sees."""

import copy
from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from evorl.envs import ActionSpec, EnvSpec, ObservationSpec, make_episodes, make_vector_env
from evorl.envs.spaces import adapt
from evorl.errors import ConfigError

from . import tiny  # noqa: F401  registers TinyCustom-v0

U8, I8, F32, I64 = (np.dtype(t) for t in (np.uint8, np.int8, np.float32, np.int64))


def box(*shape, dtype=np.float32):
    return spaces.Box(0, 1 if dtype is bool else 100, shape, dtype)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (box(3), ObservationSpec("vector", (3,), F32)),
        (box(3, dtype=np.float64), ObservationSpec("vector", (3,), F32)),
        (box(3, dtype=np.int64), ObservationSpec("vector", (3,), F32)),
        (box(3, dtype=np.uint8), ObservationSpec("vector", (3,), U8, scale=0.01)),
        (box(), ObservationSpec("vector", (1,), F32)),
        (box(4, 5), ObservationSpec("vector", (20,), F32)),
        (box(6, 5, dtype=np.uint8), ObservationSpec("image", (1, 6, 5), U8, scale=0.01)),
        (box(6, 5, 3, dtype=np.uint8), ObservationSpec("image", (3, 6, 5), U8, scale=0.01)),
        (box(3, 6, 5, dtype=np.uint8), ObservationSpec("image", (3, 6, 5), U8, scale=0.01)),
        (box(4, 6, 4, dtype=np.float64), ObservationSpec("image", (4, 4, 6), F32)),
        (box(10, 10, 4, dtype=bool), ObservationSpec("image", (4, 10, 10), I8)),
        (spaces.Discrete(7), ObservationSpec("discrete", (), I64, 7)),
        (spaces.Discrete(7, start=-3), ObservationSpec("discrete", (), I64, 7)),
        (spaces.MultiBinary(9), ObservationSpec("vector", (9,), I8)),
        (spaces.MultiBinary([2, 3]), ObservationSpec("vector", (6,), I8)),
    ],
)
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_observations_have_the_form_they_say(space, expected, backend):
    spec = EnvSpec("TinyCustom-v0", backend, {"observation_space": space})
    reference = gymnasium.make("TinyCustom-v0", observation_space=copy.deepcopy(space))
    raw = [reference.reset(seed=5)[0]]
    raw += [reference.step(0)[0] for _ in range(3)]
    with closing(make_vector_env(spec, 1, 2)) as env, closing(make_episodes(spec, 2)) as episodes:
        assert env.observation == episodes.observation == expected
        seen = [env.reset([5, 6])]
        episodes.start([5, 6], np.arange(2))
        played = [episodes.obs.copy()]
        for _ in range(3):
            seen.append(env.step(np.zeros(2, np.int64)).obs)
            episodes.step(np.zeros(2, np.int64), np.arange(2))
            played.append(episodes.obs.copy())
    for obs, other, single in zip(seen, played, raw, strict=True):
        assert (obs.shape, obs.dtype) == ((2, *expected.shape), expected.dtype)
        assert obs.flags.c_contiguous
        np.testing.assert_array_equal(obs, other)
        if isinstance(space, spaces.Discrete):
            single = single - space.start
        elif expected.kind == "image" and len(space.shape) == 3 and expected.shape != space.shape:
            single = np.moveaxis(single, -1, 0)
        single = np.asarray(single, expected.dtype).reshape(expected.shape)
        np.testing.assert_array_equal(obs[0], single)


# nested space → what its flat parts are, in order
NESTED = {
    "dict by sorted keys": (
        spaces.Dict({"b": box(2), "a": spaces.Discrete(3), "c": spaces.MultiBinary(2)}),
        lambda one: [np.eye(3)[one["a"]], one["b"], one["c"]],
    ),
    "given order": (spaces.Dict([("b", box(2)), ("a", box(1))]), lambda one: [one["b"], one["a"]]),
    "tuple": (
        spaces.Tuple([spaces.Discrete(3, start=5), box(2, 2), spaces.MultiDiscrete([2, 3])]),
        lambda one: [np.eye(3)[one[0] - 5], one[1], np.eye(2)[one[2][0]], np.eye(3)[one[2][1]]],
    ),
    "nested": (
        spaces.Dict({"z": spaces.Tuple([box(1), spaces.Dict(y=box(2), x=box(1))]), "a": box(1)}),
        lambda one: [one["a"], one["z"][0], one["z"][1]["y"], one["z"][1]["x"]],
    ),
    "pixels": (spaces.Dict(a=box(2, 2, dtype=np.uint8)), lambda one: [one["a"]]),
}


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("name", NESTED)
def test_nested_observations_are_flattened_in_order(name, backend):
    space, parts = NESTED[name]
    spec = EnvSpec("TinyCustom-v0", backend, {"observation_space": space})
    reference = gymnasium.make("TinyCustom-v0", observation_space=copy.deepcopy(space))
    raw = [reference.reset(seed=5)[0], reference.step(0)[0], reference.step(0)[0]]
    with closing(make_vector_env(spec, 1, 1)) as env, closing(make_episodes(spec, 1)) as episodes:
        action = np.zeros(1, np.int64)
        seen = [env.reset([5]), env.step(action).obs, env.step(action).obs]
        episodes.start([5], action)
        played = [episodes.obs.copy()]
        episodes.step(action, action)
        played.append(episodes.obs)
        assert env.observation == episodes.observation
        assert (env.observation.kind, env.observation.dtype) == (
            "vector",
            U8 if name == "pixels" else F32,
        )
    np.testing.assert_array_equal(seen[:2], played)
    for found, one in zip(seen, raw, strict=True):
        expected = np.concatenate([np.ravel(part) for part in parts(one)])
        np.testing.assert_array_equal(found[0], expected.astype(found.dtype))


def test_blackjack():
    with closing(make_vector_env(EnvSpec("Blackjack-v1", "sync"), 1, 2)) as env:
        assert env.observation == ObservationSpec("vector", (32 + 11 + 2,), F32)
        np.testing.assert_array_equal(env.reset([0, 1]).sum(1), [3, 3])  # one of each


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (0,), (4, 0)])
def test_shapes_that_are_neither_vector_nor_image_are_refused(shape):
    with pytest.raises(ConfigError, match="has observations of shape"):
        adapt("X-v0", box(*shape), spaces.Discrete(2))


def test_channels_last_can_be_said():
    space = box(4, 6, 8, dtype=np.uint8)
    raw = adapt("X-v0", space, spaces.Discrete(2), True)
    assert (raw.raw_shape, raw.raw_dtype) == ((4, 6, 8), "uint8")
    assert adapt("X-v0", space, spaces.Discrete(2)).observation.shape == (4, 6, 8)
    assert adapt("X-v0", space, spaces.Discrete(2), True).observation.shape == (8, 4, 6)
    assert adapt("X-v0", box(8, 6, 4), spaces.Discrete(2), False).observation.shape == (8, 6, 4)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_actions_are_counted_from_0(backend):
    kwargs = {"observation_space": box(1), "action_space": spaces.Discrete(3, start=4)}
    spec = EnvSpec("TinyCustom-v0", backend, kwargs)
    actions = np.array([0, 1, 2])
    with closing(make_vector_env(spec, 3, 1)) as env, closing(make_episodes(spec, 3)) as episodes:
        assert env.action == episodes.action == ActionSpec("discrete", 3)
        env.reset([0, 1, 2])
        episodes.start([0, 1, 2], np.arange(3))
        np.testing.assert_array_equal(env.step(actions).reward, [4, 5, 6])
        reward, _ = episodes.step(actions[[0, 2]], np.array([0, 2]))
        np.testing.assert_array_equal(reward, [4, 6])
    np.testing.assert_array_equal(actions, [0, 1, 2])


def test_frozen_lake():
    spec = EnvSpec("FrozenLake-v1", "sync", {"is_slippery": False})
    with closing(make_vector_env(spec, 1, 1)) as env:
        assert env.observation == ObservationSpec("discrete", (), I64, 16)
        assert env.max_episode_steps == 100
        assert env.reset([0]).tolist() == [0]
        for action in (1, 1, 2, 2, 1):
            env.step(np.array([action]))
        step = env.step(np.array([2]))
    assert (step.next_obs.tolist(), step.obs.tolist()) == ([15], [0])
    assert (step.reward.tolist(), step.terminated.tolist()) == ([1.0], [True])
