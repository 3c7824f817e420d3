"""The replay as one would write it on paper: lists and dicts, one environment after another."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evorl.experience import Transitions

Window = dict[str, Any]


@dataclass
class SlowNStep:
    """Per environment the list of its pending steps (obs, action, reward)."""

    num_envs: int
    n: int
    pending: list[list[tuple]] = field(default_factory=list)
    latest: list[Any] = field(default_factory=list)

    def __post_init__(self):
        self.pending = [[] for _ in range(self.num_envs)]
        self.latest = [None] * self.num_envs

    def push(self, obs, action, reward, next_obs, terminated, truncated, valid):
        windows = []
        for env in range(self.num_envs):
            if not valid[env]:
                continue
            steps = self.pending[env]
            steps.append((obs[env].copy(), int(action[env]), float(reward[env])))
            self.latest[env] = next_obs[env].copy()
            if terminated[env] or truncated[env]:
                while steps:
                    windows.append(self._window(env, bool(terminated[env])))
                    steps.pop(0)
            elif len(steps) == self.n:
                windows.append(self._window(env, False))
                steps.pop(0)
        return windows

    def flush(self):
        windows = []
        for env, steps in enumerate(self.pending):
            while steps:
                windows.append(self._window(env, False))
                steps.pop(0)
        return windows

    def forget(self, rows):
        for env in np.flatnonzero(rows):
            self.pending[env].clear()

    def _window(self, env: int, terminated: bool) -> Window:
        steps = self.pending[env]
        rewards = [reward for _, _, reward in steps]
        return {
            "obs": steps[0][0],
            "action": steps[0][1],
            "rewards": rewards + [0.0] * (self.n - len(rewards)),
            "next_obs": self.latest[env],
            "bootstrap": 0 if terminated else len(steps),
            "env": env,
        }


class SlowRing:
    """Per replay a list of places; the next item goes where `position` says."""

    def __init__(self, num_replays: int, capacity: int):
        self.capacity = capacity
        self.places: list[dict[int, Window]] = [{} for _ in range(num_replays)]
        self.position = [0] * num_replays

    def add(self, window: Window, replay: int) -> int:
        place = self.position[replay]
        self.places[replay][place] = window
        self.position[replay] = (place + 1) % self.capacity
        return replay * self.capacity + place


class Episodes:
    """A random environment: steps whose every number is new, so that a mixed-up field shows."""

    def __init__(self, num_envs: int, seed: int):
        self.num_envs = num_envs
        self.rng = np.random.default_rng(seed)
        self.ended = np.ones(num_envs, bool)
        self.obs = self._observations()

    def _observations(self):
        return self.rng.normal(size=(self.num_envs, 2)).astype(np.float32)

    def step(self):
        """One step; a row is invalid now and then, mostly where an episode has just ended."""
        valid = self.rng.random(self.num_envs) >= np.where(self.ended, 0.5, 0.1)
        action = self.rng.integers(0, 9, self.num_envs)
        reward = self.rng.normal(size=self.num_envs)
        next_obs = self._observations()
        terminated = self.rng.random(self.num_envs) < 0.2
        truncated = self.rng.random(self.num_envs) < 0.2
        step = (self.obs, action, reward, next_obs, terminated, truncated, valid)
        self.ended = np.where(valid, terminated | truncated, self.ended)
        self.obs = np.where(self.ended[:, None], self._observations(), next_obs)
        return step

    def cut(self):
        """All episodes end here, as at the end of a generation."""
        self.ended[:] = True


def as_windows(transitions: Transitions) -> list[Window]:
    return [
        dict(zip(Transitions._fields, row, strict=True)) for row in zip(*transitions, strict=True)
    ]


def assert_same(got: list[Window], expected: list[Window]) -> None:
    assert len(got) == len(expected)
    for left, right in zip(got, expected, strict=True):
        for name in right:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def transitions(count: int, n: int = 1, start: int = 0) -> Transitions:
    """`count` items that carry their number, from `start` on, in every field."""
    number = np.arange(start, start + count)
    return Transitions(
        obs=np.stack([number, number + 0.5], axis=1).astype(np.float32),
        action=number,
        rewards=np.repeat(number[:, None], n, axis=1).astype(np.float64),
        next_obs=np.stack([number + 1, number + 1.5], axis=1).astype(np.float32),
        bootstrap=np.full(count, n, np.uint8),
        env=np.zeros(count, np.int64),
    )
