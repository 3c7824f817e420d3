"""Reads and validates: YAML text, a mapping and overrides (`algorithm.lr=1e-4`) to a RunConfig.

What is wrong is told in one line: where, what it got, and what to do. Types and bounds are those of
the sections; checks across sections are in `_fits_together` of run_config.py.
"""

import re
import types
from collections.abc import Collection, Mapping, Sequence, Set
from copy import deepcopy
from pathlib import Path as FilePath
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from evorl.config.registry import did_you_mean, look_beside
from evorl.config.run_config import RunConfig, model_of
from evorl.config.sections import REFUSED, describe, unknown_key
from evorl.config.yaml_text import dump_yaml, parse_yaml, read_yaml
from evorl.errors import ConfigError

NAMING = ("algorithm", "name"), ("evolution", "selection", "kind")  # what other keys hang on
WORDS = {  # in pydantic's messages, and what we say instead
    "Input should be a valid number": "expected a number",
    "Input should be a valid integer": "expected a whole number",
    "Input should be a valid boolean": "expected true or false",
    "Input should be a valid string": "expected a string",
    "Input should be a valid list": "expected a list",
    "Input should be a valid dictionary.*": "expected a mapping",
    "^(Input|String|List|Dictionary) should": "must",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    " after validation.*": "",
}

Path = tuple[str, ...]


class _Override(NamedTuple):
    source: str  # its text, as errors name it
    path: Path
    value: Any


def load_config(path: str | FilePath, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply overrides such as `algorithm.lr=1e-4`; ConfigError if wrong."""
    data = read_yaml(path)
    look_beside(path)
    return parse_config({} if data is None else data, overrides, source=str(path))


def parse_config(
    data: Mapping[str, Any], overrides: Sequence[str] = (), source: str = "config"
) -> RunConfig:
    """Check a mapping laid out like the YAML file; errors name `source` as where it came from."""
    if not isinstance(data, Mapping):
        got = describe(data)
        raise ConfigError(f"{source}: expected a mapping of sections at the top, got {got}")
    given = [_parse_override(text) for text in overrides]
    naming = [own for own in given if any(name[: len(own.path)] == own.path for name in NAMING)]
    model = RunConfig
    try:
        plain = _plain(data)
        for override in naming:
            _set(plain, override, override.path, model)
        model = model_of(plain)
        for override in given:
            if override not in naming:
                _set(plain, override, override.path, model)
        return model.model_validate(plain)
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None
    except ValidationError as error:
        raise ConfigError(explain(error, model, source, given)) from None


def parse_text(text: str, source: str) -> RunConfig:
    """Back from `dump_config`'s text, which another process has sent."""
    return parse_config(parse_yaml(text, source), source=source)


def dump_config(config: RunConfig) -> str:
    """YAML text of all options that load_config reads back to an equal configuration."""
    return dump_yaml(config.model_dump())


def refuse_override(text: str, fixed: Set[Path], why: str) -> None:
    """ConfigError if it sets one of the `fixed` options, part of one, or their section."""
    override = _parse_override(text)
    if any(_overlap(override.path, path) for path in fixed):
        raise ConfigError(f"{override.source}: {'.'.join(override.path)}: {why}")


def _overlap(one: Path, other: Path) -> bool:
    """Whether one is the other, or in it."""
    return all(a == b for a, b in zip(one, other, strict=False))


def _parse_override(text: str) -> _Override:
    name, equals, value = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    source = f"override {text:.60}"
    if not equals or not all(path):
        raise ConfigError(f"{source}: expected section.key=value, such as algorithm.lr=1e-4")
    return _Override(source, path, parse_yaml(value, source))


def _plain(value: Any) -> Any:
    """A deep copy with plain dicts and lists, which overrides may change."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _set(node: Any, override: _Override, path: Path, kind: Any) -> None:
    """Set what is at `path` below a node of this type; what is absent before it has its default."""
    key: Any = path[0]
    if isinstance(node, list):
        key = int(key) if re.fullmatch("[0-9]{1,9}", key) else -1
        if not 0 <= key <= len(node):
            what = f"a list of {len(node)} has no {path[0]}; give an index, or all of it"
            raise ConfigError(f"{override.source}: {what}")
        if key == len(node):
            node.append({})
    elif not isinstance(node, dict):
        raise ConfigError(f"{override.source}: {describe(node)} has no {key}; give all of it")
    if len(path) == 1:
        node[key] = override.value
        return
    if isinstance(node, dict) and key not in node:
        node[key] = _default(kind, key)
    _set(node[key], override, path[1:], _kind_at(kind, path[:1]))


def _default(kind: Any, key: str) -> Any:
    """What an absent option is before something in it is set."""
    field = kind.model_fields.get(key) if _is_section(kind) else None
    default = field.get_default(call_default_factory=True) if field else None
    if isinstance(default, BaseModel):  # what it leaves out stays out, and has its own default
        return default.model_dump(exclude_unset=True)
    return deepcopy(default) if isinstance(default, list | dict) else {}


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _kind_at(kind: Any, path: Path) -> Any:
    """The type that the schema gives to what is at `path` below `kind`; None if it has none."""
    for part in path:
        if _is_section(kind):
            field = kind.model_fields.get(part)
            kind = field.annotation if field else None
        else:
            kind = get_args(kind)[-1] if get_origin(kind) in (list, dict) else None
        while get_origin(kind) in (Annotated, Union, types.UnionType):  # `X | None`, or a range
            kind = get_args(kind)[0]
    return kind


def explain(
    error: ValidationError, model: type[BaseModel], source: str, given: Collection[_Override] = ()
) -> str:
    """The first thing that is wrong, and how many more; `given` says what overrides set."""
    # Of `auto` or a number, the number says more; a misspelt key, more than what it leaves missing.
    details = [each for each in error.errors() if "literal[" not in str(each["loc"])]
    first = min(details, key=lambda detail: detail["type"] != "extra_forbidden")
    path, message = _wording(first, model)
    where = source
    for override in given:
        if _overlap(path, override.path):
            where = override.source
    if where == source and given and first["type"] in (REFUSED, "missing"):
        where = f"{source} with {', '.join(override.source for override in given)}"
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return ": ".join(part for part in (where, ".".join(path), message) if part) + more


def _wording(detail: ErrorDetails, model: type[BaseModel]) -> tuple[Path, str]:
    """The path of one of pydantic's errors, and our own words for it."""
    path = tuple(str(part) for part in detail["loc"] if part != "constrained-int")
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == REFUSED:
        return (*path, *filter(None, context["field"].split("."))), context["message"]
    section = _kind_at(model, path[:-1])
    if kind == "extra_forbidden":
        return path, unknown_key(path[-1], section.model_fields)
    if kind == "missing":
        meaning = section.model_fields[path[-1]].description or path[-1]
        return path, f"required, but not given: {meaning.rstrip('.')}"
    message, hint = detail["msg"], ""
    for words, ours in WORDS.items():
        message = re.sub(words, ours, message)
    if kind == "literal_error":
        choices = get_args(_kind_at(model, path))
        names = [name if isinstance(name, str) else describe(name) for name in choices]
        message, hint = f"must be one of {', '.join(names)}", did_you_mean(str(value), names)
    return path, f"{message}, got {describe(value)}{hint}"
