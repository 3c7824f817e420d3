"""One vector environment for all agents: M = agents × environments slots, stepped together."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import vector
from gymnasium.envs.registration import EnvSpec as Registration
from numpy.typing import NDArray

from evorl.envs.make import Env, EnvSpec, find, make_env, refusals
from evorl.envs.rebuilding import Failures, make_slot
from evorl.envs.spaces import Array, ObservationSpec, SpaceAdapter, adapt
from evorl.errors import ConfigError

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
Actions = NDArray[np.int64]


class Step(NamedTuple):
    """What one step of every slot gave; no array is written to again."""

    obs: Array  # [M, …] to act on next: the first of a new episode where one ended
    reward: Floats  # [M]
    terminated: Bools  # [M]
    truncated: Bools  # [M]
    next_obs: Array  # [M, …] the transition's own next observation; is obs if no episode ended
    valid: Bools | None = None  # [M] False: no transition at all, to be left out. None: all are
    failed: Bools | None = (
        None  # [M] True: the step raised, and its episode is lost. None: no one's
    )


class VectorEnv(Protocol):
    """M environments that start new episodes by themselves."""

    num_envs: int  # M
    spaces: SpaceAdapter
    observation: ObservationSpec
    num_actions: int
    backend: str
    max_episode_steps: int | None
    failures: Failures  # of resets, too; whoever steps the environments counts them

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts an episode in every slot; observations [M, …]."""

    def step(self, actions: Actions) -> Step:
        """Takes actions [M], counted from 0."""

    def close(self) -> None:
        """Frees everything; safe at any time, also twice."""


class GymVectorEnv:
    """Gymnasium's SyncVectorEnv or AsyncVectorEnv."""

    def __init__(
        self,
        spec: EnvSpec,
        backend: str,
        num_envs: int,
        wrapper: Callable[[Env], Env] | None = None,
    ) -> None:
        """`wrapper` goes around each environment."""
        self.backend = backend
        self.num_envs = num_envs
        self.spaces, self.max_episode_steps = inspect(spec)
        self.observation = self.spaces.observation
        self.num_actions = self.spaces.num_actions
        self.failures = Failures(spec)
        kind = vector.SyncVectorEnv if backend == "sync" else vector.AsyncVectorEnv
        self._vec: vector.SyncVectorEnv | vector.AsyncVectorEnv = kind(
            [partial(_make, wrapper, spec, find(spec.id))] * num_envs,
            copy=False,  # the adapter copies, once
            autoreset_mode=vector.AutoresetMode.SAME_STEP,
        )
        self._in_call = False  # stays True if a call raised: the workers' state is then unknown

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts an episode in every slot, each with its own seed."""
        own: list[int | None] = [int(seed) for seed in seeds]
        self._in_call = True
        raw, infos = self._vec.reset(seed=own)
        self._in_call = False
        self.failures.read(infos)
        return self.spaces.observations(raw)

    def tell(self, name: str, values: Sequence[Any]) -> None:
        """Sets an attribute of each environment."""
        self._in_call = True
        self._vec.set_attr(name, list(values))
        self._in_call = False

    def step(self, actions: Actions) -> Step:
        """Steps every slot."""
        self._in_call = True
        raw, reward, terminated, truncated, infos = self._vec.step(self.spaces.actions(actions))
        self._in_call = False
        obs = self.spaces.observations(raw)
        next_obs = with_last(obs, terminated | truncated, infos, self.spaces)
        failed = self.failures.read(infos.get("final_info", {}))
        self.failures.read(infos)  # of a reset, after a last step that was a true one
        valid = None if failed is None else ~failed
        return Step(obs, reward.astype(np.float32), terminated, truncated, next_obs, valid, failed)

    def close(self) -> None:
        """Closes the environments, and ends workers that will not close by themselves."""
        if self._vec.closed:
            return
        try:
            if not self._in_call or self.backend == "sync":
                with contextlib.suppress(Exception):  # a worker that died cannot answer
                    self._vec.close()
        finally:
            self._vec.closed = True
            for process in getattr(self._vec, "processes", ()):
                process.terminate()
                process.join(timeout=5)
                if process.is_alive():
                    process.kill()
                    process.join()


def _make(wrapper: Callable[[Env], Env] | None, spec: EnvSpec, registered: Registration) -> Env:
    env = make_slot(spec, registered)
    return env if wrapper is None else wrapper(env)


def inspect(spec: EnvSpec) -> tuple[SpaceAdapter, int | None]:
    """The spaces and the episode limit of an environment, from making one and stepping it once.

    What is wrong with it, or with its wrappers, then shows before anything is written.
    """
    env = make_env(spec)
    try:
        spaces = adapt(spec.id, env.observation_space, env.action_space, spec.channels_last)
        with refusals(spec):
            first, _ = env.reset(seed=0)
            got, expected = np.shape(first), env.observation_space.shape
            if got != expected:
                raise ConfigError(
                    f"env.id: {spec.id!r} says observations of shape {expected}, and gives {got}"
                )
            env.step(env.action_space.sample())
        return spaces, env.spec.max_episode_steps if env.spec else None
    finally:
        env.close()


def with_last(obs: Array, ended: Bools, infos: dict[str, Any], spaces: SpaceAdapter) -> Array:
    """obs with the last observations of ended episodes in their rows (infos["final_obs"])."""
    rows = np.flatnonzero(ended)
    if not rows.size:
        return obs
    next_obs = obs.copy()
    last = np.stack([infos["final_obs"][row] for row in rows])
    next_obs[rows] = spaces.observations(last, copy=False)
    return next_obs
