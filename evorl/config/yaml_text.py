"""YAML text to plain data, and back.

Numbers, true and false are as in YAML 1.2, a key is given once, and every error is one line. A text
may be somebody else's: its size is bounded, also with all anchors written out, and its depth.
"""

import re
from pathlib import Path
from typing import Any, NoReturn

import yaml

from evorl.errors import ConfigError

MOST_BYTES, MOST_VALUES = 2**17, 10_000  # of a text, and with all that anchors stand for
SCHEDULE = 50  # times as much: it has a line for each generation in which something changed
DEEPEST = 50  # levels of lists and mappings
TAG = "tag:yaml.org,2002:"
KEPT = (f"{TAG}null", f"{TAG}merge")  # of PyYAML's types: `off`, dates and base 60 surprise
TYPES = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    "float": (
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
}


def read_yaml(path: str | Path, scale: int = 1) -> Any:
    """The data of a YAML file; None for an empty one. It may be `scale` times as long as usual."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(scale * MOST_BYTES + 1).decode("utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8
        problem = str(getattr(error, "strerror", error)).lower()
        raise ConfigError(f"{path}: cannot be read: {problem}") from None
    return parse_yaml(text, str(path), scale)


def parse_yaml(text: str, source: str, scale: int = 1) -> Any:
    """The data of a YAML text; errors name `source` and the line."""
    if len(text) > scale * MOST_BYTES:
        raise ConfigError(f"{source}: has more than {scale * MOST_BYTES} characters; shorten it")
    try:
        return _Loader(text, scale * MOST_VALUES).get_single_data()
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problem = ", ".join(filter(None, (error.context, error.problem)))
    except Exception as error:  # such as for `!!int many`
        line, problem = "", str(error)
    raise ConfigError(f"{source}: {line}invalid YAML: {problem}")


def dump_yaml(data: Any, flow: bool = False) -> str:
    """YAML text that parse_yaml reads back to equal data; with `flow`, as written on one line."""
    # Without allow_unicode, which lets line breaks such as U+0085 through unescaped.
    text = yaml.dump(data, Dumper=_Dumper, default_flow_style=flow, sort_keys=False, width=100)
    return text.removesuffix("...\n").strip() if flow else text


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str, most: int) -> None:
        super().__init__(text)
        self._depth, self._values, self._most = 0, 0, most
        self._sizes: dict[int, int] = {}  # values of each node, with those of its anchors, by id

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        """Count: a few lines of anchors that hold each other stand for more than fits in memory."""
        before, event = self._values, self.peek_event()  # type: ignore[no-untyped-call]
        self._depth += 1
        if self._depth > DEEPEST:
            self._refuse(f"more than {DEEPEST} levels of lists and mappings", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                self._refuse(f"the anchor {event.anchor} holds itself", event)
            self._values += self._sizes[id(node)]
        else:
            self._values += 1
            self._sizes[id(node)] = self._values - before
        if self._values > self._most:
            self._refuse(f"more than {self._most} values, with what anchors stand for", event)
        return node

    def _refuse(self, problem: str, event: Any) -> NoReturn:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A key given twice is an error: PyYAML would take the last one in silence."""
        node = super().compose_mapping_node(anchor)
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"the key {key.value} is given twice; remove one"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return node


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: _Dumper, data: list[Any]) -> yaml.SequenceNode:
    """A list of plain values goes on one line."""
    inline = not any(isinstance(item, list | dict) for item in data)
    return dumper.represent_sequence(f"{TAG}seq", data, flow_style=inline)


_Dumper.add_representer(list, _represent_list)
for _class in (_Loader, _Dumper):  # so that the dumper quotes what the loader would not read back
    _class.yaml_implicit_resolvers = {
        first: [pair for pair in pairs if pair[0] in KEPT]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for _name, (_pattern, _first) in TYPES.items():
        _class.add_implicit_resolver(f"{TAG}{_name}", re.compile(rf"(?:{_pattern})\Z"), [*_first])
