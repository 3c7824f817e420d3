"""Algorithms by name: the built-in ones, and a user's own as module:Class."""

import importlib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from evorl.algorithms.dqn import DQN
from evorl.errors import ConfigError

BUILT_IN = {"dqn": DQN}


def make_algorithm(values: Mapping[str, Any]) -> Any:
    """The algorithm of this name with these options; ConfigError if there is none."""
    name = values["name"]
    try:
        return _find(name).model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("algorithm", *first["loc"]))
        raise ConfigError(f"{where}: {first['msg']}") from None


def _find(name: str) -> Any:
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, ValueError) as error:
        what = f"algorithm.name: {name!r} needs the module {module!r}, which cannot be imported"
        raise ConfigError(f"{what}: {error}") from None
    except AttributeError:
        raise ConfigError(f"algorithm.name: the module {module!r} has no {attribute!r}") from None
    return found
