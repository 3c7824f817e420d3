"""What environments give that is no step: left out, counted, and named in one line."""

import threading
import time
import warnings
from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from evorl.envs import EnvSpec, make_episodes, make_vector_env, steps_limit, workers
from evorl.envs.rebuilding import ATTEMPTS
from evorl.errors import ConfigError, EnvError

from . import tiny
from .wrong import RESETS, STEPS

SLOTS, ROUNDS, ID = 6, 60, "Misbehaves-v0"
SAYS = "its observation_space says of shape (3,) and type float32, and numbers may be up to ±1e18"
LINES = {
    "reward nan": "it gave the reward nan in step 3 of an episode; it must be one number up to"
    " ±1e18",
    "reward None": "it gave the reward None (NoneType) in step 3 of an episode; it must be one"
    " number up to ±1e18",
    "observation nan": f"it gave an observation with nan at (1,) in step 3 of an episode; {SAYS}",
    "observation too short": "it gave an observation of shape (2,) in step 3 of an episode;"
    f" {SAYS}",
    "observation text": f"it gave the observation 'seen' (str) in step 3 of an episode; {SAYS}",
    "terminated None": "it gave None (NoneType) for terminated in step 3 of an episode; it must be"
    " true or false",
    "four values": "ValueError: not enough values to unpack (expected 5, got 4)",
    "exits with 0": "SystemExit: 0",
    "reset too short": f"it gave an observation of shape (2,) in a reset; {SAYS}",
    "process ends with 0": "it lost its worker process in step 3 of an episode (exit code 0)",
    "process is killed": "it lost its worker process in step 3 of an episode (SIGKILL; is there"
    " enough memory?)",
}


