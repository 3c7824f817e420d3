"""One vector environment for all agents: M = agents × environments slots, stepped together."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import vector
from numpy.typing import NDArray

from evorl.envs.make import EnvSpec, adapted, find, make_env, refusals
from evorl.envs.rebuilding import TRACES, Failures, make_slot, random_action
from evorl.envs.spaces import Array, SpaceAdapter
from evorl.errors import ConfigError

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
Actions = NDArray[Any]  # [M] choices counted from 0, [M, A] of several, or of numbers -1 to 1
Rows = NDArray[np.int64]


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
        """Takes actions [M, …] in evorl's form."""

    @abstractmethod
    def close(self) -> None:
        """Frees everything; safe at any time, also twice."""


class SlotVectorEnv(VectorEnv):
    """Environments of which some can be stepped or restarted, while the others stay as they are."""

    seeds_some = True  # whether some slots can be given seeds, while the others stay as they are

    @abstractmethod
    def play(self, actions: Actions, rows: Rows | None = None) -> Step:
        """Steps K slots (None: all) by actions [K, …]; starts no new episodes."""

    @abstractmethod
    def restart(self, rows: Rows, seeds: Sequence[int] | None = None) -> Array:
        """Starts new episodes in some slots; their observations [K, …]."""

    def step(self, actions: Actions) -> Step:
        """Steps every slot; ended episodes are followed by new ones at once."""
        step = self.play(actions)
        ended = np.flatnonzero(step.terminated | step.truncated)
        if not ended.size:
            return step
        obs = step.next_obs.copy()
        obs[ended] = self.restart(ended)
        return step._replace(obs=obs, valid=None if step.failed is None else ~step.failed)


class SyncVectorEnv(SlotVectorEnv):
    """Plain Gymnasium environments in this process."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        super().__init__(spec, "sync", num_envs, *inspect(spec))
        masked = self.observation.mask > 0
        self._envs = [make_slot(spec, masked=masked) for _ in range(num_envs)]

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts an episode in every slot, each with its own seed."""
        return self._reset(range(self.num_envs), seeds)

    def restart(self, rows: Rows, seeds: Sequence[int] | None = None) -> Array:
        """Resets these environments."""
        return self._reset(rows.tolist(), seeds or [None] * len(rows))

    def play(self, actions: Actions, rows: Rows | None = None) -> Step:
        """Steps these environments, one after another."""
        own = self.spaces.actions(actions)
        chosen = range(self.num_envs) if rows is None else rows.tolist()
        found = [self._envs[row].step(action) for row, action in zip(chosen, own, strict=True)]
        raw, rewards, terminated, truncated, infos = zip(*found, strict=True)
        obs = self.spaces.observations(np.stack(raw), copy=False)
        reward = np.array(rewards, np.float32).reshape(-1)  # some give arrays of one number
        ends, cuts = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        failed = self._note(chosen, infos) if any(infos) else None
        return Step(obs, reward, ends, cuts, obs, failed=failed)

    def close(self) -> None:
        """Closes every environment."""
        for env in self._envs:
            with suppress(Exception):
                env.close()

    def _reset(self, rows: Sequence[int], seeds: Sequence[int | None]) -> Array:
        found = [self._envs[row].reset(seed=seed) for row, seed in zip(rows, seeds, strict=True)]
        self._note(rows, [info for _, info in found])
        return self.spaces.observations(np.stack([obs for obs, _ in found]), copy=False)

    def _note(self, rows: Iterable[int], infos: Iterable[dict[str, Any]]) -> Bools:
        for row, info in zip(rows, infos, strict=True):
            self.failures.add(row, info.get(TRACES, ()))
        return np.array([TRACES in info for info in infos])


