"""EnvPool: environments in C++ threads. An optional extra, and never chosen by `auto`.

Its dynamics differ from Gymnasium's in detail, so results would depend on what is installed. One
such detail: an episode that terminates in the last step its limit allows is said to be truncated.
"""

import importlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from evorl.envs.make import EnvSpec, did_you_mean, refusals
from evorl.envs.spaces import Array, SpaceAdapter, adapt
from evorl.envs.vector import Actions, Bools, Floats, Step, VectorEnv
from evorl.errors import ConfigError

OURS = ("num_envs", "seed", "env_seed", "batch_size", "max_num_players", "gym_reset_return_info")
NO_LIMIT = 2**31 - 1


class Pool:
    """A pool of environments that can be stepped in part; nothing is reset by itself."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self._envpool = _import()
        _check(spec, self._envpool)
        self._spec = spec
        self._num_envs = num_envs
        self._pool: Any = None
        with refusals(spec), _quiet():
            made = self._envpool.make_spec(spec.id, **spec.kwargs)
            spaces = made.gymnasium_observation_space, made.gymnasium_action_space
        self.raw_observations: Space[Any] = spaces[0]
        self.spaces: SpaceAdapter = adapt(spec.id, *spaces, spec.channels_last)
        limit = int(made.config.max_episode_steps)
        self.max_episode_steps = limit if 0 < limit < NO_LIMIT else None

    def start(self, seeds: Sequence[int]) -> Array:
        """Every slot's first observation; of a new pool, which takes seeds only when it is made."""
        self.close()
        with refusals(self._spec), _quiet():
            self._pool = self._envpool.make_gymnasium(
                self._spec.id,
                num_envs=self._num_envs,
                seed=[int(seed) for seed in seeds],
                **self._spec.kwargs,
            )
            raw, _ = self._pool.reset()
        return self.spaces.observations(raw, copy=False)

    def restart(self, slots: NDArray[np.int32]) -> Array:
        """First observations of a new episode in some slots."""
        return self.spaces.observations(self._pool.reset(slots)[0], copy=False)

    def step(
        self, actions: Actions, slots: NDArray[np.int32] | None = None
    ) -> tuple[Array, Floats, Bools, Bools]:
        """Observation, reward, terminated and truncated, in the slots' order (None: all)."""
        own = self.spaces.actions(actions).astype(np.int32)
        raw, reward, terminated, truncated, _ = self._pool.step(own, slots)
        obs = self.spaces.observations(raw, copy=False)  # EnvPool writes every step to a new buffer
        return obs, reward.astype(np.float32, copy=False), terminated, truncated

    def close(self) -> None:
        """Ends the pool's threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class PoolVectorEnv(VectorEnv):
    """An EnvPool whose ended episodes are restarted within the step; exceptions go through."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self._pool = pool = Pool(spec, num_envs)
        super().__init__(spec, "envpool", num_envs, pool.spaces, pool.max_episode_steps)

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts an episode in every slot, each with its own seed."""
        return self._pool.start(seeds)

    def step(self, actions: Actions) -> Step:
        """Steps every slot."""
        next_obs, reward, terminated, truncated = self._pool.step(actions)
        ended = np.flatnonzero(terminated | truncated)
        obs = next_obs
        if ended.size:
            obs = next_obs.copy()
            obs[ended] = self._pool.restart(ended.astype(np.int32))
        return Step(obs, reward, terminated, truncated, next_obs)

    def close(self) -> None:
        """Ends the pool's threads."""
        self._pool.close()


def _import() -> Any:
    try:
        with _quiet():
            return importlib.import_module("envpool")
    except ImportError as error:
        raise ConfigError(
            "env.backend: envpool is not installed; in the clone: pip install -e '.[envpool]'"
        ) from error


def _check(spec: EnvSpec, envpool: Any) -> None:
    if spec.wrappers:
        raise ConfigError(
            "env.wrappers: EnvPool takes no Gymnasium wrappers; leave them out, or use "
            "env.backend: sync"
        )
    for key in OURS:
        if key in spec.kwargs:
            raise ConfigError(f"env.kwargs: {key} is set by evorl; leave it out")
    known = envpool.list_all_envs()
    if spec.id not in known:
        advice = did_you_mean(spec.id, known) or "use env.backend: auto for a Gymnasium environment"
        raise ConfigError(f"env.id: EnvPool has no environment {spec.id!r}; {advice}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings that EnvPool's own float64 bounds cause in Gymnasium."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*Box (low|high)'s precision lowered")
        yield
