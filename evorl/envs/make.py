"""From an id, arguments and wrappers to one Gymnasium environment, or one line on why not.

A plain environment that raises is replaced by a new one, and what it raised is counted.
"""

import copy
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as Registration

from evorl.config import WrapperConfig, did_you_mean
from evorl.envs.spaces import Array, ChannelsLast, SpaceAdapter, adapt
from evorl.errors import ConfigError, EnvError
from evorl.seeding import integers

Env = gymnasium.Env[Any, Any]

ATTEMPTS = 4  # resets in a row that may raise, before a slot is given up
TRACES = "evorl_traces"  # in an info: tracebacks as text, which any process can send
MASK = "action_mask"  # in an info: which actions are allowed
SHOWN = 200  # characters of an exception where one line tells of it
STATISTICS = "keeps statistics that evaluation would not share; set env.normalize instead"
REFUSED = {
    "Autoreset": "hides where episodes end; leave it out, evorl resets them",
    "ClipAction": "takes the bounds away that actions are scaled to; leave it out, evorl clips",
    "NormalizeObservation": STATISTICS,
    "NormalizeReward": STATISTICS,
}


NESTED = (spaces.Dict, spaces.Tuple)


@dataclass(frozen=True)
class EnvSpec:
    """Which environment to make, and how."""

    id: str  # a registered id, or module:id to import the module that registers it
    backend: str = "auto"  # auto, sync, async, native or envpool
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[WrapperConfig] = ()  # classes of gymnasium.wrappers, innermost first
    channels_last: ChannelsLast = "auto"  # whether images are (H, W, C)
    max_failures: int = 10  # exceptions of environments that a run survives


def find(env_id: str) -> Registration:
    """The registry's entry for an id; `module:id` imports the module first."""
    module, _, name = env_id.rpartition(":")
    if module:
        if "" not in sys.path:
            sys.path.append("")  # the user's own module in the current folder
        try:
            importlib.import_module(module)
        except (ImportError, TypeError, ValueError) as error:
            what = f"env.id: cannot import {module!r} for {env_id!r}: {reason_of(error)}"
            raise ConfigError(what) from error
    registered = gymnasium.registry.get(name)
    if registered is None:
        advice = did_you_mean(name, gymnasium.registry) or (
            "; write module:id to import the module that registers it (ale_py:ALE/Pong-v5)"
        )
        raise ConfigError(f"env.id: no environment {name!r} is registered{advice}")
    return registered


def make_env(
    spec: EnvSpec, registered: Registration | None = None, masked: bool | None = None
) -> Env:
    """One environment with its wrappers; `registered` if this process may not have its entry.

    Dict and Tuple observations are flattened. `masked` says whether it gives action masks, which go
    behind the observation; if nobody knows yet, a reset shows it.
    """
    kwargs = {"disable_env_checker": True, **copy.deepcopy(dict(spec.kwargs))}  # shared by no slot
    with refusals(repr(spec.id), spec.kwargs):
        env: Env = gymnasium.make(registered or find(spec.id), **kwargs)
    try:
        for index, wrapper in enumerate(spec.wrappers):
            env = _wrap(env, wrapper, f"env.wrappers[{index}]")
        with refusals(repr(spec.id), spec.kwargs):
            if isinstance(env.observation_space, NESTED):
                env = gymnasium.wrappers.FlattenObservation(env)
            if masked is None:
                masked = MASK in env.reset(seed=0)[1]
        return Masked(env, spec) if masked else env
    except ConfigError:
        env.close()
        raise


@contextmanager
def refusals(
    name: str, kwargs: Mapping[str, Any], where: str = "env.id", option: str = "env.kwargs"
) -> Iterator[None]:
    """Turns what an environment or a wrapper raises when it is made or tried into one line."""
    try:
        yield
    except (ConfigError, EnvError):
        raise
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        package = getattr(error, "name", None)
        hint = f"; try: pip install {package.split('.')[0]}" if package else ""
        what = f"{where}: {name} needs a package that is not installed: {reason_of(error)}{hint}"
        raise ConfigError(what) from error
    except Exception as error:
        cause = error.__cause__ or error  # Gymnasium wraps a TypeError in a longer one
        what = f"{where}: {name} cannot be used: {type(cause).__name__}: {reason_of(cause)}"
        if kwargs:
            what = f"{option}: {name} refuses {dict(kwargs)}: {reason_of(cause)}"
        raise ConfigError(what) from error


