"""Environments that bring their own vectorised version (`vector_entry_point`), such as CartPole.

Such a version has one random generator for all its slots, so every agent gets a vector of its own:
what one agent does never changes another's randomness.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from evorl.envs.make import EnvSpec, find, refusals
from evorl.envs.rebuilding import Failures
from evorl.envs.spaces import Array, adapt
from evorl.envs.vector import Actions, Bools, Step, with_last
from evorl.errors import ConfigError

Vector = gymnasium.vector.VectorEnv[Any, Any, Any]


class NativeVectorEnv:
    """One native vector environment per agent, side by side.

    Most of them start a new episode on the step after an episode's end, ignoring the action: such a
    row is no transition, and is marked `valid = False`. An exception goes through: one slot alone
    cannot be rebuilt.
    """

    backend = "native"

    def __init__(self, spec: EnvSpec, num_agents: int, num_envs: int) -> None:
        refusal = native_refusal(spec)
        if refusal:
            raise ConfigError(f"env.backend: native is not possible, {refusal}; use auto or sync")
        self.num_envs = num_agents * num_envs
        self._per_agent = num_envs
        self.failures = Failures(spec)  # none, ever
        self._vecs: list[Vector] = []
        with refusals(spec):
            for _ in range(num_agents):
                self._vecs.append(make_native(spec, num_envs))
        first = self._vecs[0]
        self._mode = first.metadata.get("autoreset_mode")
        try:
            _check_mode(spec.id, self._mode)
            self.spaces = adapt(
                spec.id,
                first.single_observation_space,
                first.single_action_space,
                spec.channels_last,
            )
        except ConfigError:
            self.close()
            raise
        self.observation = self.spaces.observation
        self.num_actions = self.spaces.num_actions
        limit = find(spec.id).max_episode_steps
        self.max_episode_steps: int | None = spec.kwargs.get("max_episode_steps", limit)
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
        if self._mode == AutoresetMode.NEXT_STEP:
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


def _check_mode(env_id: str, mode: Any) -> None:
    if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        raise ConfigError(
            f"env.backend: native is not possible, {env_id!r} has autoreset mode "
            f"{getattr(mode, 'name', mode)}; use auto or sync"
        )


def make_native(spec: EnvSpec, num_envs: int) -> Vector:
    """The environment's own vector version."""
    return gymnasium.make_vec(
        find(spec.id), num_envs, vectorization_mode="vector_entry_point", **spec.kwargs
    )