class AsyncVectorEnv(SlotVectorEnv):
    """Plain Gymnasium environments, each in a worker process of its own."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        super().__init__(spec, "async", num_envs, *inspect(spec))
        self._vec = vector.AsyncVectorEnv(
            [partial(make_slot, spec, find(spec.id), self.observation.mask > 0)] * num_envs,
            copy=False,  # the adapter copies, once
            autoreset_mode=vector.AutoresetMode.DISABLED,
        )

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts an episode in every slot, each with its own seed."""
        raw, infos = self._vec.reset(seed=list(seeds))
        self._note(infos)
        return self.spaces.observations(raw)

    def restart(self, rows: Rows, seeds: Sequence[int] | None = None) -> Array:
        """Resets these environments."""
        mask = np.isin(np.arange(self.num_envs), rows)
        own: list[int | None] = [None] * self.num_envs
        for row, seed in zip(rows.tolist(), seeds or (), strict=seeds is not None):
            own[row] = seed
        raw, infos = self._vec.reset(seed=own, options={"reset_mask": mask})
        self._note(infos)
        return self.spaces.observations(raw[rows], copy=False)

    def play(self, actions: Actions, rows: Rows | None = None) -> Step:
        """Steps these environments, all at once; the others rest."""
        rows = np.arange(self.num_envs) if rows is None else rows
        own: list[Any] = [None] * self.num_envs
        for row, action in zip(rows.tolist(), self.spaces.actions(actions), strict=True):
            own[row] = action
        raw, reward, terminated, truncated, infos = self._vec.step(own)
        failed = self._note(infos)
        obs = self.spaces.observations(raw[rows], copy=False)
        failed = None if failed is None else failed[rows]
        gained, ends, cuts = reward[rows].astype(np.float32), terminated[rows], truncated[rows]
        return Step(obs, gained, ends, cuts, obs, failed=failed)

    def close(self) -> None:
        """Closes the environments, and ends workers that will not close by themselves."""
        # a worker that died cannot answer; Gymnasium warns of one that is within a step
        with suppress(Exception), warnings.catch_warnings(action="ignore"):
            self._vec.close(timeout=5)
        self._vec.closed = True
        for process in self._vec.processes:
            process.kill()
            process.join()

    def _note(self, infos: dict[str, Any]) -> Bools | None:
        """Which slots [M] have failed, if any."""
        if TRACES not in infos:
            return None
        failed: Bools = infos[f"_{TRACES}"]
        for slot in np.flatnonzero(failed):
            self.failures.add(int(slot), infos[TRACES][slot])
        return failed


class Episodes:
    """M slots for seeded episodes, to score agents; each begins when it is told to.

    `obs` [M, …] has every slot's latest observation, the last one where its episode has ended. An
    environment that raises in a step ends its episode there.
    """

    def __init__(self, env: SlotVectorEnv) -> None:
        self._env, self.num_envs, self.spaces = env, env.num_envs, env.spaces  # M
        self.observation, self.action, self.failures = env.observation, env.action, env.failures
        self.seeds_some = env.seeds_some  # else all begin at once, when all are over
        self.max_episode_steps = env.max_episode_steps
        self.obs: Array = np.zeros((self.num_envs, *env.observation.shape), env.observation.dtype)

    def start(self, seeds: Sequence[int], slots: Rows) -> None:
        """Begins an episode in each of K slots, with its own seed."""
        if self.seeds_some:
            self.obs[slots] = self._env.restart(slots, seeds)
        else:
            own = np.zeros(self.num_envs, np.int64)
            own[slots] = seeds
            self.obs[:] = self._env.reset(own.tolist())

    def step(self, actions: Actions, slots: Rows) -> tuple[Floats, Bools]:
        """Steps K slots by actions [K, …]: rewards [K], and whose episode has ended [K]."""
        step = self._env.play(actions, slots)
        seen = slice(None) if step.failed is None else ~step.failed
        self.obs[slots[seen]] = step.obs[seen]
        return step.reward, step.terminated | step.truncated

    def close(self) -> None:
        """Frees everything; safe at any time, also twice."""
        self._env.close()


def inspect(spec: EnvSpec) -> tuple[SpaceAdapter, int | None]:
    """The spaces and the episode limit of an environment, from making one and stepping it once.

    What is wrong with it, or with its wrappers, then shows before anything is written.
    """
    env = make_env(spec)
    try:
        spaces = adapted(env, spec)
        with refusals(repr(spec.id), spec.kwargs):
            first, _ = env.reset(seed=0)
            got, expected = np.shape(first), env.observation_space.shape
            if got != expected:
                raise ConfigError(
                    f"env.id: {spec.id!r} says observations of shape {expected}, and gives {got}"
                )
            env.step(random_action(env))
        return spaces, env.spec.max_episode_steps if env.spec else None
    finally:
        env.close()