def reason_of(error: BaseException) -> str:
    """An error's first line, with its type where the message alone would say nothing."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError) or not text else text


def _wrap(env: Env, wrapper: WrapperConfig, where: str) -> Env:
    name = wrapper.name
    if name in REFUSED:
        raise ConfigError(f"{where}: {name} {REFUSED[name]}")
    known = [other for other in gymnasium.wrappers.__all__ if other[0].isupper()]
    if name not in known:
        advice = did_you_mean(name, known) or "; see gymnasium.farama.org/api/wrappers"
        raise ConfigError(f"{where}: gymnasium.wrappers has no {name!r}{advice}")
    with refusals(name, wrapper.kwargs, where, where):  # some import torch or jax here
        wrapped: Env = getattr(gymnasium.wrappers, name)(env, **wrapper.kwargs)
    return wrapped


class Masked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts which actions are allowed, 1 or 0 for each choice, behind the flat observation.

    After a termination nothing may be allowed, or no mask be given: it then allows everything.
    """

    def __init__(self, env: Env, spec: EnvSpec) -> None:
        super().__init__(env)
        self.who = f"env.id: {spec.id!r} gives info[{MASK!r}]"
        own, given = env.observation_space, adapted(env, spec)
        if given.action.kind == "continuous":
            raise ConfigError(f"{self.who} for Box actions, which no mask fits; leave it out")
        if given.observation.kind != "vector":
            raise ConfigError(
                f"{self.who} with {given.observation.kind} observations; masks need vectors, which "
                "the wrapper FlattenObservation makes"
            )
        self.parts = given.action.choices
        self.given, self.size = given, sum(self.parts)
        self._dtype, self._ends = given.observation.dtype, np.cumsum(self.parts)[:-1]
        self._allowed = np.ones(self.size, np.bool_)  # at the last observation
        none = np.zeros(given.raw_shape)
        low, high = (own.low, own.high) if isinstance(own, spaces.Box) else (none, none + 1)
        with np.errstate(over="ignore"):  # bounds of float64 that float32 does not have
            low = self._behind(low, np.zeros(self.size))
            high = self._behind(high, np.ones(self.size))
        self.observation_space = spaces.Box(low, high, dtype=self._dtype.type)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The environment's reset, with the mask behind the observation."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._allowed = self._read(info.get(MASK), over=False)
        return self._behind(obs, self._allowed), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The environment's step, with the mask behind the observation."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._allowed = self._read(info.get(MASK), over=bool(terminated))
        return self._behind(obs, self._allowed), reward, terminated, truncated, info

    def sample(self) -> Any:
        """A random action that is allowed now, from the action space's own generator."""
        random = self.action_space.np_random
        parts = np.split(self._allowed, self._ends)
        chosen = np.array([random.choice(np.flatnonzero(part)) for part in parts])
        return self.given.actions(chosen.reshape(1, *self.given.action.shape))[0]

    def _behind(self, obs: Any, mask: Array) -> Array:
        return np.concatenate([np.ravel(obs).astype(self._dtype), mask.astype(self._dtype)])

    def _read(self, mask: Any, over: bool) -> Array:
        """Which choices are allowed, the parts of an action side by side."""
        if mask is None and not over:
            raise EnvError(f"{self.who} at first, and then not; give it in every reset and step")
        if isinstance(mask, tuple | list):
            mask = np.concatenate([np.ravel(part) for part in mask])
        allowed = np.ones(self.size, np.bool_) if mask is None else np.ravel(mask) != 0
        if len(allowed) != self.size:
            expected = " + ".join(map(str, self.parts))
            raise EnvError(f"{self.who} of {len(allowed)} numbers; it must have {expected}")
        for part in np.split(allowed, self._ends):
            if not part.any():
                if not over:
                    raise EnvError(f"{self.who} that allows no action; one must always be allowed")
                part[:] = True
        return allowed


