"""All options as a page of Markdown, from the schema: docs/configuration.md."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from evorl.config.ranges import MOST
from evorl.config.reading import json_schema
from evorl.config.run_config import RunConfig
from evorl.config.sections import EnvConfig
from evorl.config.yaml_text import dump_yaml

Schema = Mapping[str, Any]
REFERENCE = "#/$defs/"
TYPES = {
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
    "object": "mapping",
}
INTRODUCTION = """\
# Configuration

<!-- Made by `evorl schema --markdown > docs/configuration.md`: change evorl/config instead. -->

A run is described by one YAML file. What it leaves out has the default of this page; only `env.id`
has none. `evorl init ENV_ID` writes a file to start from, and any option can be set for one run on
the command line by its path:

    evorl train configs/dqn/cartpole.yaml algorithm.lr=1e-4 population.agents.0.gamma=0.995

Every value is checked before anything is written: unknown keys, wrong types, values out of bounds
and options that do not fit together are answered in one line. An option that has no effect, given
the others, is warned of. `config.yaml` in a run's folder has all options of that run.
"""


class Heading(NamedTuple):
    """A section of the page."""

    title: str
    schema: Schema
    default: Any  # an instance of its class; None where a section may come any number of times
    level: int


def markdown() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(f"\n{part}" for part in _Page(json_schema()).parts())


class _Page:
    """Walks through the sections; one that occurs in several places is told once."""

    def __init__(self, schema: Schema) -> None:
        self.schema, self.definitions = schema, schema["$defs"]
        named = json.dumps(schema)
        counts = {name: named.count(f'"{REFERENCE}{name}"') for name in self.definitions}
        self.shared = [name for name, count in Counter(counts).items() if count > 1]
        self._told: set[str] = set()

    def parts(self) -> Iterator[str]:
        default = RunConfig(env=EnvConfig(id="…"))
        yield from self._section(Heading("", self.schema, default, 1))

    def _section(self, heading: Heading) -> Iterator[str]:
        yield self._title_and_table(heading)
        for key, option in heading.schema["properties"].items():
            path = f"{heading.title}.{key}" if heading.title else key
            name, many = self._section_of(option)
            if name is None or name in self._told:
                continue
            default = None if many else getattr(heading.default, key, None)
            title = path
            if name in self.shared:
                self._told.add(name)
                title, default = name, None
            elif many:
                title = f"{path}[i]"
            below = Heading(title, self._object(name), default, heading.level + 1)
            yield from self._section(below)

    def _title_and_table(self, heading: Heading) -> str:
        rows = "".join(
            self._row(heading, key, option)
            for key, option in heading.schema["properties"].items()
            if heading.title or self._section_of(option)[0] is None
        )
        title = f"`{heading.title}`" if heading.title else "The run"
        about = heading.schema.get("description", "")
        about = f"{about}\n\n" if heading.title and about else ""
        table = (
            f"| key | type | default | bounds | meaning |\n| --- | --- | --- | --- | --- |\n{rows}"
        )
        return f"{'#' * max(2, heading.level)} {title}\n\n{about}{table}"

    def _row(self, heading: Heading, key: str, option: Schema) -> str:
        meaning = option.get("description") or self._describe(option)
        default, bounds = self._default(heading, key, option), self._bounds(option)
        cells = (f"`{key}`", self._type(option), default, bounds, meaning)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"

    def _describe(self, option: Schema) -> str:
        """Where pydantic leaves out a description because it is that of the section."""
        name, _ = self._section_of(option)
        return "" if name is None else str(self._object(name).get("description", ""))

    def _section_of(self, option: Schema) -> tuple[str | None, bool]:
        """The definition that an option is, or has several of, if it is a section."""
        for arm in _arms(option):
            if reference := arm.get("$ref") or arm.get("items", {}).get("$ref"):
                return reference.removeprefix(REFERENCE), "$ref" not in arm
        return None, False

    def _object(self, name: str) -> Schema:
        """A definition with keys; one that may also be written as text has two arms."""
        found: Schema = next(arm for arm in _arms(self.definitions[name]) if "properties" in arm)
        return found

    def _type(self, option: Schema) -> str:
        name, many = self._section_of(option)
        if name is not None:
            kind = f"`{name}`" if name in self.shared else "section"
            return "list of sections" if many else kind
        return " or ".join(_type_of(arm) for arm in _arms(option))

    def _default(self, heading: Heading, key: str, option: Schema) -> str:
        if key in heading.schema.get("required", ()):
            return "required"
        value = getattr(heading.default, key, option.get("default"))
        if isinstance(value, BaseModel):
            if self._section_of(option)[0] not in self.shared:
                return "below"
            value = value.model_dump()
        return "—" if value is None else f"`{_yaml(value)}`"

    def _bounds(self, option: Schema) -> str:
        if self._section_of(option)[0] is not None:
            return ""
        return "; ".join(filter(None, map(_bounds_of, _arms(option))))


def _arms(option: Schema) -> list[Schema]:
    """The alternatives of an option, but for null."""
    return [arm for arm in option.get("anyOf", [option]) if arm.get("type") != "null"]


def _type_of(arm: Schema) -> str:
    if "const" in arm or "enum" in arm:
        return ", ".join(f"`{_yaml(value)}`" for value in arm.get("enum", [arm.get("const")]))
    if arm["type"] == "array":
        return f"list of {_type_of(arm['items'])}" + ("s" * ("enum" not in arm["items"]))
    return TYPES[arm["type"]]


def _bounds_of(arm: Schema) -> str:
    parts = [_range(arm, "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")]
    if arm.get("type") == "array":
        each = _bounds_of(arm["items"])
        parts = [f"{each} each" if each else ""]
        parts.append(_range(arm, "minItems", "maxItems", unit=" elements"))
    parts.append(_range(arm, "minLength", "maxLength", unit=" characters"))
    return ", ".join(filter(None, parts))


def _range(
    arm: Schema, low: str, high: str, above: str = "", below: str = "", unit: str = ""
) -> str:
    """Such as `1 to 8 elements`."""
    if unit and arm.get(low) == 1 and high not in arm:
        return "not empty"
    if low in arm and high in arm:
        return f"{_number(arm[low])} to {_number(arm[high])}{unit}"
    signs = {above: "> ", low: "≥ ", below: "< ", high: "≤ "}
    found = [f"{sign}{_number(arm[name])}" for name, sign in signs.items() if name in arm]
    return ", ".join(found) + (unit if found else "")


def _number(value: float) -> str:
    if value == MOST:
        return "10¹²"
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _yaml(value: Any) -> str:
    """A value on one line, as one would write it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(item)}" for key, item in value.items()) + "}"
    return dump_yaml(value).removesuffix("...\n").strip()
