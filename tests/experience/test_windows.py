import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from evorl.experience import NStep

from .reference import Episodes, SlowNStep, as_windows, assert_same


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 5),
    num_envs=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    flush_after=st.lists(st.booleans(), min_size=1, max_size=30),
)
def test_windows_equal_the_reference(n, num_envs, seed, flush_after):
    fast = NStep(num_envs, n, (2,), np.float32)
    slow = SlowNStep(num_envs, n)
    episodes = Episodes(num_envs, seed)
    for flush in flush_after:
        step = episodes.step()
        assert_same(as_windows(fast.push(*step)), slow.push(*step))
        if flush:
            assert_same(as_windows(fast.flush()), slow.flush())
            assert as_windows(fast.flush()) == []
            episodes.cut()


def one_env(n, rewards, end):
    """One environment; observation t at step t. Returns all windows and their bootstrap."""
    nstep = NStep(1, n, (), np.float64)
    windows = []
    for t, reward in enumerate(rewards):
        last = t == len(rewards) - 1
        step = nstep.push(
            np.array([t]),
            np.array([t]),
            np.array([reward]),
            np.array([t + 1]),
            np.array([last and "terminated" in end]),
            np.array([last and "truncated" in end]),
        )
        windows += as_windows(step)
    return [
        (w["obs"].item(), w["rewards"].tolist(), w["next_obs"].item(), w["bootstrap"].item())
        for w in windows
    ]


@pytest.mark.parametrize("end", ["terminated", "terminated and truncated"])
def test_termination_never_bootstraps(end):
    assert one_env(3, [1.0, 2.0, 3.0, 4.0], end) == [
        (0, [1.0, 2.0, 3.0], 3, 3),
        (1, [2.0, 3.0, 4.0], 4, 0),
        (2, [3.0, 4.0, 0.0], 4, 0),
        (3, [4.0, 0.0, 0.0], 4, 0),
    ]


def test_truncation_bootstraps_from_the_true_last_observation():
    assert one_env(3, [1.0, 2.0], "truncated") == [
        (0, [1.0, 2.0, 0.0], 2, 2),
        (1, [2.0, 0.0, 0.0], 2, 1),
    ]


def test_one_step_passes_the_arrays_through():
    nstep = NStep(4, 1, (2,), np.float32)
    obs, action, reward, next_obs, terminated, truncated, _ = Episodes(4, 0).step()
    step = nstep.push(obs, action, reward, next_obs, terminated, truncated)
    assert step.obs is obs
    assert step.next_obs is next_obs


def test_held_steps_survive_an_environment_that_reuses_its_arrays():
    nstep = NStep(1, 2, (1,), np.float32)
    obs, next_obs, no = np.zeros((1, 1)), np.ones((1, 1)), np.zeros(1, bool)
    nstep.push(obs, no, np.array([1.0]), next_obs, no, no)
    obs[:], next_obs[:] = 7.0, 8.0
    window = nstep.push(obs, no, np.array([2.0]), next_obs, no, no)
    assert (window.obs.item(), window.next_obs.item()) == (0.0, 8.0)
    obs[:], next_obs[:] = -1.0, -1.0
    cut = nstep.flush()
    assert (cut.obs.item(), cut.next_obs.item(), cut.bootstrap.item()) == (7.0, 8.0, 1)


@pytest.mark.parametrize("n", [0, 256])
def test_a_window_that_does_not_fit_its_byte_is_refused(n):
    with pytest.raises(ValueError, match=f"n={n}"):
        NStep(1, n, (1,), np.float32)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_forgotten_windows_never_come_out(n):
    fast = NStep(3, n, (2,), np.float32)
    slow = SlowNStep(3, n)
    episodes = Episodes(3, seed=1)
    random = np.random.default_rng(2)
    for _ in range(40):
        step = episodes.step()
        assert_same(as_windows(fast.push(*step)), slow.push(*step))
        rows = random.random(3) < 0.2
        fast.forget(rows)
        slow.forget(rows)
    assert_same(as_windows(fast.flush()), slow.flush())
