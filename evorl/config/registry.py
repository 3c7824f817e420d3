"""Parts that a configuration names: ours, or a user's own as module:Name.

    resolve("algorithm", "dqn")
    resolve("fitness", "my_module:lower_quantile")

Nothing is imported before it is asked for.
"""

import difflib
import importlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from evorl.errors import ConfigError, one_line


class _Kind(NamedTuple):
    ours: Mapping[str, str]  # module:attribute by name
    base: str = ""  # the class that a part must be a subclass of; a function has none


KINDS = {
    "algorithm": _Kind(
        {"dqn": "evorl.algorithms.dqn:DQN"}, base="evorl.algorithms.hyperparameters:Declaration"
    ),
    "selection": _Kind(
        {
            "truncation": "evorl.evolution.selection:Truncation",
            "tournament": "evorl.evolution.selection:Tournament",
        },
        base="evorl.evolution.selection:Selection",
    ),
    "mutation": _Kind({}),
    "fitness": _Kind({n: f"evorl.evolution.selection:{n}" for n in ("mean", "median", "iqm")}),
}


def resolve(kind: str, name: str) -> Any:
    """The class or function of this name; ConfigError says in one line why there is none."""
    ours, base = KINDS[kind]
    if ":" not in name:
        if name not in ours:
            known = f"one of {', '.join(ours)}, or " if ours else ""
            near = did_you_mean(name, ours)
            raise ConfigError(
                one_line(f"must be {known}your own as module:Name, got {name!r}{near}")
            )
        return _attribute(ours[name])
    found = _attribute(name)
    if base:
        parent = _attribute(base)
        if not (isinstance(found, type) and issubclass(found, parent)):
            raise ConfigError(f"must be a subclass of {base.replace(':', '.')}, got {found!r:.60}")
    elif isinstance(found, type) or not callable(found):
        raise ConfigError(f"must be a function, got {found!r:.60}")
    return found


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, or an empty string when nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _attribute(path: str) -> Any:
    """What `module:Name` stands for."""
    module_name, _, name = path.rpartition(":")
    module = _module(module_name)
    try:
        return getattr(module, name)
    except AttributeError:
        near = did_you_mean(name, vars(module))
        raise ConfigError(one_line(f"module {module_name!r} has no {name!r}{near}")) from None


def _module(name: str) -> Any:
    if "" not in sys.path:
        sys.path.append("")  # the current folder, behind everything that is installed
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever the user's module does
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and f"{name}.".startswith(f"{missing}."):
            hint = "it must be in the current folder, or installed"
            raise ConfigError(one_line(f"there is no module {missing!r}; {hint}")) from None
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(one_line(f"importing {name!r} raised {what}")) from error
