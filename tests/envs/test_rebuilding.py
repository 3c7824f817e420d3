"""Environments that raise, against replacing them by hand."""

import multiprocessing
import traceback
from contextlib import closing

import numpy as np
import pytest

from evorl.envs import EnvSpec, make_episodes, make_vector_env
from evorl.envs.rebuilding import SHOWN, TRACES, Failure, Slot
from evorl.errors import EnvError
from evorl.seeding import integers

from . import tiny

SEEDS = [4, 8, 15, 16, 23, 42]
SLOTS, STEPS = len(SEEDS), 60
BACKENDS = ["sync", "async"]


@pytest.fixture(autouse=True)
def no_process_is_left():
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) == before


def make(env_id, backend, **kwargs):
    return closing(make_vector_env(EnvSpec(env_id, backend, kwargs), SLOTS // 2, 2))


def actions_of(steps=STEPS):
    return np.random.default_rng(0).integers(2, size=(steps, SLOTS))


def record(env, seeds=SEEDS):
    """All steps as numbers [T, M, …], and the slots of all failures, step by step."""
    rows, slots = [env.reset(seeds)], [[f.slot for f in env.failures.take()]]
    parts = []
    for actions in actions_of():
        step = env.step(actions)
        failed = np.zeros(SLOTS, bool) if step.failed is None else step.failed
        valid = np.ones(SLOTS, bool) if step.valid is None else step.valid
        scalars = [step.reward, step.terminated, step.truncated, valid, failed]
        parts.append(np.concatenate([rows[-1], np.stack(scalars, 1), step.next_obs], 1))
        rows.append(step.obs)
        slots.append([f.slot for f in env.failures.take()])
    return np.stack(parts), slots


class ByHand:
    """One slot, the way it is meant."""

    def __init__(self, seed, **kwargs):
        self.kwargs, self.seed, self.failures, self.rebuilt = kwargs, seed, 0, 0
        self.env = tiny.Fragile(**kwargs)
        self.reset(seed)

    def reset(self, seed=None):
        try:
            self.obs = self.env.reset(seed=seed)[0].copy()
        except tiny.Broken:
            self.replace()

    def replace(self):
        self.failures, self.rebuilt = self.failures + 1, self.rebuilt + 1
        self.env = tiny.Fragile(**self.kwargs)
        self.reset(integers(self.seed, "rebuild", self.rebuilt, count=1)[0])

    def step(self, action):
        before = self.obs
        try:
            obs, reward, terminated, truncated, _ = self.env.step(action)
        except tiny.Broken:
            self.replace()
            return [*before, 0, False, True, False, True, 0, 0]
        self.obs = last = obs.copy()
        if terminated or truncated:
            self.reset()
        return [*before, reward, terminated, truncated, True, False, *last]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("resets", [0, 5])
def test_equals_replacing_environments_by_hand(backend, resets):
    with make("Fragile-v0", backend, resets=resets) as env:
        got, slots = record(env)
        again = record(env)  # a seed forgets what was before it
    by_hand = [ByHand(seed, resets=resets) for seed in SEEDS]
    counts = [[hand.failures for hand in by_hand]]
    for t, actions in enumerate(actions_of()):
        expected = [hand.step(action) for hand, action in zip(by_hand, actions, strict=True)]
        np.testing.assert_array_equal(got[t], np.array(expected, np.float32))
        counts.append([hand.failures for hand in by_hand])
    new = np.diff(counts, axis=0, prepend=0)
    assert slots == [np.repeat(np.arange(SLOTS), row).tolist() for row in new]
    failed = got[:, :, 6].astype(bool)
    assert failed.any(0).all()
    assert failed.sum() < failed.size / 4
    assert (new.sum() > failed.sum()) == (resets > 0)
    assert (new.max() > 1) == (resets > 0)  # a new environment failed at once, too
    np.testing.assert_array_equal(again[0], got)
    assert again[1] == slots


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_broken_is_true(backend):
    with make("Fragile-v0", backend) as env:
        obs = env.reset(SEEDS)
        for actions in actions_of():
            step, (number, steps) = env.step(actions), obs.T.astype(int)
            breaks = tiny.breaks(number, steps + 1)
            assert (step.failed is None) == (step.valid is None) == (not breaks.any())
            if breaks.any():
                np.testing.assert_array_equal(step.failed, breaks)
                np.testing.assert_array_equal(step.valid, ~breaks)
            ends = np.stack(tiny.ends(number, steps + 1))
            found = np.stack([step.terminated, step.truncated])
            np.testing.assert_array_equal(found[:, ~breaks], ends[:, ~breaks])
            truth = np.stack([number, steps + 1], 1)
            np.testing.assert_array_equal(step.next_obs[~breaks], truth[~breaks])
            assert (step.obs[breaks | ends.any(0), 1] == 0).all()
            for failure in env.failures.take():
                assert breaks[failure.slot]
                assert failure.line == f"tests.envs.tiny.Broken: no step ({number[failure.slot]})"
                assert failure.trace.startswith("Traceback (most recent call last):\n")
                assert "in step\n" in failure.trace
            obs = step.obs


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_slot_that_cannot_be_rebuilt_ends_it(backend):
    with make("Hopeless-v0", backend, first=True) as env, pytest.raises(EnvError) as caught:
        env.reset(range(1, SLOTS + 1))
    assert str(caught.value) == (
        "env.id: 'Hopeless-v0' raised in 4 resets in a row: tests.envs.tiny.Broken: no reset (1)"
    )
    (trace,) = caught.value.__notes__
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.endswith("tests.envs.tiny.Broken: no reset (1)")
    with make("Hopeless-v0", backend) as env:
        env.reset(range(1, SLOTS + 1))
        env.step(np.zeros(SLOTS, np.int64))
        with pytest.raises(EnvError, match=r"4 resets in a row: .* no reset \(1\)"):
            env.step(np.zeros(SLOTS, np.int64))


class Parts:
    """Makes environments, and remembers them and their seeds."""

    def __init__(self):
        self.made, self.closed, self.seeds = [], [], []

    def make(self):
        parts = self

        class Known(tiny.Tiny):
            def reset(self, *, seed=None, options=None):
                parts.seeds.append(seed)
                return super().reset(seed=seed)

            def close(self):
                parts.closed.append(self)

        self.made.append(Known(fail_at=2))
        return self.made[-1]


def test_a_rebuilt_environment_is_a_new_object_and_the_old_one_is_closed():
    parts = Parts()
    env = Slot(parts.make)
    env.reset(seed=7)
    for count in range(1, 4):
        assert TRACES not in env.step(0)[4]
        _, *rest, info = env.step(0)
        assert (rest, len(info[TRACES])) == ([0.0, False, True], 1)
        assert env.reset()[1] == {}
        assert (len(set(map(id, parts.made))), len(parts.closed)) == (count + 1, count)
        assert env.unwrapped is parts.made[-1] not in parts.closed
    expected = [integers(7, "rebuild", k, count=1)[0] for k in (1, 2, 3)]
    assert parts.seeds == [7, *expected]
    env.close()
    assert parts.closed == parts.made


def test_seeds_of_training_and_held_out_ones_stay_apart():
    for seed, held_out in [(0, False), (2**30 - 1, False), (2**30, True), (2**31 - 1, True)]:
        parts = Parts()
        env = Slot(parts.make)
        env.reset(seed=seed)
        for _ in range(10):
            env.step(0)
            env.step(0)
            env.reset()
        assert len(set(parts.seeds)) == 11
        assert all((2**30 <= one < 2**31) == held_out for one in parts.seeds)


def test_a_factory_that_fails_is_tried_again():
    parts, left = Parts(), [False, True, True, False]

    def make():
        if left.pop(0):
            raise ImportError("no licence left")
        return parts.make()

    env = Slot(make)
    env.reset(seed=1)
    env.step(0)
    (broke,) = env.step(0)[4][TRACES]
    assert broke.endswith("ValueError: the simulator broke\n")
    traces = env.reset()[1][TRACES]
    assert [trace.splitlines()[-1] for trace in traces] == ["ImportError: no licence left"] * 2
    assert (len(parts.made), parts.seeds[-1]) == (2, integers(1, "rebuild", 3, count=1)[0])


def test_a_seed_given_to_a_broken_environment_is_that_of_the_new_one():
    parts = Parts()
    env = Slot(parts.make)
    env.reset(seed=7)
    env.step(0)
    env.step(0)
    env.reset(seed=8)
    assert (parts.seeds, len(parts.made)) == ([7, 8], 2)


def test_an_interrupt_is_no_failure():
    class Interrupted(tiny.Tiny):
        def step(self, action):
            raise KeyboardInterrupt

    env = Slot(Interrupted)
    env.reset(seed=1)
    with pytest.raises(KeyboardInterrupt):
        env.step(0)


def test_a_native_vector_is_not_rebuilt(monkeypatch):
    with make("TinyNative-v0", "native") as env:
        env.reset(SEEDS)
        monkeypatch.setattr(tiny.TinyVector, "step", lambda *_: 1 / 0)
        with pytest.raises(EnvError) as caught:
            env.step(np.zeros(SLOTS, np.int64))
        assert env.failures.take() == []
    assert str(caught.value) == (
        "env.id: 'TinyNative-v0' raised, and cannot be rebuilt (env.backend: sync can):"
        " ZeroDivisionError: division by zero"
    )
    assert caught.value.__notes__[0].startswith("Traceback (most recent call last):\n")


def raised(error):
    try:
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError as cause:
            raise error from cause
    except Exception:
        return Failure(0, traceback.format_exc()).line


def test_one_line_tells_what_was_raised():
    assert raised(ValueError("two\nlines\n\n  of it")) == "ValueError: two"
    assert raised(AssertionError()) == "AssertionError"
    assert raised(tiny.Broken("no", 1)) == "tests.envs.tiny.Broken: no (1)"
    assert raised(RuntimeError("x" * 1000)) == f"RuntimeError: {'x' * 1000}"[:SHOWN]
    assert raised(ExceptionGroup("outer", [ValueError("inner")]))  # any line will do


def played(backend, **kwargs):
    """Returns, lengths, last observations and the slots that failed."""
    with closing(make_episodes(EnvSpec("Fragile-v0", backend, kwargs), SLOTS)) as episodes:
        for _ in range(2):  # the second time as the first
            slots = np.arange(SLOTS)
            episodes.start(SEEDS, slots)
            returns, lengths = np.zeros(SLOTS), np.zeros(SLOTS, int)
            while slots.size:
                reward, ended = episodes.step(np.zeros(len(slots), np.int64), slots)
                returns[slots] += reward
                lengths[slots] += 1
                slots = slots[~ended]
            failures = episodes.failures.take()
    return returns, lengths, episodes.obs, [failure.slot for failure in failures]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("resets", [0, 5])
def test_an_episode_ends_where_its_environment_broke(backend, resets):
    returns, lengths, last, failed = played(backend, resets=resets)
    slots = []
    for slot, seed in enumerate(SEEDS):
        hand = ByHand(seed, resets=resets)
        slots += [slot] * hand.failures
        number = int(hand.obs[0])
        broke = bool(tiny.breaks(number, tiny.length(number)))
        whole = tiny.length(number) - broke
        slots += [slot] * broke
        assert lengths[slot] == tiny.length(number)
        assert returns[slot] == whole * (whole + 1) / 2  # rewards 1, 2, …
        np.testing.assert_array_equal(last[slot], [number, whole])
    if not resets:
        assert failed == slots
        assert 0 < len(failed) < SLOTS
    assert len(failed) >= len(slots)  # more where a new environment failed at once, too


@pytest.mark.parametrize("resets", [0, 5])
def test_what_is_played_unseen_does_not_count(resets):
    for one, other in zip(
        played("sync", resets=resets), played("async", resets=resets), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_timing_survives_them():
    with closing(make_vector_env(EnvSpec("Fragile-v0", "auto"), 1, 2)) as env:
        assert env.backend in BACKENDS
        assert env.failures.take() == []
