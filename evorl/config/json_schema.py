"""The JSON schema, by which editors complete a configuration, and docs/configuration.md from it."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from evorl.config.evolution import SpaceConfig
from evorl.config.registry import OURS, resolve
from evorl.config.run_config import RunConfig, model_of
from evorl.config.sections import MOST, EnvConfig
from evorl.config.yaml_text import dump_yaml

Schema = dict[str, Any]
REFERENCE = "#/$defs/"
SPACE = "Space"  # the end of the title of a hyperparameter's space: they have the same keys
TYPES = {
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
    "object": "mapping",
}
SIGNS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
HEAD = "| key | type | default | meaning |\n| --- | --- | --- | --- |\n"
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

`algorithm.name`, `evolution.selection.kind`, `evaluation.fitness`, the names in `env.wrappers` and
further keys of `evolution.mutation` may name parts of your own as `module:Name`, from the current
folder, from beside the YAML file, or installed. The options of an algorithm or a selection are then
the fields of its class.
"""


def make_json_schema() -> Schema:
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


def _classes(definitions: Schema, kind: str, key: str, default: str) -> Schema:
    """Any of our classes, each with its name, or a user's own with whatever options it has."""
    arms: list[Schema] = []
    for name in OURS[kind]:
        own = resolve(kind, name).model_json_schema()
        own["properties"][key]["const"] = name
        definitions |= {own["title"]: own | ({} if name == default else {"required": [key]})}
        arms.append({"$ref": f"{REFERENCE}{own['title']}"})
    other = {"type": "object", "properties": {key: {"type": "string", "pattern": ":"}}}
    return {"anyOf": [*arms, {**other, "required": [key]}]}


def markdown() -> str:
    """All options as a page of Markdown."""
    schema, default = make_json_schema(), RunConfig(env=EnvConfig(id="…"))
    space = _pages("SpaceConfig", SpaceConfig.model_json_schema(), None, 3)
    pages = [*_pages("", _inlined(schema, schema["$defs"]), default, 1), *space]
    return INTRODUCTION + "".join(f"\n{page}" for page in pages)


def _inlined(node: Any, definitions: Schema) -> Any:
    """The schema with definitions in the place of references to them."""
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].removeprefix(REFERENCE)], definitions)
    return {key: _inlined(item, definitions) for key, item in node.items() if key != "$defs"}


def _pages(path: str, schema: Schema, default: Any, level: int) -> Iterator[str]:
    """The section at this path, and those in it; `default` has its values if left out."""
    options, required = schema["properties"], schema.get("required", ())
    names = [f", `{key}: {own['const']}`" for key, own in options.items() if "const" in own]
    about = f"`{path}`{''.join(names)}\n\n{schema['description']}" if path else "The run"
    rows = [
        _row(key, option, getattr(default, key, option.get("default")), key in required)
        for key, option in options.items()
        if "items" in option or not _sections(option)
    ]
    yield f"{'#' * max(2, level)} {about}\n\n{HEAD}{''.join(rows)}"
    for key, option in options.items():
        where, value = f"{path}.{key}".lstrip("."), getattr(default, key, None)
        if isinstance(value, list):
            where, value = f"{where}[i]", None
        for below in _sections(option):
            own = value if type(value).__name__ == below["title"] else None  # of several classes
            yield from _pages(where, below, own, level + 1)


def _row(key: str, option: Schema, default: Any, required: bool) -> str:
    if isinstance(default, BaseModel):
        default = default.model_dump()
    shown = "—" if default is None else f"`{dump_yaml(default, flow=True)}`"
    if "const" in option:
        shown = f"`{option['const']}`"
    elif required:
        shown = "required"
    kind = " or ".join(map(_type_of, _arms(option)))
    return f"| `{key}` | {kind} | {shown} | {option['description']} |\n"


def _sections(option: Schema) -> list[Schema]:
    """The sections that an option, or each element of its list, may be."""
    arms = [arm.get("items", arm) for arm in _arms(option)]
    titled = [arm for arm in arms if "properties" in arm and "title" in arm]
    return [arm for arm in titled if not arm["title"].endswith(SPACE)]


def _arms(option: Schema) -> list[Schema]:
    """The alternatives of an option, but for null."""
    return [arm for arm in option.get("anyOf", [option]) if arm.get("type") != "null"]


def _type_of(arm: Schema, plural: str = "") -> str:
    """Such as `list of whole numbers ≥ 1, ≤ 4,096`."""
    if "items" in arm:
        return f"list of {_type_of(arm['items'], 's')}"
    if "enum" in arm or ("const" in arm and "default" not in arm):
        choices = arm.get("enum", [arm.get("const")])
        return ", ".join(f"`{dump_yaml(value, flow=True)}`" for value in choices)
    name = TYPES[arm["type"]]
    if "properties" in arm:
        name = "section"
        if arm["title"].endswith(SPACE):  # within the bounds of its values
            name, arm = "`SpaceConfig`", _arms(arm["properties"]["low"])[0]
    limits = [(sign, arm[limit]) for limit, sign in SIGNS.items() if arm.get(limit, MOST) != MOST]
    bounds = [f"{sign} {value:,.15g}" for sign, value in limits]
    return f"{name}{plural} {', '.join(bounds)}".strip()
