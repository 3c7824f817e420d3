"""One vector environment for all agents: M = agents × environments slots, stepped together."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evorl.envs.entrance import Bools, Entrance, Floats
from evorl.envs.make import EnvSpec, adapted, close, make_env, refusals
from evorl.envs.rebuilding import (
    RESET,
    TRACES,
    Failures,
    Slot,
    make_slot,
    random_action,
    step_slots,
)
from evorl.envs.spaces import Array, SpaceAdapter
from evorl.envs.watching import Watch
from evorl.errors import ConfigError

LONGEST = 10_000  # steps of an episode that is scored, unless the configuration says so
UNLIMITED = 1_000  # the same in environments without a limit
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
        self._entrance, self._watch = Entrance(self.spaces), Watch(spec.id, spec.timeout)
        self._envs: list[Slot] = []
        with self._watch:
            for _ in range(num_envs):
                self._envs.append(make_slot(spec, masked=masked, entrance=self._entrance))

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts an episode in every slot, each with its own seed."""
        return self._reset(range(self.num_envs), seeds)

    def restart(self, rows: Rows, seeds: Sequence[int] | None = None) -> Array:
        """Resets these environments."""
        return self._reset(rows.tolist(), seeds or [None] * len(rows))

    def play(self, actions: Actions, rows: Rows | None = None) -> Step:
        """Steps these environments, one after another."""
        own = self.spaces.actions(actions)
        if own is actions and own.ndim > 1:
            own = own.copy()  # some write into the arrays that they are given
        chosen = range(self.num_envs) if rows is None else rows.tolist()
        slots = self._envs if rows is None else [self._envs[row] for row in chosen]
        with self._watch:
            (obs, reward, ends, cuts), traces = step_slots(slots, own, self._entrance)
        failed = self._note(chosen, traces) if any(traces) else None
        return Step(obs, reward, ends, cuts, obs, failed=failed)

    def close(self) -> None:
        """Closes every environment."""
        with self._watch:
            for env in self._envs:
                close(env)

    def _reset(self, rows: Sequence[int], seeds: Sequence[int | None]) -> Array:
        with self._watch:
            slots = zip(rows, seeds, strict=True)
            found = [self._envs[row].reset(seed=seed) for row, seed in slots]
        self._note(rows, [info.get(TRACES, ()) for _, info in found])
        obs = self._entrance.observations([obs for obs, _ in found])
        assert obs is not None  # each slot has looked at its own
        return obs

    def _note(self, rows: Iterable[int], traces: Sequence[Sequence[str]]) -> Bools:
        """Which of these slots [K] have failed."""
        for row, own in zip(rows, traces, strict=True):
            self.failures.add(row, own)
        return np.array([bool(own) for own in traces])


def steps_limit(given: int | Literal["auto"], own: int | None) -> int:
    """After how many steps scoring cuts an episode, by the option and the environment's limit."""
    if given != "auto":
        return given
    return UNLIMITED if own is None else min(own, LONGEST)


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
    with Watch(spec.id, spec.timeout):
        env = make_env(spec)
        try:
            with refusals(repr(spec.id), {}):
                spaces = adapted(env, spec)
                entrance, (first, _) = Entrance(spaces), env.reset(seed=0)
                problem = entrance.problem_of_observation(first, RESET)
                if problem is None:
                    problem = entrance.problem(env.step(random_action(env)), 1)
                if problem is not None:
                    raise ConfigError(f"env.id: {spec.id!r} {problem}")
                return spaces, env.spec.max_episode_steps if env.spec else None
        finally:
            close(env)
