"""From an id, arguments and wrappers to one Gymnasium environment, or one line on why not."""

import copy
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as Registration

from evorl.config import WrapperConfig, did_you_mean, users_import
from evorl.envs.spaces import Array, ChannelsLast, SpaceAdapter, adapt
from evorl.errors import ConfigError, EnvError

Env = gymnasium.Env[Any, Any]

MASK = "action_mask"  # in an info: which actions are allowed
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
            with users_import():
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
