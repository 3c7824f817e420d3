"""From an id, arguments and wrappers to one Gymnasium environment, or one line on why not."""

import copy
import difflib
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as Registration

from evorl.envs.spaces import ChannelsLast
from evorl.errors import ConfigError

Env = gymnasium.Env[Any, Any]


class WrapperSpec(Protocol):
    """A wrapper class of gymnasium.wrappers, and its keyword arguments."""

    @property
    def name(self) -> str:
        """The class's name in gymnasium.wrappers."""

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """What it is made with."""


@dataclass(frozen=True)
class EnvSpec:
    """Which environment to make, and how."""

    id: str  # a registered id, or module:id to import the module that registers it
    backend: str = "auto"  # auto, sync, async, native or envpool
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[WrapperSpec] = ()  # innermost first
    channels_last: ChannelsLast = "auto"  # whether images are (H, W, C)
    max_failures: int = 10  # exceptions of environments that a run survives


class LastObservationKept(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Replicas an episode's last observation, and drops infos.

    Vector environments reset before they copy, so an environment that returns its own buffer would
    show the next episode's first observation as the last one of this. Infos are never read:
    batching them costs time, and fails where an array's shape changes.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The environment's step, with an empty info."""
        obs, reward, terminated, truncated, _ = self.env.step(action)
        if terminated or truncated:
            obs = np.array(obs)
        return obs, reward, terminated, truncated, {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The environment's reset, with an empty info."""
        return self.env.reset(seed=seed, options=options)[0], {}


def find(env_id: str) -> Registration:
    """The registry's entry for an id; `module:id` imports the module first."""
    module, _, name = env_id.rpartition(":")
    if module:
        if "" not in sys.path:
            sys.path.append("")  # the user's own module in the current folder
        try:
            importlib.import_module(module)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(
                f"env.id: cannot import {module!r} for {env_id!r}: {one_line(error)}"
            ) from error
    registered = gymnasium.registry.get(name)
    if registered is None:
        raise ConfigError(f"env.id: no environment {name!r} is registered; {_advice(name)}")
    return registered


def make_env(spec: EnvSpec, registered: Registration | None = None) -> Env:
    """One environment, with the wrappers that Gymnasium and the spec put around it.

    Args:
        spec: what to make.
        registered: the registry's entry, for a process whose registry may lack it.
    """
    kwargs = {"disable_env_checker": True, **copy.deepcopy(dict(spec.kwargs))}  # shared by no slot
    with refusals(spec):
        env: Env = gymnasium.make(registered or find(spec.id), **kwargs)
    try:
        for index, wrapper in enumerate(spec.wrappers):
            env = _wrap(env, wrapper, f"env.wrappers[{index}]")
    except ConfigError:
        env.close()
        raise
    return env


@contextmanager
def refusals(spec: EnvSpec) -> Iterator[None]:
    """Turns what goes wrong when an environment is made by a user's mistake into one line."""
    try:
        yield
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(
            f"env.id: {spec.id!r} needs a package that is not installed: {one_line(error)}"
        ) from error
    except ImportError as error:
        hint = f"; try: pip install {error.name.split('.')[0]}" if error.name else ""
        raise ConfigError(
            f"env.id: {spec.id!r} needs a package that is not installed: {one_line(error)}{hint}"
        ) from error
    except gymnasium.error.Error as error:
        raise ConfigError(f"env.id: {spec.id!r} cannot be made: {one_line(error)}") from error
    except ConfigError:
        raise
    except Exception as error:  # whatever it is, the user's environment or what was given to it
        cause = error.__cause__ or error  # Gymnasium wraps a TypeError in a longer one
        what = f"{type(cause).__name__}: {one_line(cause)}"
        if spec.kwargs:
            what = f"env.kwargs: {spec.id!r} refuses {dict(spec.kwargs)}: {one_line(cause)}"
            raise ConfigError(what) from error
        raise ConfigError(f"env.id: {spec.id!r} cannot be used: {what}") from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean …?`, or an empty string when nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.7)
    return f"did you mean {', '.join(near)}?" if near else ""


def one_line(error: BaseException) -> str:
    """An error's first line, with its type where the message alone would say nothing."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError) or not text else text


def _wrap(env: Env, wrapper: WrapperSpec, where: str) -> Env:
    kind = _wrapper_class(wrapper.name, where)
    try:
        wrapped: Env = kind(env, **wrapper.kwargs)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise ConfigError(
            f"{where}: {wrapper.name} needs a package that is not installed: {one_line(error)}"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{where}: {wrapper.name} refuses {dict(wrapper.kwargs)}: {one_line(error)}"
        ) from error
    return wrapped


def _wrapper_class(name: str, where: str) -> Any:
    if name == "Autoreset":
        raise ConfigError(
            f"{where}: Autoreset hides where episodes end; leave it out, evorl resets them"
        )
    if name in ("NormalizeObservation", "NormalizeReward"):
        raise ConfigError(
            f"{where}: {name} keeps statistics per environment, which evaluation would not share;"
            " leave it out, and scale inside the environment"
        )
    names = [other for other in gymnasium.wrappers.__all__ if other[0].isupper()]
    if name not in names:
        advice = did_you_mean(name, names) or "see gymnasium.farama.org/api/wrappers"
        raise ConfigError(f"{where}: gymnasium.wrappers has no {name!r}; {advice}")
    try:
        return getattr(gymnasium.wrappers, name)  # some import torch or jax here
    except (gymnasium.error.DependencyNotInstalled, ImportError, AttributeError) as error:
        raise ConfigError(
            f"{where}: {name} needs a package that is not installed: {one_line(error)}"
        ) from error


def _advice(name: str) -> str:
    """What to do about an id that is not in the registry."""
    known = list(gymnasium.registry)
    base = re.sub(r"-v\d+$", "", name)
    versions = [other for other in known if re.sub(r"-v\d+$", "", other) == base]
    if versions:
        return f"did you mean {', '.join(sorted(versions, reverse=True))}?"
    return did_you_mean(name, known) or (
        "write module:id to import the module that registers it (ale_py:ALE/Pong-v5)"
    )
