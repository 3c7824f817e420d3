"""Vector environments that are one piece: an environment's own vectorised version, and EnvPool's.

What they raise ends the run: one slot alone cannot be rebuilt. If what they give is no number that
can be learned from, the slot's episode is left out.
"""

import importlib
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from evorl.config import did_you_mean
from evorl.envs.entrance import LARGEST, Bools, Floats, fine, show
from evorl.envs.make import MASK, NESTED, EnvSpec, close, find, reason_of, refusals
from evorl.envs.rebuilding import Failure, Failures, with_trace
from evorl.envs.spaces import Array, adapt
from evorl.envs.vector import Actions, Rows, SlotVectorEnv, Step, VectorEnv
from evorl.envs.watching import Watch
from evorl.errors import ConfigError, EnvError

OURS = ("num_envs", "seed", "env_seed", "batch_size", "max_num_players", "gym_reset_return_info")
NO_LIMIT = 2**31 - 1
LEFT_OUT = "its episode is left out"


class NativeVectorEnv(VectorEnv):
    """One native vector environment (`vector_entry_point`) per agent, side by side.

    It has one random generator for all its slots, so every agent gets a vector of its own, and what
    it does never changes another's randomness. It starts a new episode on the step after an
    episode's end, ignoring the action: such a row is no transition, and is marked `valid = False`.
    """

    def __init__(self, spec: EnvSpec, num_agents: int, num_envs: int) -> None:
        if refusal := native_refusal(spec):
            raise ConfigError(f"env.backend: native is not possible, {refusal}; use auto or sync")
        self._per_agent = num_envs
        self._vecs = [_make_native(spec, num_envs) for _ in range(num_agents)]
        first = self._vecs[0]
        observations, actions = first.single_observation_space, first.single_action_space
        spaces = adapt(spec.id, observations, actions, spec.channels_last)
        limit = spec.kwargs.get("max_episode_steps", find(spec.id).max_episode_steps)
        super().__init__(spec, "native", num_agents * num_envs, spaces, limit)
        self._resetting: Bools = np.zeros(self.num_envs, np.bool_)
        self._lost: Bools = self._resetting.copy()  # whose episode is left out until it ends
        self._watch = Watch(spec.id, spec.timeout)
        self.failures.then = LEFT_OUT

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts an episode in every slot; an agent's seeds together seed its one generator."""
        raw = []
        with self._watch, raising(self.failures):
            for agent, vec in enumerate(self._vecs):
                own = seeds[agent * self._per_agent :][: self._per_agent]
                # below 2^30, as the seeds themselves: held-out episodes use the others
                word = np.random.SeedSequence(own).generate_state(1, np.uint32)[0]
                raw.append(vec.reset(seed=int(word >> 2))[0])
            obs = self.spaces.observations(np.concatenate(raw), copy=False)
        self._resetting = np.zeros(self.num_envs, np.bool_)
        nothing = np.zeros(self.num_envs, np.float32)
        self._lost = refuse(obs, nothing, self.failures, self._resetting)
        return obs

    def step(self, actions: Actions) -> Step:
        """Steps every slot that is in an episode; the others start one."""
        own = self.spaces.actions(actions)
        parts = own.reshape(-1, self._per_agent, *own.shape[1:])
        with self._watch, raising(self.failures):
            results = [vec.step(part) for vec, part in zip(self._vecs, parts, strict=True)]
            raw, reward, terminated, truncated = (
                np.concatenate([result[field] for result in results]) for field in range(4)
            )
            obs = self.spaces.observations(raw, copy=False)
            reward = reward.astype(np.float32, copy=False)
        valid = ~self._resetting if self._resetting.any() else None
        failed: Bools | None = None
        if self._lost.any() or not (fine(reward) and fine_observations(obs)):
            self._lost &= ~self._resetting  # a new episode has begun
            self._lost = failed = refuse(obs, reward, self.failures, self._lost)
            valid = ~(failed | self._resetting)
        self._resetting = terminated | truncated
        cuts = truncated if failed is None else truncated | failed
        return Step(obs, reward, terminated, cuts, obs, valid, failed)

    def close(self) -> None:
        """Closes every agent's environments."""
        for vec in self._vecs:
            close(vec)


def fine_observations(obs: Array) -> bool:
    """Whether observations [M, …] can be learned from."""
    return obs.dtype.kind != "f" or fine(obs)


def refuse(obs: Array, reward: Floats, failures: Failures, lost: Bools) -> Bools:
    """Which slots [M] give no numbers, where zeros take their place, or are lost already."""
    wrong = ~(np.abs(reward) <= LARGEST)
    whats = [f"reward {show(own)}" for own in reward]
    reward[wrong] = 0
    for slot in range(len(obs)) if obs.dtype.kind == "f" else ():
        seen = obs[slot].reshape(-1)
        if not fine(seen):
            whats[slot] = f"observation {show(seen[~(np.abs(seen) <= LARGEST)][0])}"
            wrong[slot], obs[slot] = True, 0
    for slot in np.flatnonzero(wrong & ~lost).tolist():
        failures.add(slot, [f"gave the {whats[slot]}; numbers may be up to ±1e18"])
    found: Bools = wrong | lost
    return found


