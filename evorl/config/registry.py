"""Parts that a configuration names: ours, or a user's own as module:Name.

    resolve("algorithm", "dqn")
    resolve("fitness", "my_module:lower_quantile")

Nothing is imported before it is asked for.
"""

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from evorl.config.importing import users_import
from evorl.errors import ConfigError

OURS = {  # by kind: module:Name by name
    "algorithm": {
        "dqn": "evorl.algorithms.dqn:DQN",
        "ddpg": "evorl.algorithms.ddpg:DDPG",
        "td3": "evorl.algorithms.ddpg:TD3",
        "sac": "evorl.algorithms.sac:SAC",
        "a2c": "evorl.algorithms.a2c:A2C",
        "a3c": "evorl.algorithms.a2c:A3C",
        "ppo": "evorl.algorithms.ppo:PPO",
        "impala": "evorl.algorithms.impala:IMPALA",
    },
    "selection": {
        "truncation": "evorl.evolution.selection:Truncation",
        "tournament": "evorl.evolution.selection:Tournament",
    },
    "mutation": {},
    "wrapper": {},
    "fitness": {name: f"evorl.evolution.selection:{name}" for name in ("mean", "median", "iqm")},
}
BASES = {  # what a class must be a subclass of; parts of other kinds are functions
    "algorithm": "evorl.algorithms.hyperparameters:Declaration",
    "selection": "evorl.evolution.selection:Selection",
    "wrapper": "gymnasium:Wrapper",
}
RECORD = "lineage.jsonl"  # by which a run's folder is known
_beside = [""]  # where modules are looked for: the current folder, and that of the YAML file


def resolve(kind: str, name: str) -> Any:
    """The class or function of this name; ConfigError says in one line why there is none."""
    ours = OURS[kind]
    if name in ours:
        return _attribute(ours[name], importlib.import_module)
    if ":" not in name:
        known = f"one of {', '.join(ours)}, or " if ours else ""
        near = did_you_mean(name, ours)
        raise ConfigError(f"must be {known}your own as module:Name, got {name!r:.60}{near}")
    found = _attribute(name)
    if base := BASES.get(kind):
        wanted = _attribute(base, importlib.import_module)
        if not (isinstance(found, type) and issubclass(found, wanted)):
            raise ConfigError(f"must be a subclass of {base.replace(':', '.')}, got {found!r:.60}")
    elif isinstance(found, type) or not callable(found):
        raise ConfigError(f"must be a function, got {found!r:.60}")
    return found


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, or an empty string when nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def look_beside(file: str | Path) -> None:
    """From now on modules are looked for in the folder of this YAML file, too.

    Unless it is a run's: that may be somebody else's, and nothing in it is executed.
    """
    folder = Path(file).parent.resolve()
    _beside[1:] = [] if (folder / RECORD).exists() else [str(folder)]


def import_module(name: str) -> ModuleType:
    """A module of the user's; ConfigError says in one line why there is none."""
    # behind everything that is installed
    sys.path += [folder for folder in _beside if folder not in sys.path]
    try:
        with users_import():
            return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's module does
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and f"{name}.".startswith(f"{missing}."):
            hint = "it must be in the current folder, beside the YAML file, or installed"
            advice = f"{hint} (PYTHONPATH=FOLDER adds a folder)"
            raise ConfigError(f"there is no module {missing!r}; {advice}") from None
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"importing {name!r} raised {what}") from error


def _attribute(path: str, load: Callable[[str], ModuleType] = import_module) -> Any:
    """What `module:Name` stands for; the user's own, unless it is loaded otherwise."""
    module_name, _, name = path.rpartition(":")
    module = load(module_name)
    if not hasattr(module, name):
        near = did_you_mean(name, vars(module))
        raise ConfigError(f"module {module_name!r} has no {name!r}{near}")
    return getattr(module, name)