def adapted(env: Env, spec: EnvSpec) -> SpaceAdapter:
    """The adapter for what `make_env` made."""
    mask = env.size if isinstance(env, Masked) else 0
    found = adapt(spec.id, env.observation_space, env.action_space, spec.channels_last, mask)
    if not isinstance(env, Masked):
        return found
    return replace(found, raw_shape=env.given.raw_shape, raw_dtype=env.given.raw_dtype)


def random_action(env: Env) -> Any:
    """One that the environment allows now."""
    env = env.env if isinstance(env, Slot) else env
    return env.sample() if isinstance(env, Masked) else env.action_space.sample()


class Slot(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment of many: a new one takes its place if it raises, in a step or in a reset.

    It gives no infos, which nobody reads: batching them costs time, and fails where an array's
    shape changes. But tracebacks in an info say what was raised.
    """

    def __init__(self, make: Callable[[], Env]) -> None:
        super().__init__(make())
        self._make, self._broken = make, False
        self._seed, self._rebuilt = 0, 0  # the last one given, and environments made since then

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The environment's step; None rests. One that raised is truncated, and means nothing."""
        if action is None:
            return self._nothing(), 0.0, False, False, {}
        try:
            obs, reward, terminated, truncated, _ = self.env.step(action)
            return obs, reward, terminated, truncated, {}
        except EnvError:  # the next one's masks would be no better
            raise
        except Exception:  # whatever it is, the next environment may do better
            self._broken = True
            return self._nothing(), 0.0, False, True, {TRACES: (traceback.format_exc(),)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The environment's reset, or that of a new one if it is broken."""
        if seed is not None:
            self._seed, self._rebuilt = seed, 0
        traces: list[str] = []
        while len(traces) < ATTEMPTS:
            try:
                if self._broken:
                    seed = self._rebuild(seed)
                obs, _ = self.env.reset(seed=seed)
                return obs, {TRACES: tuple(traces)} if traces else {}
            except EnvError:
                raise
            except Exception:
                self._broken, seed = True, None
                traces.append(traceback.format_exc())
        return self._nothing(), {TRACES: tuple(traces)}

    def _rebuild(self, seed: int | None) -> int:
        """Makes a new environment; its seed, if not given, follows from the one given last."""
        if seed is None:
            self._rebuilt += 1
            new = integers(self._seed, "rebuild", self._rebuilt, count=1)[0]
            seed = (self._seed & 2**30) + new  # held-out seeds, of 2^30 or more, stay held out
        with suppress(Exception):
            self.env.close()
        self.env = self._make()
        self._broken = False
        return seed

    def _nothing(self) -> Any:
        space = self.observation_space
        return np.zeros(space.shape or (), space.dtype)


def make_slot(
    spec: EnvSpec, registered: Registration | None = None, masked: bool | None = None
) -> Slot:
    """One environment of many, which is replaced if it raises."""
    return Slot(lambda: make_env(spec, registered, masked))


class Failure(NamedTuple):
    """An exception of an environment."""

    slot: int
    trace: str  # the whole traceback

    @property
    def line(self) -> str:
        """What was raised: where the frames, which are indented, are over."""
        last = self.trace.rpartition("Traceback (most recent call last):\n")[2]
        lines = last.strip("\n").splitlines()
        found = (line for line in lines if line and not line[0].isspace())
        return next(found, lines[-1].strip())[:SHOWN]


class Failures:
    """What the environments of one vector raised, until somebody counts it."""

    def __init__(self, spec: EnvSpec) -> None:
        self.env_id, self.limit = spec.id, spec.max_failures
        self._found: list[Failure] = []

    def add(self, slot: int, traces: Sequence[str]) -> None:
        """Of one step or reset; EnvError if no new environment worked, either."""
        self._found += [Failure(slot, trace) for trace in traces]
        if len(traces) == ATTEMPTS:
            what = f"env.id: {self.env_id!r} raised in {ATTEMPTS} resets in a row"
            raise with_trace(what, self._found[-1])

    def take(self) -> list[Failure]:
        """All since the last call."""
        found, self._found = self._found, []
        return found


def with_trace(what: str, failure: Failure) -> EnvError:
    """One line, and the environment's own traceback as a note."""
    error = EnvError(f"{what}: {failure.line}")
    error.add_note(failure.trace.rstrip())
    return error
