"""The JSON schema, by which editors complete a configuration, and docs/configuration.md from it."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from evorl.config.evolution import SpaceConfig
from evorl.config.registry import KINDS, resolve
from evorl.config.run_config import RunConfig, model_of
from evorl.config.section import MOST
from evorl.config.sections import EnvConfig
from evorl.config.yaml_text import dump_yaml

Schema = Mapping[str, Any]
REFERENCE = "#/$defs/"
SPACE = "Space"  # the end of the name of a space's definition: they have the same keys
TYPES = {
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
    "object": "mapping",
    "array": "list",
}
LIMITS = {
    "": ("exclusiveMinimum", "minimum", "exclusiveMaximum", "maximum"),
    " elements": ("", "minItems", "", "maxItems"),
    " characters": ("", "minLength", "", "maxLength"),
}
HEAD = "| key | type | default | bounds | meaning |\n| --- | --- | --- | --- | --- |\n"
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

`algorithm.name`, `evolution.selection.kind`, `evaluation.fitness` and further keys of
`evolution.mutation` may name parts of your own as `module:Name`, from the current folder or
installed. The options of an algorithm or a selection are then the fields of its class.
"""


def json_schema() -> dict[str, Any]:
    """The JSON schema by which editors complete and check configuration files."""
    schema = model_of({}).model_json_schema()
    definitions = schema["$defs"]
    schema["properties"]["algorithm"] = _classes(definitions, "algorithm", "name", "dqn")
    definitions["EvolutionConfig"]["properties"]["selection"] = _classes(
        definitions, "selection", "kind", "truncation"
    )
    for name in ("SpacesConfig", "AgentConfig"):  # the hyperparameters of other algorithms
        definitions[name]["additionalProperties"] = True
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _classes(definitions: dict[str, Any], kind: str, key: str, default: str) -> dict[str, Any]:
    """Any of our classes, each with its name, or a user's own with whatever options it has."""
    arms: list[dict[str, Any]] = []
    for name in KINDS[kind].ours:
        own = resolve(kind, name).model_json_schema()
        own["properties"][key]["const"] = name
        definitions |= {own["title"]: own | ({} if name == default else {"required": [key]})}
        arms.append({"$ref": f"{REFERENCE}{own['title']}"})
    other = {"type": "object", "properties": {key: {"type": "string", "pattern": ":"}}}
    return {"anyOf": [*arms, {**other, "required": [key]}]}


def markdown() -> str:
    """All options as a page of Markdown."""
    schema, default = json_schema(), RunConfig(env=EnvConfig(id="…"))
    page = _Page(schema["$defs"])
    space = page.section("SpaceConfig", SpaceConfig.model_json_schema(), None, 3)
    parts = [*page.section("", schema, default, 1), *space]
    return INTRODUCTION + "".join(f"\n{part}" for part in parts)


class _Page:
    """A table for each section, in the order of the file."""

    def __init__(self, definitions: Schema) -> None:
        self.definitions = definitions

    def section(self, path: str, schema: Schema, default: Any, level: int) -> Iterator[str]:
        """The section at this path, and those in it; `default` has its values if left out."""
        options = schema["properties"]
        names = [f", `{key}: {own['const']}`" for key, own in options.items() if "const" in own]
        about = f"`{path}`{''.join(names)}\n\n{schema['description']}" if path else "The run"
        rows = [
            self._row(key, option, default, key in schema.get("required", ()))
            for key, option in options.items()
            if path or not any(self._below(option))
        ]
        yield f"{'#' * max(2, level)} {about}\n\n{HEAD}{''.join(rows)}"
        for key, option in options.items():
            for below, many in self._below(option):
                where, value = f"{path}.{key}".lstrip("."), getattr(default, key, None)
                yield from self.section(where + many, below, None if many else value, level + 1)

    def _below(self, option: Schema) -> Iterator[tuple[Schema, str]]:
        """The sections that an option may be; with `[i]`, if there may be several."""
        for arm in _arms(option):
            reference = arm.get("$ref") or arm.get("items", {}).get("$ref")
            if reference and not reference.endswith(SPACE):
                found = self.definitions[reference.removeprefix(REFERENCE)]
                section = next(arm for arm in _arms(found) if "properties" in arm)
                yield section, "" if "$ref" in arm else "[i]"

    def _row(self, key: str, option: Schema, default: Any, required: bool) -> str:
        below = [section for section, _ in self._below(option)]
        meaning = option.get("description") or below[0]["description"].partition("\n")[0]
        value = option.get("const", getattr(default, key, option.get("default")))
        shown = "—" if value is None else f"`{_yaml(value)}`"
        if below and not isinstance(value, list):
            shown = "below"
        elif required and "const" not in option:
            shown = "required"
        arms = _arms(option)
        kind, bounds = " or ".join(map(_type_of, arms)), "; ".join(filter(None, map(_bounds, arms)))
        if below:
            kind, bounds = "list of sections" if "items" in arms[0] else "section", ""
        elif "$ref" in arms[0]:  # a space, within the bounds of its values
            space = self.definitions[arms[0]["$ref"].removeprefix(REFERENCE)]
            bounds = _bounds(_arms(space["properties"]["low"])[0])
        cells = (f"`{key}`", kind, shown, bounds, meaning)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _arms(option: Schema) -> list[Schema]:
    """The alternatives of an option, but for null."""
    return [arm for arm in option.get("anyOf", [option]) if arm.get("type") != "null"]


def _type_of(arm: Schema) -> str:
    if "enum" in arm or ("const" in arm and "default" not in arm):
        return ", ".join(f"`{_yaml(value)}`" for value in arm.get("enum", [arm.get("const")]))
    if arm.get("type") == "array":
        return f"list of {_type_of(arm['items'])}" + ("s" * ("enum" not in arm["items"]))
    return TYPES.get(arm.get("type", ""), "`SpaceConfig`")


def _bounds(arm: Schema) -> str:
    """Such as `≥ 1, ≤ 4,096 each, ≥ 1, ≤ 8 elements`."""
    each = _bounds(arm["items"]) if "items" in arm else ""
    parts = [f"{each} each"] if each else []
    for unit, names in LIMITS.items():
        limits = zip(names, [">", "≥", "<", "≤"], strict=True)
        found = [f"{sign} {_number(arm[name])}" for name, sign in limits if name in arm]
        parts += [", ".join(found) + unit] if found else []
    return ", ".join(parts)


def _number(value: float) -> str:
    if value == MOST:
        return "10¹²"
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _yaml(value: Any) -> str:
    """A value on one line, as one would write it."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(item)}" for key, item in value.items()) + "}"
    return dump_yaml(value).removesuffix("...\n").strip()
