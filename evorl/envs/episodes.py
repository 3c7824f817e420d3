"""One seeded episode per slot, for fitness: only slots still in their episode are stepped."""

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np

from evorl.envs.make import EnvSpec
from evorl.envs.pool import Pool
from evorl.envs.rebuilding import TRACES, Failures, make_slot
from evorl.envs.spaces import Array, ObservationSpec, SpaceAdapter
from evorl.envs.vector import Actions, Bools, Floats, GymVectorEnv, inspect


class Episodes(Protocol):
    """One episode in each of M slots; a slot's last observation stays when its episode ended.

    An environment that raises in a step ends its episode there.
    """

    num_envs: int  # M
    spaces: SpaceAdapter
    observation: ObservationSpec
    num_actions: int
    failures: Failures  # of resets, too; whoever plays the episodes counts them

    def reset(self, seeds: Sequence[int], wanted: Bools | None = None) -> Array:
        """Starts every slot's episode, if it is `wanted` [M]; observations [M, …]."""

    def step(self, actions: Actions, active: Bools) -> tuple[Array, Floats, Bools]:
        """Steps the active slots: observations [M, …], rewards [M] (0 elsewhere), ended now [M]."""

    def close(self) -> None:
        """Frees everything; safe at any time, also twice."""


class SyncEpisodes:
    """Plain Gymnasium environments in this process."""

    def __init__(self, spec: EnvSpec, count: int) -> None:
        self.num_envs = count
        self.spaces, _ = inspect(spec)
        self._envs = [make_slot(spec) for _ in range(count)]
        self.failures = Failures(spec)
        self.observation = self.spaces.observation
        self.num_actions = self.spaces.num_actions

    def reset(self, seeds: Sequence[int], wanted: Bools | None = None) -> Array:
        """Starts every slot's episode."""
        raw = []
        for slot, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            obs, info = env.reset(seed=int(seed))
            self.failures.add(slot, info.get(TRACES, ()))
            raw.append(obs)
        self._obs = self.spaces.observations(np.stack(raw), copy=False)
        self._live = np.ones(self.num_envs, np.bool_)
        return self._obs.copy()

    def step(self, actions: Actions, active: Bools) -> tuple[Array, Floats, Bools]:
        """Steps the active slots, one after another."""
        slots = np.flatnonzero(active & self._live)
        reward = np.zeros(self.num_envs, np.float32)
        ended = np.zeros(self.num_envs, np.bool_)
        raw = {}
        own = self.spaces.actions(actions)
        for slot in slots:
            obs, reward[slot], terminated, truncated, info = self._envs[slot].step(own[slot])
            ended[slot] = terminated or truncated
            if TRACES in info:
                self.failures.add(int(slot), info[TRACES])
            else:
                raw[slot] = obs
        if raw:
            self._obs[list(raw)] = self.spaces.observations(np.stack([*raw.values()]), copy=False)
        self._live &= ~ended
        return self._obs.copy(), reward, ended

    def close(self) -> None:
        """Closes every environment."""
        for env in self._envs:
            with contextlib.suppress(Exception):
                env.close()


class PlayedOnce(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Rests after its episode, until it is given another seed: its last observation, no reward.

    If it is not wanted, it rests at once.
    """

    wanted = True
    _last: Any = None  # set while it rests

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """An episode, unless it is one that a vector environment begins by itself."""
        if seed is None and self._last is not None:
            return self._last, {}
        obs, info = self.env.reset(seed=seed, options=options)
        self._last = None if self.wanted else obs
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The environment's step, while its episode goes on."""
        if self._last is not None:
            return self._last, 0.0, False, False, {}
        obs, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            self._last = obs
        return obs, reward, terminated, truncated, info


class AsyncEpisodes:
    """Worker processes. They step together, but slots that are not wanted any more only rest."""

    def __init__(self, spec: EnvSpec, count: int) -> None:
        self._vec = GymVectorEnv(spec, "async", count, PlayedOnce)
        self.failures = Failures(spec)
        self.num_envs = count
        self.spaces = self._vec.spaces
        self.observation = self._vec.observation
        self.num_actions = self._vec.num_actions

    def reset(self, seeds: Sequence[int], wanted: Bools | None = None) -> Array:
        """Starts the episodes that are wanted."""
        wanted = np.ones(self.num_envs, np.bool_) if wanted is None else wanted
        self._vec.tell("wanted", wanted.tolist())
        self._obs = self._vec.reset(seeds)
        self._tell(np.ones(self.num_envs, np.bool_))
        self._live = np.ones(self.num_envs, np.bool_)
        return self._obs.copy()

    def step(self, actions: Actions, active: Bools) -> tuple[Array, Floats, Bools]:
        """Steps every slot, and shows the active ones."""
        shown = active & self._live
        step = self._vec.step(actions)
        seen = shown if step.valid is None else shown & step.valid
        self._obs[seen] = step.next_obs[seen]
        self._tell(shown & ~seen)
        ended = (step.terminated | step.truncated) & shown
        self._live &= ~ended
        return self._obs.copy(), np.where(shown, step.reward, np.float32(0)), ended

    def close(self) -> None:
        """Ends the workers."""
        self._vec.close()

    def _tell(self, slots: Bools) -> None:
        """As if nothing had been played unseen."""
        for failure in self._vec.failures.take():
            if slots[failure.slot]:
                self.failures.add(failure.slot, [failure.trace])


class PoolEpisodes:
    """An EnvPool, which can step some of its slots."""

    def __init__(self, spec: EnvSpec, count: int) -> None:
        self._pool = Pool(spec, count)
        self.failures = Failures(spec)  # none, ever
        self.num_envs = count
        self.spaces = self._pool.spaces
        self.observation = self._pool.spaces.observation
        self.num_actions = self._pool.spaces.num_actions

    def reset(self, seeds: Sequence[int], wanted: Bools | None = None) -> Array:
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
