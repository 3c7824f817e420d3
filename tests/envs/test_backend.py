"""What `auto` stands for."""

import os
import subprocess
import sys
import time
import warnings
from contextlib import closing

import gymnasium
import numpy as np
import pytest

from evorl.envs import EnvSpec, choose_backend, make_vector_env

from . import tiny
from .test_refusals import Wrap


class Slow(tiny.Tiny):
    def step(self, action):
        time.sleep(0.01)
        return super().step(action)


gymnasium.register("TinySlow-v0", entry_point=Slow)


@pytest.mark.parametrize(
    ("spec", "num_envs", "backend", "reason"),
    [
        (EnvSpec("CartPole-v1"), 8, "native", "'CartPole-v1' has a native vector version"),
        (EnvSpec("CartPole-v1"), 7, "sync", "native vector version pays from 8 environments"),
        (EnvSpec("CartPole-v1", wrappers=[Wrap("FlattenObservation")]), 8, "sync", "wrappers wrap"),
        (EnvSpec("Tiny-v0"), 8, "sync", "worker processes would not pay; 'Tiny-v0' has no"),
        (EnvSpec("TinyNativeMissing-v0"), 8, "sync", "cannot be made (No module named"),
        (EnvSpec("TinyNativeDisabled-v0"), 8, "sync", "has autoreset mode DISABLED"),
        (EnvSpec("CartPole-v1", "async"), 2, "async", "set by env.backend"),
    ],
)
def test_choice(spec, num_envs, backend, reason):
    chosen, why = choose_backend(spec, 2, num_envs)
    assert chosen == backend
    assert reason in why
    assert "\n" not in why
    with closing(make_vector_env(spec, 2, num_envs)) as env:
        assert env.backend == backend


def test_a_slow_environment_gets_workers():
    cores = len(os.sched_getaffinity(0))
    assert choose_backend(EnvSpec("TinySlow-v0"), 2, 2)[0] == ("async" if cores > 1 else "sync")
    chosen, why = choose_backend(EnvSpec("TinySlow-v0"), 1, 1)
    assert chosen == "sync"
    assert "would not pay" in why


def test_wrappers_are_applied_in_order():
    wrappers = [
        Wrap("FrameStackObservation", {"stack_size": 3}),
        Wrap("TimeLimit", {"max_episode_steps": 2}),
    ]
    with closing(make_vector_env(EnvSpec("Tiny-v0", "sync", {}, wrappers), 1, 1)) as env:
        assert env.observation.shape == (6,)
        assert env.max_episode_steps == 2
        env.reset([0])
        assert not env.step(np.array([0])).truncated[0]
        assert env.step(np.array([0])).truncated[0]


def test_without_envpool_it_says_what_to_install():
    code = """
import sys
sys.modules["envpool"] = None  # as if it were not installed
from evorl.envs import EnvSpec, make_vector_env
try:
    make_vector_env(EnvSpec("CartPole-v1", "envpool"), 1, 1)
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        "ConfigError env.backend: envpool is not installed; in the clone: "
        "pip install -e '.[envpool]'"
    )


def test_envpool_is_quiet():
    pytest.importorskip("envpool")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with closing(make_vector_env(EnvSpec("CartPole-v1", "envpool"), 1, 2)) as env:
            env.reset([0, 1])
            for _ in range(20):
                env.step(np.zeros(2, np.int64))
