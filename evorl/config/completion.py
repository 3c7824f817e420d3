"""What an override that is being typed can become: `bud` → `budget.env_steps=`, and values."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from evorl.config.registry import OURS
from evorl.config.run_config import RunConfig, model_of
from evorl.config.sections import Section

NAMED = {  # options whose values are names of parts
    "algorithm.name": "algorithm",
    "evolution.selection.kind": "selection",
    "evaluation.fitness": "fitness",
}
# Sections that belong to an algorithm or a selection, which are slow to load.
THEIRS = ("algorithm.", "evolution.selection.", "evolution.spaces.")


def complete_override(text: str, data: Any) -> list[str]:
    """The options that begin so, or with a `=` in it the values, if there are few.

    `data` is what the YAML file says, whose algorithm has options of its own.
    """
    known = dict(_options(_model(text, data)))
    key, equals, value = text.partition("=")
    if not equals:
        return [f"{name}=" for name in known if name.startswith(text)]
    values = OURS[NAMED[key]] if key in NAMED else _values(known.get(key))
    return [f"{key}={one}" for one in values if one.startswith(value)]


def _model(text: str, data: Any) -> type[RunConfig]:
    if not any(text and (text.startswith(own) or own.startswith(text)) for own in THEIRS):
        return RunConfig
    algorithm, kind = _ours(data, "algorithm.name"), _ours(data, "evolution.selection.kind")
    found = {"algorithm": {"name": algorithm}, "evolution": {"selection": {"kind": kind}}}
    return model_of(found)


def _ours(data: Any, path: str) -> str | None:
    """The part that is named there, if it is one of ours: nothing of a user's is imported here."""
    for key in path.split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, str) and data in OURS[NAMED[path]] else None


def _options(model: type[Section], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """All options of a section and of those in it, by their path."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _options(kind, f"{above}{name}.")
        elif kind is Any:  # one of several classes, which its name says
            yield from ((key, field) for key in NAMED if key.startswith(f"{above}{name}."))
        else:
            yield f"{above}{name}", field


def _values(field: FieldInfo | None) -> Iterator[str]:
    """The few that an option can have."""
    kind = None if field is None else field.annotation
    for one in (kind, *get_args(kind)):  # `X | None`
        if one is bool:
            yield from ("true", "false")
        elif get_origin(one) is Literal:
            yield from (
                str(own).lower() if own is True or own is False else own for own in get_args(one)
            )
