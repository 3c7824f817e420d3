"""One vector environment for all agents: M = agents × environments slots, stepped together.

Gymnasium's own run plain environments, in this process or in workers. Some environments, such as
CartPole, bring a vectorised version (`vector_entry_point`): it has one random generator for all its
slots, so every agent gets a vector of its own, and what it does never changes another's randomness.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import vector
from gymnasium.envs.registration import EnvSpec as Registration
from numpy.typing import NDArray

from evorl.envs.make import Env, EnvSpec, find, make_env, refusals
from evorl.envs.rebuilding import Failures, make_slot
from evorl.envs.spaces import Array, SpaceAdapter, adapt
from evorl.errors import ConfigError

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
Actions = NDArray[np.int64]
Vector = gymnasium.vector.VectorEnv[Any, Any, Any]
NOT_NATIVE = "env.backend: native is not possible, {}; use auto or sync"
MODES = (vector.AutoresetMode.NEXT_STEP, vector.AutoresetMode.SAME_STEP)


class Step(NamedTuple):
    """What one step of every slot gave; no array is written to again."""

    obs: Array  # [M, …] to act on next: the first of a new episode where one ended
    reward: Floats  # [M]
    terminated: Bools  # [M]
    truncated: Bools  # [M]
    next_obs: Array  # [M, …] the transition's own next observation; is obs if no episode ended
    valid: Bools | None = None  # [M] False: no transition at all, to be left out. None: all are
    failed: Bools | None = None  # [M] True: it raised, and its episode is lost. None: no one's


class VectorEnv(ABC):
    """M environments that start new episodes by themselves."""

    def __init__(
        self, spec: EnvSpec, backend: str, num_envs: int, spaces: SpaceAdapter, limit: int | None
    ) -> None:
        """`limit` is the most steps of an episode."""
        self.backend, self.num_envs, self.max_episode_steps = backend, num_envs, limit
        self.spaces, self.observation, self.action = spaces, spaces.observation, spaces.action
        self.failures = Failures(spec)  # of resets, too; whoever steps the environments counts them

    @abstractmethod
    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts an episode in every slot; observations [M, …]."""

    @abstractmethod
    def step(self, actions: Actions) -> Step:
        """Takes actions [M], counted from 0."""

    @abstractmethod
    def close(self) -> None:
        """Frees everything; safe at any time, also twice."""


class GymVectorEnv(VectorEnv):
    """Gymnasium's SyncVectorEnv or AsyncVectorEnv."""

    def __init__(
        self,
        spec: EnvSpec,
        backend: str,
        num_envs: int,
        wrapper: Callable[[Env], Env] | None = None,
    ) -> None:
        """`wrapper` goes around each environment."""
        super().__init__(spec, backend, num_envs, *inspect(spec))
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


class NativeVectorEnv(VectorEnv):
    """One native vector environment per agent, side by side.

    Most of them start a new episode on the step after an episode's end, ignoring the action: such a
    row is no transition, and is marked `valid = False`. An exception goes through: one slot alone
    cannot be rebuilt.
    """

    def __init__(self, spec: EnvSpec, num_agents: int, num_envs: int) -> None:
        self._per_agent, self._vecs = num_envs, list[Vector]()
        try:
            if refusal := native_refusal(spec):
                raise ConfigError(NOT_NATIVE.format(refusal))
            with refusals(spec):
                for _ in range(num_agents):
                    self._vecs.append(make_native(spec, num_envs))
            first = self._vecs[0]
            if refusal := mode_refusal(first):
                raise ConfigError(NOT_NATIVE.format(f"{spec.id!r} {refusal}"))
            own = first.single_observation_space, first.single_action_space
            spaces = adapt(spec.id, *own, spec.channels_last)
        except ConfigError:
            self.close()
            raise
        limit = spec.kwargs.get("max_episode_steps", find(spec.id).max_episode_steps)
        super().__init__(spec, "native", num_agents * num_envs, spaces, limit)
        self._mode = first.metadata.get("autoreset_mode")
        self._resetting: Bools = np.zeros(self.num_envs, np.bool_)

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts an episode in every slot; an agent's seeds together seed its one generator."""
        raw = []
        for agent, vec in enumerate(self._vecs):
            own = [int(seed) for seed in seeds[agent * self._per_agent :][: self._per_agent]]
            # below 2^30, as the seeds themselves: held-out episodes use the others
            word = np.random.SeedSequence(own).generate_state(1, np.uint32)[0]
            raw.append(vec.reset(seed=int(word >> 2))[0])
        self._resetting = np.zeros(self.num_envs, np.bool_)
        return self.spaces.observations(np.concatenate(raw), copy=False)

    def step(self, actions: Actions) -> Step:
        """Steps every slot that is in an episode; the others start one."""
        parts = self.spaces.actions(actions).reshape(-1, self._per_agent)
        results = [vec.step(part) for vec, part in zip(self._vecs, parts, strict=True)]
        raw, reward, terminated, truncated = (
            np.concatenate([result[field] for result in results]) for field in range(4)
        )
        obs = self.spaces.observations(raw, copy=False)
        reward = reward.astype(np.float32, copy=False)
        ended = terminated | truncated
        if self._mode == vector.AutoresetMode.NEXT_STEP:
            valid = ~self._resetting if self._resetting.any() else None
            self._resetting = ended
            return Step(obs, reward, terminated, truncated, obs, valid)
        next_obs = obs
        if ended.any():
            own = ended.reshape(-1, self._per_agent)
            next_obs = np.concatenate(
                [
                    with_last(part, own[agent], results[agent][4], self.spaces)
                    for agent, part in enumerate(np.split(obs, len(self._vecs)))
                ]
            )
        return Step(obs, reward, terminated, truncated, next_obs)

    def close(self) -> None:
        """Closes every agent's environments."""
        for vec in self._vecs:
            with contextlib.suppress(Exception):
                vec.close()


def native_refusal(spec: EnvSpec) -> str | None:
    """Why an environment cannot run natively, or None if nothing speaks against trying."""
    registered = find(spec.id)
    if registered.vector_entry_point is None:
        return f"{spec.id!r} has no native vector version"
    if spec.wrappers or registered.additional_wrappers:
        return "wrappers wrap single environments, not native vector ones"
    limit = spec.kwargs.get("max_episode_steps", 1)
    if limit is not None and not isinstance(limit, int):
        return f"max_episode_steps must be a whole number, got {limit!r}"
    if (limit or 0) < 0:
        return "native environments read max_episode_steps -1 as an end at every step"
    return None


def mode_refusal(vec: Vector) -> str | None:
    """What is wrong with when a native version starts new episodes, if anything is."""
    mode = vec.metadata.get("autoreset_mode")
    return None if mode in MODES else f"has autoreset mode {getattr(mode, 'name', mode)}"


def make_native(spec: EnvSpec, num_envs: int) -> Vector:
    """The environment's own vector version."""
    return gymnasium.make_vec(
        find(spec.id), num_envs, vectorization_mode="vector_entry_point", **spec.kwargs
    )


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
