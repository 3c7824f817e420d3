"""One seeded episode per slot, for fitness: only slots still in their episode are stepped."""

import contextlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from evorl.envs.make import EnvSpec, LastObservationKept, make_env
from evorl.envs.pool import Pool
from evorl.envs.spaces import Array, ObservationSpec
from evorl.envs.vector import Actions, Bools, Floats, GymVectorEnv, inspect


class Episodes(Protocol):
    """One episode in each of M slots; a slot's last observation stays when its episode ended."""

    num_envs: int  # M
    observation: ObservationSpec
    num_actions: int

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts every slot's episode; observations [M, …]."""

    def step(self, actions: Actions, active: Bools) -> tuple[Array, Floats, Bools]:
        """Steps the active slots: observations [M, …], rewards [M] (0 elsewhere), ended now [M]."""

    def close(self) -> None:
        """Frees everything; safe at any time, also twice."""


class SyncEpisodes:
    """Plain Gymnasium environments in this process."""

    def __init__(self, spec: EnvSpec, count: int) -> None:
        self.num_envs = count
        self._spaces, _ = inspect(spec)
        self._envs = [LastObservationKept(make_env(spec)) for _ in range(count)]
        self.observation = self._spaces.observation
        self.num_actions = self._spaces.num_actions

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts every slot's episode."""
        raw = [env.reset(seed=int(s))[0] for env, s in zip(self._envs, seeds, strict=True)]
        self._obs = self._spaces.observations(np.stack(raw), copy=False)
        self._live = np.ones(self.num_envs, np.bool_)
        return self._obs.copy()

    def step(self, actions: Actions, active: Bools) -> tuple[Array, Floats, Bools]:
        """Steps the active slots, one after another."""
        slots = np.flatnonzero(active & self._live)
        reward = np.zeros(self.num_envs, np.float32)
        ended = np.zeros(self.num_envs, np.bool_)
        raw = []
        own = self._spaces.actions(actions)
        for slot in slots:
            obs, reward[slot], terminated, truncated, _ = self._envs[slot].step(own[slot])
            ended[slot] = terminated or truncated
            raw.append(obs)
        if raw:
            self._obs[slots] = self._spaces.observations(np.stack(raw), copy=False)
        self._live &= ~ended
        return self._obs.copy(), reward, ended

    def close(self) -> None:
        """Closes every environment."""
        for env in self._envs:
            with contextlib.suppress(Exception):
                env.close()


class AsyncEpisodes:
    """Worker processes. They step together, so ended slots play on, unseen, until the last ends."""

    def __init__(self, spec: EnvSpec, count: int) -> None:
        self._vec = GymVectorEnv(spec, "async", count)
        self.num_envs = count
        self.observation = self._vec.observation
        self.num_actions = self._vec.num_actions

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts every slot's episode."""
        self._obs = self._vec.reset(seeds)
        self._live = np.ones(self.num_envs, np.bool_)
        return self._obs.copy()

    def step(self, actions: Actions, active: Bools) -> tuple[Array, Floats, Bools]:
        """Steps every slot, and shows the active ones."""
        shown = active & self._live
        step = self._vec.step(actions)
        self._obs[shown] = step.next_obs[shown]
        ended = (step.terminated | step.truncated) & shown
        self._live &= ~ended
        return self._obs.copy(), np.where(shown, step.reward, np.float32(0)), ended

    def close(self) -> None:
        """Ends the workers."""
        self._vec.close()


class PoolEpisodes:
    """An EnvPool, which can step some of its slots."""

    def __init__(self, spec: EnvSpec, count: int) -> None:
        self._pool = Pool(spec, count)
        self.num_envs = count
        self.observation = self._pool.spaces.observation
        self.num_actions = self._pool.spaces.num_actions

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts every slot's episode."""
        self._obs = self._pool.start(seeds)
        self._live = np.ones(self.num_envs, np.bool_)
        return self._obs.copy()

    def step(self, actions: Actions, active: Bools) -> tuple[Array, Floats, Bools]:
        """Steps the active slots."""
        slots = np.flatnonzero(active & self._live)
        reward = np.zeros(self.num_envs, np.float32)
        ended = np.zeros(self.num_envs, np.bool_)
        if slots.size:
            ids = slots.astype(np.int32)
            self._obs[slots], reward[slots], ends, cuts = self._pool.step(actions[slots], ids)
            ended[slots] = ends | cuts
        self._live &= ~ended
        return self._obs.copy(), reward, ended

    def close(self) -> None:
        """Ends the pool's threads."""
        self._pool.close()
