"""From YAML text, a mapping and overrides such as `algorithm.lr=1e-4` to a RunConfig, and back.

Numbers are as in YAML 1.2, a key is given once, and every error is one line.
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from copy import deepcopy
from pathlib import Path as FilePath
from typing import Any, NoReturn, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from evorl.config.messages import (
    FLOAT,
    INT,
    Path,
    child_kind,
    describe,
    explain,
    is_section,
    shorten,
    unknown_key,
)
from evorl.config.run_config import RunConfig, model_of
from evorl.errors import ConfigError, one_line

TAG = "tag:yaml.org,2002:"
KEPT = ("bool", "null", "merge")  # of PyYAML's implicit types; its dates and base 60 surprise
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


def read_yaml(path: str | FilePath) -> Any:
    """The data of a YAML file; None for an empty one."""
    try:
        text = FilePath(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        problem = "no such file"
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text (byte {error.start + 1}); save it as UTF-8"
    except OSError as error:
        problem = f"cannot be read: {(error.strerror or str(error)).lower()}"
    except ValueError:  # a null character in the name
        problem = "not the name of a file"
    else:
        return parse_yaml(text, str(path))
    raise ConfigError(one_line(f"{path}: {problem}"))


def parse_yaml(text: str, source: str) -> Any:
    """The data of a YAML text; errors name `source` and the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = chr(error.character)
        problem = f"line {line}: invalid YAML: the character {character!r} is not allowed"
    except yaml.MarkedYAMLError as error:
        problem = _marked(error)
    except RecursionError:
        problem = "invalid YAML: nested too deeply"
    except yaml.YAMLError as error:
        problem = f"invalid YAML: {error}"
    raise ConfigError(one_line(f"{source}: {problem}"))


def dump_yaml(data: Any) -> str:
    """YAML text that parse_yaml reads back to equal data."""
    try:
        # Without allow_unicode, which lets line breaks such as U+0085 through unescaped.
        return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=100)
    except yaml.representer.RepresenterError as error:
        kind = type(error.args[-1]).__name__
        hint = "use numbers, strings, lists, mappings"
        raise ConfigError(f"cannot write a value of type {kind} as YAML; {hint}") from None


class _DuplicateKeyError(yaml.MarkedYAMLError):
    """A key that a mapping has twice: PyYAML would take the last one in silence."""


def _marked(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    line = f"line {mark.line + 1}: " if mark else ""
    if isinstance(error, _DuplicateKeyError):
        return f"{line}{error.problem}"
    problem = error.problem or "cannot be understood"
    if problem.startswith("but "):
        problem = f"{error.context}, {problem}"
    if "recursive node" in problem:
        problem = "a value contains itself"
    hint = "; indent with spaces, not tabs" if "'\\t'" in problem else ""
    return f"{line}invalid YAML: {problem}{hint}"


class _Loader(yaml.SafeLoader):
    """A SafeLoader with YAML 1.2's numbers, no dates, no key given twice and no cycles."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        first: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in first:
                line = first[key.tag, key.value]
                problem = f"the key {key.value} is given twice (first on line {line}); remove one"
                raise _DuplicateKeyError(problem=problem, problem_mark=key.start_mark)
            first[key.tag, key.value] = key.start_mark.line + 1
        return node

    def construct_document(self, node: yaml.Node) -> Any:
        self.deep_construct = True  # a mapping that contains itself is then an error
        return super().construct_document(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, KeyError, AttributeError):  # such as for `!!int many`
            problem = f"a value is not a valid {node.tag.removeprefix(TAG)}"
            mark = node.start_mark
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=mark) from None


class _Dumper(yaml.SafeDumper):
    """A SafeDumper that quotes what _Loader would not read as a string."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: _Dumper, data: list[Any]) -> yaml.SequenceNode:
    """A list of plain values goes on one line."""
    inline = not any(isinstance(item, list | dict) for item in data)
    return dumper.represent_sequence(f"{TAG}seq", data, flow_style=inline)


_Dumper.add_representer(list, _represent_list)
for _class in (_Loader, _Dumper):
    _class.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag[len(TAG) :] in KEPT]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _class.add_implicit_resolver(f"{TAG}int", INT, list("-+0123456789"))
    _class.add_implicit_resolver(f"{TAG}float", FLOAT, list("-+.0123456789"))
