"""YAML text to plain data, and back.

Numbers are as in YAML 1.2, a key is given once, and every error is one line.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from evorl.errors import ConfigError, one_line

TAG = "tag:yaml.org,2002:"
KEPT = ("bool", "null", "merge")  # of PyYAML's implicit types; its dates and base 60 surprise
# Numbers as YAML 1.2 has them.
INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0b[01][01_]*)\Z")
FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z"
    r"|[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z"
)


def read_yaml(path: str | Path) -> Any:
    """The data of a YAML file; None for an empty one."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        problem = "no such file"
    except IsADirectoryError:
        problem = "is a folder; give a YAML file in it"
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