@contextmanager
def raising(failures: Failures) -> Iterator[None]:
    """EnvError, with the traceback as a note, of whatever such an environment raises."""
    try:
        yield
    except (EnvError, KeyboardInterrupt):
        raise
    except BaseException:
        failure = Failure(0, traceback.format_exc())
        what = f"env.id: {failures.env_id!r} raised, and cannot be rebuilt (env.backend: sync can)"
        raise with_trace(what, failure) from None


def native_refusal(spec: EnvSpec) -> str | None:
    """Why an environment cannot run natively, also from trying; None if it can."""
    registered = find(spec.id)
    if registered.vector_entry_point is None:
        return f"{spec.id!r} has no native vector version"
    if spec.wrappers or registered.additional_wrappers:
        return "wrappers wrap single environments, not native vector ones"
    if spec.kwargs.get("max_episode_steps") == -1:
        return "native environments read max_episode_steps -1 as an end at every step"
    try:
        with closing(_make_native(spec, 1)) as vec:
            masked = MASK in vec.reset(seed=0)[1]
    except Exception as error:  # whatever it is, the plain version remains
        return f"its native vector version cannot be made ({reason_of(error.__cause__ or error)})"
    if masked or isinstance(vec.single_observation_space, NESTED):
        return "action masks and nested observations are put into vectors for single environments"
    mode = vec.metadata.get("autoreset_mode")
    if mode == AutoresetMode.NEXT_STEP:
        return None
    return f"its native vector version has autoreset mode {getattr(mode, 'name', mode)}"


def _make_native(spec: EnvSpec, num_envs: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    return gymnasium.make_vec(
        find(spec.id), num_envs, vectorization_mode="vector_entry_point", **spec.kwargs
    )


class PoolVectorEnv(SlotVectorEnv):
    """EnvPool: environments in C++ threads. An optional extra, and never chosen by `auto`.

    Its dynamics differ from Gymnasium's in detail: results would depend on what is installed. So is
    an episode that terminates in the last step its limit allows said to be truncated.
    """

    seeds_some = False

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self._envpool, self._spec = _envpool_for(spec), spec
        self._pool: Any = None
        with refusals(repr(spec.id), spec.kwargs), _quiet():
            made = self._envpool.make_spec(spec.id, **spec.kwargs)
            own = made.gymnasium_observation_space, made.gymnasium_action_space
        limit = int(made.config.max_episode_steps)
        steps = limit if 0 < limit < NO_LIMIT else None
        super().__init__(spec, "envpool", num_envs, adapt(spec.id, *own, spec.channels_last), steps)
        self._watch = Watch(spec.id, spec.timeout)
        self.failures.then = LEFT_OUT

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts an episode in every slot of a new pool, which takes seeds only when it is made."""
        self.close()
        spec = self._spec
        with refusals(repr(spec.id), spec.kwargs), _quiet():
            make = self._envpool.make_gymnasium
            self._pool = make(spec.id, num_envs=self.num_envs, seed=list(seeds), **spec.kwargs)
            raw, _ = self._pool.reset()
        return self.spaces.observations(raw, copy=False)

    def restart(self, rows: Rows, seeds: Sequence[int] | None = None) -> Array:
        """Resets some slots; seeds they take only all together, in `reset`."""
        assert seeds is None
        with self._watch, raising(self.failures):
            raw, _ = self._pool.reset(rows.astype(np.int32))
        return self.spaces.observations(raw, copy=False)

    def play(self, actions: Actions, rows: Rows | None = None) -> Step:
        """Steps some slots, in threads."""
        own = self.spaces.actions(actions)
        own = own.astype(np.int32) if own.dtype == np.int64 else own  # EnvPool's choices
        slots = None if rows is None else rows.astype(np.int32)
        with self._watch, raising(self.failures):
            raw, reward, terminated, truncated, _ = self._pool.step(own, slots)
        obs = self.spaces.observations(raw, copy=False)  # EnvPool writes every step to a new buffer
        reward, failed = reward.astype(np.float32, copy=False), None
        if not (fine(reward) and fine_observations(obs)):
            failed = refuse(obs, reward, self.failures, np.zeros(len(obs), np.bool_))
            terminated, truncated = terminated & ~failed, truncated | failed
        return Step(obs, reward, terminated, truncated, obs, failed=failed)

    def close(self) -> None:
        """Ends the pool's threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def _envpool_for(spec: EnvSpec) -> Any:
    """The package, if it is installed and has the environment."""
    try:
        with _quiet():
            envpool = importlib.import_module("envpool")
    except ImportError as error:
        raise ConfigError(
            "env.backend: envpool is not installed; in the clone: pip install -e '.[envpool]'"
        ) from error
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
        advice = did_you_mean(spec.id, known) or "; use env.backend: auto for a Gymnasium one"
        raise ConfigError(f"env.id: EnvPool has no environment {spec.id!r}{advice}")
    return envpool


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings that EnvPool's own float64 bounds cause in Gymnasium."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*Box (low|high)'s precision lowered")
        yield
