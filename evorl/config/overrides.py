"""Overrides of a configuration from the command line, such as `algorithm.lr=1e-4`."""

import re
from collections.abc import Iterator, Mapping, Set
from copy import deepcopy
from typing import Any, NoReturn, get_origin

from pydantic import BaseModel

from evorl.config.wording import Path, child_kind, is_section, shorten, unknown_key
from evorl.config.yaml_text import one_line, parse_yaml
from evorl.errors import ConfigError


def plain_copy(value: Any, source: str) -> Any:
    """A deep copy with plain dicts and lists, which overrides may change."""
    try:
        return _plain(value)
    except RecursionError:
        raise ConfigError(one_line(f"{source}: nested too deeply")) from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def apply_override(data: dict[str, Any], text: str, model: type[BaseModel]) -> Path:
    """Set one value in `data`, laid out like `model`; returns the path that was set."""
    path, value = _split(text)
    node: Any = data
    kind: Any = model
    for depth in range(1, len(path)):
        key = _key(node, kind, path[:depth], text)
        child = child_kind(kind, path[depth - 1])
        if _absent(node, key):
            start = _start(kind, path[depth - 1], child)
            if start is None:
                _not_a_section(text, path[:depth], path[depth])
            _set(node, key, start)
        node, kind = node[key], child
    _set(node, _key(node, kind, path, text), value)
    return path


def refuse_override(text: str, fixed: Set[Path], why: str) -> None:
    """ConfigError if it sets one of the `fixed` options, or something in one; `why` it may not."""
    for path in _options(*_split(text)):
        if any(path[:depth] in fixed for depth in range(1, len(path) + 1)):
            _refuse(text, f"{'.'.join(path)}: {why}")


def _split(text: str) -> tuple[Path, Any]:
    name, equals, value_text = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    if not equals:
        _refuse(text, "expected section.key=value, such as algorithm.lr=1e-4")
    if not all(path):
        _refuse(text, "has an empty key; expected section.key=value, such as algorithm.lr=1e-4")
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
        if is_section(kind) and part not in kind.model_fields:
            _refuse(text, f"{'.'.join(path)}: {unknown_key(part, kind.model_fields)}")
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


def _absent(node: Any, key: Any) -> bool:
    return key == len(node) if isinstance(node, list) else key not in node


def _set(node: Any, key: Any, value: Any) -> None:
    if isinstance(node, list) and _absent(node, key):
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
