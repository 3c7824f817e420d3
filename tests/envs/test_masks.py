"""Which actions are allowed stands behind the observation, on every reset and step."""

from contextlib import closing
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from evorl.envs import EnvSpec, ObservationSpec, choose_backend, make_episodes, make_vector_env
from evorl.envs.backend import _step_ms
from evorl.envs.make import make_env
from evorl.envs.spaces import FLOAT32
from evorl.errors import ConfigError, EnvError
from evorl.training.agents import observation_spec

from . import tiny

WHO = "env.id: 'Maze-v0' gives info['action_mask']"
ACTIONS = {
    "discrete": (spaces.Discrete(4), (4,)),
    "start": (spaces.Discrete(4, start=-2), (4,)),
    "multidiscrete": (spaces.MultiDiscrete([4, 3], start=[0, 5]), (4, 3)),
    "grid": (spaces.MultiDiscrete([[4, 3], [2, 5]]), (4, 3, 2, 5)),
    "binary": (spaces.MultiBinary(3), (2, 2, 2)),
    "one part": (spaces.MultiDiscrete([5]), (5,)),
}


class Wrap(NamedTuple):
    name: str
    kwargs: dict[str, Any] = {}  # noqa: RUF012


def make(backend="sync", wrappers=(), **kwargs):
    return EnvSpec("Maze-v0", backend, kwargs, wrappers)


def split(obs, parts):
    """Observations, and the masks of each part of an action."""
    ends = np.cumsum((-sum(parts), *parts))[:-1]
    return obs[:, : ends[0]], [
        obs[:, end : end + size or None] for end, size in zip(ends, parts, strict=True)
    ]


def choose(random, obs, parts):
    """Random actions that the masks allow."""
    _, masks = split(obs, parts)
    chosen = [[random.choice(np.flatnonzero(row)) for row in mask] for mask in masks]
    return np.array(chosen).T if len(parts) > 1 else np.array(chosen[0])


def check(obs, parts, ended=None):
    """Masks are those that the numbers tell; all is allowed where an episode terminated."""
    seen, masks = split(obs, parts)
    for i, (number, steps) in enumerate(seen[:, :2].astype(int)):
        truth = tiny.allowed(number, steps, parts)
        for mask, expected in zip(masks, truth, strict=True):
            given = np.ones_like(expected) if ended is not None and ended[i] else expected
            np.testing.assert_array_equal(mask[i], given)


@pytest.mark.parametrize("form", ["array", "tuple", "none_at_end", "zeros_at_end"])
@pytest.mark.parametrize("actions", ACTIONS)
def test_masks_are_true_in_every_transition(actions, form):
    space, parts = ACTIONS[actions]
    if form == "zeros_at_end" and len(parts) > 1:
        form = "array"
    random, seen = np.random.default_rng(0), set()
    spec = make(action_space=space, form=form)
    free = form.endswith("at_end")
    with closing(make_vector_env(spec, 2, 3)) as env:
        assert env.observation == ObservationSpec(
            "vector", (2 + sum(parts),), FLOAT32, mask=sum(parts)
        )
        obs = env.reset(range(6))
        check(obs, parts)
        for _ in range(40):
            step = env.step(choose(random, obs, parts))
            assert not env.failures.take()  # Maze raises if an action is not allowed
            check(step.obs, parts)
            check(step.next_obs, parts, step.terminated if free else None)
            assert step.next_obs.dtype == np.float32
            seen |= set(zip(step.terminated, step.truncated, strict=True))
            obs = step.obs
    assert len(seen) == 4


def test_async_and_episodes_have_the_same_masks():
    with (
        closing(make_vector_env(make("sync"), 2, 2)) as one,
        closing(make_vector_env(make("async"), 2, 2)) as other,
        closing(make_episodes(make("sync"), 4)) as episodes,
    ):
        assert one.observation == other.observation == episodes.observation
        random, obs, running = np.random.default_rng(0), one.reset(range(4)), np.ones(4, bool)
        np.testing.assert_array_equal(obs, other.reset(range(4)))
        episodes.start(range(4), np.arange(4))
        np.testing.assert_array_equal(obs, episodes.obs)
        for _ in range(20):
            actions = choose(random, obs, (4,))
            step, same = one.step(actions), other.step(actions)
            for found, expected in zip(same[:5], step[:5], strict=True):
                np.testing.assert_array_equal(found, expected)
            if running.any():
                slots = np.flatnonzero(running)
                reward, ended = episodes.step(actions[slots], slots)
                np.testing.assert_array_equal(episodes.obs[slots], step.next_obs[slots])
                np.testing.assert_array_equal(reward, step.reward[slots])
                running[slots[ended]] = False
            obs = step.obs
        assert not running.any()
        assert not other.failures.take() + episodes.failures.take()


