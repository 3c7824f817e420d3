"""From YAML text, a mapping and overrides such as `algorithm.lr=1e-4` to a RunConfig, and back."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from copy import deepcopy
from pathlib import Path as FilePath
from typing import Any, NoReturn, get_origin

from pydantic import BaseModel, ValidationError

from evorl.config.messages import (
    Path,
    child_kind,
    describe,
    explain,
    is_section,
    shorten,
    unknown_key,
)
from evorl.config.run_config import RunConfig, model_of
from evorl.config.yaml_text import dump_yaml, parse_yaml, read_yaml
from evorl.errors import ConfigError, one_line

NAMING = ("algorithm", "name"), ("evolution", "selection", "kind")  # what other keys hang on
HOW = "expected section.key=value, such as algorithm.lr=1e-4"


def load_config(path: str | FilePath, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply overrides such as `algorithm.lr=1e-4`; ConfigError if wrong."""
    data = read_yaml(path)
    return parse_config({} if data is None else data, overrides, source=str(path))


def parse_config(
    data: Mapping[str, Any], overrides: Sequence[str] = (), source: str = "config"
) -> RunConfig:
    """Check a mapping laid out like the YAML file; errors name `source` as where it came from."""
    if not isinstance(data, Mapping):
        message = f"expected a mapping of sections at the top, got {describe(data)}"
        raise ConfigError(one_line(f"{source}: {message}"))
    try:
        plain, named = _plain(data), _plain(data)
    except RecursionError:
        raise ConfigError(one_line(f"{source}: nested too deeply")) from None
    paths = {_split(text)[0]: text for text in overrides}
    model: type[RunConfig] = RunConfig
    try:
        model = model_of({})
        for text in overrides:
            if any(name[: len(path)] == path for path in [_split(text)[0]] for name in NAMING):
                apply_override(named, text, model)
        model = model_of(named)
        for text in overrides:
            apply_override(plain, text, model)
        return model.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(explain(error, model, source, paths)) from None


def parse_text(text: str, source: str) -> RunConfig:
    """Back from `dump_config`'s text, which another process has sent."""
    return parse_config(parse_yaml(text, source), source=source)


def dump_config(config: RunConfig) -> str:
    """YAML text of all options that load_config reads back to an equal configuration."""
    return dump_yaml(config.model_dump())


def _plain(value: Any) -> Any:
    """A deep copy with plain dicts and lists, which overrides may change."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def apply_override(data: dict[str, Any], text: str, model: type[BaseModel]) -> None:
    """Set one value in `data`, which is laid out like `model`."""
    path, value = _split(text)
    node: Any = data
    kind: Any = model
    for depth in range(1, len(path)):
        key = _key(node, kind, path[:depth], text)
        child = child_kind(kind, path[depth - 1])
        if key not in (range(len(node)) if isinstance(node, list) else node):
            start = _start(kind, path[depth - 1], child)
            if start is None:
                _not_a_section(text, path[:depth], path[depth])
            _set(node, key, start)
        node, kind = node[key], child
    _set(node, _key(node, kind, path, text), value)


def refuse_override(text: str, fixed: Set[Path], why: str) -> None:
    """ConfigError if it sets one of the `fixed` options, or something in one; `why` it may not."""
    for path in _options(*_split(text)):
        if any(path[:depth] in fixed for depth in range(1, len(path) + 1)):
            _refuse(text, f"{'.'.join(path)}: {why}")


def _split(text: str) -> tuple[Path, Any]:
    name, equals, value_text = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    if not equals:
        _refuse(text, HOW)
    if not all(path):
        _refuse(text, f"has an empty key; {HOW}")
    return path, parse_yaml(value_text, f"override {shorten(text)}")


def _options(path: Path, value: Any) -> Iterator[Path]:
    """The single options of a value that may be a whole section."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _options((*path, str(key)), item)
    else:
        yield path


def _key(node: Any, kind: Any, path: Path, text: str) -> str | int:
    """The last part of `path` as a key or index of `node`, which must be able to have it."""
    *parents, part = path
    parent = ".".join(parents)
    if isinstance(node, dict):
        known = kind.model_fields if is_section(kind) else {part}
        if part not in known and not (":" in part and kind.model_config["extra"] == "allow"):
            _refuse(text, f"{'.'.join(path)}: {unknown_key(part, known)}")
        return part
    if not isinstance(node, list):
        _not_a_section(text, tuple(parents), part)
    if not re.fullmatch("[0-9]{1,99}", part):
        _refuse(text, f"{parent}: is a list; write an index such as {parent}.0, or all of it")
    grows = is_section(child_kind(kind, part))  # a list of sections may get one more
    if int(part) >= len(node) + grows:
        next_one = f"; the next new one is {parent}.{len(node)}" if grows else ""
        _refuse(text, f"{parent}: has {len(node)} elements, so none at index {part}{next_one}")
    return int(part)


def _set(node: Any, key: Any, value: Any) -> None:
    if isinstance(node, list) and key == len(node):
        node.append(value)
    else:
        node[key] = value


def _start(kind: Any, part: str, child: Any) -> Any:
    """What an absent option is before something in it is set: its default, or None."""
    default: Any = None
    if is_section(kind):
        default = kind.model_fields[part].get_default(call_default_factory=True)
    if isinstance(default, BaseModel):  # what it leaves out stays out, and has its own default
        return default.model_dump(exclude_unset=True)
    if is_section(child):
        return {}
    return deepcopy(default) if get_origin(child) in (list, dict) else None


def _not_a_section(text: str, path: Path, part: str) -> NoReturn:
    here = ".".join(path)
    _refuse(text, f"{here}: is not a mapping, so it has no {part}; write {here}=VALUE")


def _refuse(text: str, message: str) -> NoReturn:
    raise ConfigError(one_line(f"override {shorten(text) or repr(text)}: {message}"))
