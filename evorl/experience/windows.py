"""Steps of many environments → n-step windows, so that the replay only ever holds valid samples.

A window keeps its n rewards: when it is drawn, `n_step_return` of transitions.py discounts them by
each agent's own gamma and adds them up.

Legend: M environments, n steps of a full window, E windows emitted by one push.
"""

import numpy as np
import numpy.typing as npt

from evorl.experience.transitions import AnyArray, BoolArray, IntArray, Transitions


class NStep:
    """Holds the last n-1 steps of every environment; emits each window as soon as it is complete.

    Order: environments ascending, and within one environment the oldest window first.
    """

    def __init__(
        self,
        num_envs: int,
        n: int,
        obs_shape: tuple[int, ...],
        obs_dtype: npt.DTypeLike,
        action_shape: tuple[int, ...] = (),
        action_dtype: npt.DTypeLike = np.int64,
    ) -> None:
        if not 1 <= n <= 255:  # bootstrap is a byte
            raise ValueError(f"n-step windows of n={n} steps: n must be 1 to 255")
        self.n, self.num_envs = n, num_envs
        self._obs_dtype, self._action_dtype = np.dtype(obs_dtype), np.dtype(action_dtype)
        self._all_envs = np.arange(num_envs)
        held = num_envs if n > 1 else 0  # n = 1 holds nothing between pushes
        self._obs = np.zeros((held, n, *obs_shape), self._obs_dtype)
        self._action = np.zeros((held, n, *action_shape), self._action_dtype)
        self._reward = np.zeros((held, n), np.float64)
        self._latest = np.zeros((held, *obs_shape), self._obs_dtype)  # next_obs of the last step
        self._start = np.zeros(num_envs, np.int64)  # column of the oldest pending step
        self._pending = np.zeros(num_envs, np.int64)  # steps held, 0..n-1 between pushes

    def push(
        self,
        obs: AnyArray,
        action: AnyArray,
        reward: AnyArray,
        next_obs: AnyArray,
        terminated: AnyArray,
        truncated: AnyArray,
        valid: AnyArray | None = None,
    ) -> Transitions:
        """Takes one step of every environment (rows where `valid` is False are no steps)."""
        rows = self._all_envs if valid is None else np.flatnonzero(valid)
        obs = np.asarray(obs, self._obs_dtype)
        next_obs = np.asarray(next_obs, self._obs_dtype)
        if self.n == 1:
            step = Transitions(
                obs,
                np.asarray(action, self._action_dtype),
                reward[:, None],
                next_obs,
                (~terminated).astype(np.uint8),
                self._all_envs,
            )
            return step if len(rows) == self.num_envs else step.take(rows)
        column = (self._start[rows] + self._pending[rows]) % self.n
        self._obs[rows, column] = obs[rows]
        self._action[rows, column] = action[rows]
        self._reward[rows, column] = reward[rows]
        self._latest[rows] = next_obs[rows]
        self._pending[rows] += 1
        over = np.zeros(self.num_envs, np.bool_)
        over[rows] = (terminated | truncated)[rows]
        full = self._pending == self.n
        # An episode's end completes all pending windows of its environment, shorter than n.
        emitted = self._emit(np.where(over, self._pending, full), terminated)
        self._start = (self._start + full) % self.n
        self._pending = np.where(over, 0, self._pending - full)
        return emitted

    def forget(self, rows: BoolArray) -> None:
        """Drops the pending windows of some environments, whose episodes broke off; rows [M]."""
        self._pending[rows] = 0

    def flush(self) -> Transitions:
        """Cuts all episodes: pending windows come out as truncations, and nothing is held."""
        emitted = self._emit(self._pending, np.zeros(self.num_envs, np.bool_))
        self._pending = np.zeros_like(self._pending)
        return emitted

    def _emit(self, count: IntArray, terminated: BoolArray) -> Transitions:
        """The `count` [M] oldest windows of every environment, each up to its latest step."""
        env = np.repeat(self._all_envs, count)  # [E]
        age = np.arange(len(env)) - np.repeat(np.cumsum(count) - count, count)  # 0: oldest
        length = self._pending[env] - age
        first = self._start[env] + age
        steps = np.arange(self.n)
        rewards = self._reward[env[:, None], (first[:, None] + steps) % self.n]  # [E, n]
        rewards[steps >= length[:, None]] = 0.0
        return Transitions(
            self._obs[env, first % self.n],
            self._action[env, first % self.n],
            rewards,
            self._latest[env],
            np.where(terminated[env], 0, length).astype(np.uint8),
            env,
        )