def make(kind, backend="sync", slots=SLOTS, timeout=60.0, always=False):
    kwargs = {"kind": kind, "always": always}
    spec = EnvSpec(ID, backend, kwargs, timeout=timeout)
    return closing(make_vector_env(spec, slots // 2, 2))


def record(env, slots=SLOTS, rounds=ROUNDS):
    """All steps as numbers, and all failures; what is left is as it must be."""
    obs = env.reset(range(slots))
    failures, found = env.failures.take(), []
    for _ in range(rounds):
        step = env.step(obs[:, 0].astype(np.int64))  # the action that pays 1
        failed = np.zeros(slots, bool) if step.failed is None else step.failed
        valid = np.ones(slots, bool) if step.valid is None else step.valid
        new = env.failures.take()
        np.testing.assert_array_equal(failed, ~valid)
        assert {f.slot for f in new} >= set(np.flatnonzero(failed))
        assert (step.reward[valid] == 1).all()
        assert (step.next_obs[valid, 2] == 1).all()
        later = step.next_obs[valid, 1] - obs[valid, 1]
        np.testing.assert_allclose(later, 1 / 8)
        scalars = (step.reward, step.terminated, step.truncated, valid)
        found.append(np.concatenate([np.stack(scalars, 1), step.next_obs, step.obs], 1))
        failures, obs = failures + new, step.obs
    return np.stack(found), failures


@pytest.mark.parametrize("kind", [*STEPS, *RESETS])
def test_what_is_no_step_is_left_out_and_named(kind):
    with make(kind) as env:
        found, failures = record(env)
    assert np.isfinite(found).all()
    assert failures
    for failure in failures:
        assert failure.line.isprintable()
        assert failure.line == LINES.get(kind, failure.line)
    raises = kind.startswith(("raises", "calls", "exits", "four", "six", "no values"))
    if kind in STEPS:
        assert failures[0].raised == raises or kind == "observation alone"


@pytest.mark.parametrize("kind", ["reward nan", "observation too short", "reset nan"])
def test_workers_do_the_same(kind):
    with make(kind) as env:
        expected, failures = record(env)
    with make(kind, "async") as env:
        found, others = record(env)
    np.testing.assert_array_equal(found, expected)
    assert others == failures


def test_a_process_that_dies_is_as_an_environment_that_raises():
    with make("raises") as env:
        expected, failures = record(env)
    with make("process ends with 0", "async") as env:
        found, others = record(env)
    np.testing.assert_array_equal(found, expected)
    assert [f.slot for f in others] == [f.slot for f in failures]
    assert {f.line for f in others} == {LINES["process ends with 0"]}


@pytest.mark.parametrize("kind", ["process is killed", "process closes all"])
def test_a_process_that_is_gone_is_replaced(kind):
    with make(kind, "async", slots=4) as env:
        _, failures = record(env, slots=4, rounds=24)
    assert failures
    assert all(f.line == LINES.get(kind, f.line) for f in failures)
    assert all(f.verb == "failed" for f in failures)


def refusal(kind, **options):
    with pytest.raises(ConfigError) as caught, make(kind, always=True, **options):
        pass
    return str(caught.value)


@pytest.mark.parametrize("kind", [*STEPS, *RESETS, "made with an exit", "made with an error"])
def test_what_is_always_wrong_is_refused_before_anything_begins(kind):
    line = refusal(kind)
    made = kind.startswith("made")
    name = "env.kwargs: 'Misbehaves-v0' refuses " if made else "env.id: 'Misbehaves-v0' "
    assert line.startswith(name)
    if kind in LINES and LINES[kind].startswith("it gave"):
        line = line.replace("step 1 ", "step 3 ")
        assert line == f"env.id: 'Misbehaves-v0' {LINES[kind].removeprefix('it ')}"
    if "values" in kind:
        assert "step gives obs, reward, terminated, truncated, info" in line or kind == "no values"


class States(gymnasium.Env):
    """Numbered states from 5 to 8, and from time to time one that there is not."""

    observation_space = spaces.Discrete(4, start=5)
    action_space = spaces.Discrete(2)

    def __init__(self, wrong=9):
        self.wrong, self.time = wrong, 0

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return 5, {}

    def step(self, action):
        self.time += 1
        state = self.wrong if self.time == 4 else 5 + self.time % 4
        return state, 1.0, False, False, {}


class Bytes(States):
    """Bytes that are said to be whole numbers."""

    observation_space = spaces.Box(0, 255, (2, 2), np.uint8)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros((2, 2)), {}

    def step(self, action):
        self.time += 1
        return np.full((2, 2), self.wrong if self.time == 4 else 7.0), 1.0, False, False, {}


gymnasium.register("States-v0", States)
gymnasium.register("Bytes-v0", Bytes)
WRONG = {
    ("States-v0", 9): "an observation with 9 in step 4 of an episode; its observation_space says"
    " from 5 to 8",
    ("States-v0", 4): "an observation with 4 in step 4 of an episode; its observation_space says"
    " from 5 to 8",
    ("Bytes-v0", 0.5): "an observation with 0.5 at (0, 0) in step 4 of an episode; its"
    " observation_space says of shape (2, 2) and type uint8",
    ("Bytes-v0", 256): "an observation with 256 at (0, 0) in step 4 of an episode; its"
    " observation_space says of shape (2, 2) and type uint8",
}


@pytest.mark.parametrize(("env_id", "wrong"), WRONG)
def test_what_no_state_or_byte_is(env_id, wrong):
    with closing(make_vector_env(EnvSpec(env_id, "sync", {"wrong": wrong}), 1, 2)) as env:
        env.reset([0, 1])
        for time_ in range(1, 9):
            step = env.step(np.zeros(2, np.int64))
            assert (step.failed is not None) == (time_ % 4 == 0)
    lines = {failure.line for failure in env.failures.take()}
    assert lines == {f"it gave {WRONG[env_id, wrong]}"}


class Endless(tiny.TinyVector):
    """Its slot 1 gives no numbers in the second step of an episode."""

    def step(self, actions):
        obs, reward, *rest = super().step(actions)
        obs, reward = obs.copy(), np.array(reward, float)
        obs[1, 0] = np.nan if obs[1, 1] == 2 else obs[1, 0]
        return obs, reward, *rest


def test_native_vectors_leave_out_the_episode(monkeypatch):
    monkeypatch.setattr(tiny, "TinyVector", Endless)
    with closing(make_vector_env(EnvSpec("TinyNative-v0", "native"), 1, 3)) as env:
        env.reset([1, 2, 3])
        resets = 0
        for _ in range(40):
            step = env.step(np.zeros(3, np.int64))
            valid = np.ones(3, bool) if step.valid is None else step.valid
            assert np.isfinite(step.obs).all()
            assert not (valid[1] and step.next_obs[1, 1] >= 2)
            lost = step.failed is not None and step.failed[1]
            resets += not lost and step.next_obs[1, 1] == 0
        failures = env.failures.take()
    assert {f.line for f in failures} == {"it gave the observation nan; numbers may be up to ±1e18"}
    assert resets > 3
    assert resets <= len(failures) <= resets + 1  # each once
    assert env.failures.then == "its episode is left out"


def test_hopeless_resets_end_it():
    class Never(States):
        def reset(self, *, seed=None, options=None):
            return (5 if seed == 0 else 12), {}

    gymnasium.register("Never-v0", Never)
    with (
        closing(make_vector_env(EnvSpec("Never-v0", "sync"), 1, 2)) as env,
        pytest.raises(EnvError) as caught,
    ):
        env.reset([1, 2])
    assert str(caught.value) == (
        f"env.id: 'Never-v0' failed in {ATTEMPTS} resets in a row: it gave an observation with 12"
        " in a reset; its observation_space says from 5 to 8"
    )
    assert not getattr(caught.value, "__notes__", ())


def test_actions_that_are_written_to_stay_as_they_were():
    class Greedy(States):
        action_space = spaces.MultiDiscrete([3, 3])

        def step(self, action):
            action[:] = 0
            return super().step(action)

    gymnasium.register("Greedy-v0", Greedy)
    with closing(make_vector_env(EnvSpec("Greedy-v0", "sync", {"wrong": 5}), 1, 2)) as env:
        env.reset([0, 1])
        actions = np.array([[1, 2], [2, 1]])
        env.step(actions)
    np.testing.assert_array_equal(actions, [[1, 2], [2, 1]])


def test_a_step_that_hangs_here_is_named(monkeypatch):
    told, said = threading.Event(), []

    class Stuck(States):
        def step(self, action):
            if self.time == 2:
                assert told.wait(60)
            return super().step(action)

    def show(message, *_, **__):
        said.append(str(message))
        if "(threading.py, line " in said[-1]:  # a machine may be slow to make it, too
            told.set()

    gymnasium.register("Stuck-v0", Stuck)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        with closing(make_vector_env(EnvSpec("Stuck-v0", "sync", timeout=0.1), 1, 1)) as env:
            env.reset([0])
            for _ in range(3):
                assert env.step(np.zeros(1, np.int64)).failed is None
    assert said[-1].startswith(
        "'Stuck-v0' hangs: a step or reset takes longer than env.timeout=0.1 seconds (threading.py,"
    )


class Sleeper(States):
    """Hangs in every step of the episode that begins with seed 7."""

    def reset(self, *, seed=None, options=None):
        self.asleep = seed == 7
        return super().reset()

    def step(self, action):
        while self.asleep:
            time.sleep(0.1)
        return super().step(action)


gymnasium.register("Sleeper-v0", Sleeper)


def test_a_process_that_hangs_is_replaced():
    with closing(make_vector_env(EnvSpec("Sleeper-v0", "async", timeout=2.0), 1, 2)) as env:
        env.reset([8, 7])
        step = env.step(np.zeros(2, np.int64))
        np.testing.assert_array_equal(step.failed, [False, True])
        (failure,) = env.failures.take()
        assert failure.slot == 1
        assert failure.line == "it took longer than env.timeout=2 seconds in step 1 of an episode"
        assert env.step(np.zeros(2, np.int64)).failed is None


def test_closing_does_not_wait_for_who_hangs(monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 0.2)
    episodes = make_episodes(EnvSpec("Sleeper-v0", "async"), 2)
    episodes.start([8, 7], np.arange(2))
    own = episodes._env._workers
    own[1].step(0)
    episodes.close()
    assert not any(worker._process.is_alive() for worker in own)


@pytest.mark.parametrize(
    ("given", "own", "expected"),
    [("auto", None, 1000), ("auto", 500, 500), ("auto", 20_000, 10_000), (7, None, 7), (7, 3, 7)],
)
def test_the_limit_of_an_episode_that_is_scored(given, own, expected):
    assert steps_limit(given, own) == expected