@pytest.mark.parametrize(
    ("space", "dtype", "scale"),
    [
        (spaces.Box(0, 1e6, (3, 2), np.float64), FLOAT32, 1),
        (spaces.Box(0, 200, (4,), np.uint8), np.dtype(np.uint8), 1 / 200),
        (spaces.MultiBinary(3), np.dtype(np.int8), 1),
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), FLOAT32, 1),
        (spaces.Box(-1e300, 1e300, (2,), np.float64), FLOAT32, 1),
    ],
)
def test_observations_keep_their_kind(space, dtype, scale):
    size = int(np.prod(space.shape))
    with closing(make_vector_env(make(observation_space=space), 1, 2)) as env:
        assert env.observation == ObservationSpec("vector", (size + 4,), dtype, None, scale, 4)
        assert (env.spaces.raw_shape, env.spaces.raw_dtype) == (space.shape, space.dtype.name)
        obs = env.reset([3, 4])
        assert obs.dtype == dtype
        assert set(np.unique(obs[:, size:])) <= {0, 1}
        read = observation_spec(env.observation)
        assert (read.inputs, read.mask, read.scale) == (size, 4, scale)


def test_random_steps_are_allowed():
    """Whoever tries an environment, or measures it, takes allowed actions only."""
    for name in ACTIONS:
        space, _ = ACTIONS[name]
        env = make_env(make(action_space=space))
        env.reset(seed=3)
        over = False
        while not over:
            action = env.sample()
            assert env.action_space.contains(action), action
            over = any(env.step(action)[2:4])
    assert _step_ms(make()) > 0
    assert choose_backend(make("auto"), 1, 1)[0] == "sync"


def test_only_those_that_give_masks_have_one():
    with closing(make_vector_env(EnvSpec("Tiny-v0", "sync"), 1, 1)) as env:
        assert env.observation.mask == 0
        assert observation_spec(env.observation).mask == 0
    plain = make_env(make(), masked=False)
    assert plain.observation_space.shape == (2,)
    assert make_env(make()).observation_space.shape == (6,)


def refusal(spec):
    for made in (lambda: make_vector_env(spec, 1, 2), lambda: make_episodes(spec, 2)):
        with pytest.raises(ConfigError) as caught:
            made()
    return str(caught.value)


def test_masks_that_fit_nothing_are_refused():
    flat = "masks need vectors, which the wrapper FlattenObservation makes"
    discrete = make(observation_space=spaces.Discrete(100))
    assert refusal(discrete) == f"{WHO} with discrete observations; {flat}"
    image = spaces.Box(0, 255, (6, 6, 3), np.uint8)
    assert refusal(make(observation_space=image)) == f"{WHO} with image observations; {flat}"
    box = make(action_space=spaces.Box(-1, 1, (2,), np.float32))
    assert refusal(box) == f"{WHO} for Box actions, which no mask fits; leave it out"


def test_flattened_observations_can_have_masks():
    kwargs = {"observation_space": spaces.Box(0, 255, (6, 6, 3), np.uint8)}
    flat = make(wrappers=[Wrap("FlattenObservation")], **kwargs)
    with closing(make_vector_env(flat, 1, 1)) as env:
        assert env.observation.shape == (6 * 6 * 3 + 4,)
    newest = max(name for name in gymnasium.registry if name.startswith("Taxi-"))
    taxi = EnvSpec(newest, "sync", {}, [Wrap("FlattenObservation")])
    with closing(make_vector_env(taxi, 1, 2)) as env:
        assert (env.observation.shape, env.observation.mask) == ((506,), 6)
        assert env.reset([0, 1])[:, :500].sum(1).tolist() == [1, 1]


@pytest.mark.filterwarnings("ignore:.*(Worker|Traceback|Raising the last)")
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_mask_that_allows_nothing_ends_the_run(backend):
    random = np.random.default_rng(0)
    with closing(make_vector_env(make(backend, form="zeros"), 1, 2)) as env:
        obs = env.reset([1, 2])
        obs = env.step(choose(random, obs, (4,))).obs
        with pytest.raises(EnvError) as caught:
            env.step(choose(random, obs, (4,)))
    expected = f"{WHO} that allows no action; one must always be allowed"
    assert str(caught.value) == expected


def test_a_mask_that_is_not_always_there_is_an_error():
    with pytest.raises(EnvError) as caught:
        make_vector_env(make(form="once"), 1, 2)
    assert str(caught.value) == f"{WHO} at first, and then not; give it in every reset and step"


def test_a_mask_of_another_length_is_an_error():
    with pytest.raises(EnvError, match=r"info\['action_mask'\] of 5 numbers; it must have 4$"):
        make_vector_env(make(form="long"), 1, 1)
    grid = spaces.MultiDiscrete([4, 3])
    with pytest.raises(EnvError, match=r"of 8 numbers; it must have 4 \+ 3$"):
        make_vector_env(make(form="long", action_space=grid), 1, 1)


def test_a_native_version_with_masks_is_not_used():
    with pytest.raises(ConfigError, match="native is not possible, action masks and nested"):
        make_vector_env(EnvSpec("MaskedNative-v0", "native"), 1, 8)
    assert choose_backend(EnvSpec("MaskedNative-v0"), 1, 8)[0] == "sync"
