"""What is wrong with a configuration, in one line: where, what it got, and what to do."""

import types
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from evorl.config.registry import did_you_mean
from evorl.config.yaml_text import FLOAT, INT
from evorl.errors import one_line

REFUSED = "refused"  # the error type of evorl's own checks, which bring their message along
SHOWN = 60  # characters of a user's value in a message
TEMPLATES = {  # by pydantic's type of an error
    "float_type": "expected a number, got {got}{unquote}",
    "int_type": "expected a whole number, got {got}{unquote}",
    "bool_type": "expected true or false, got {got}{unquote}",
    "string_type": "expected a string, got {got}{quote}",
    "list_type": "expected a list, got {got}",
    "dict_type": "expected a mapping, got {got}",
    "finite_number": "must be a finite number, got {got}",
    "greater_than": "must be greater than {gt}, got {got}",
    "greater_than_equal": "must be at least {ge}, got {got}",
    "less_than": "must be less than {lt}, got {got}",
    "less_than_equal": "must be at most {le}, got {got}",
    "too_short": "must have at least {min_length} entry, got an empty {kind}",
    "too_long": "must have at most {max_length} entries, got {actual_length}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters, got {length}",
    "string_unicode": "is not valid Unicode text, got {got}",
}

Path = tuple[str, ...]


def shorten(text: str) -> str:
    """At most SHOWN characters of a text."""
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def describe(value: object) -> str:
    """A value as the user knows it from YAML."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**30:  # Python refuses to print very long ones
        return "a very large number" if value > 0 else "a very large negative number"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return f"the string {shorten(repr(value))}"
    if isinstance(value, list | tuple):
        return "a list"
    return "a mapping" if isinstance(value, Mapping) else f"a value of type {type(value).__name__}"


def plain(value: Any) -> Any:
    """A whole number without the `.0` that it has as a float."""
    return int(value) if isinstance(value, float) and value == int(value) else value


def number(value: float) -> str:
    """A number in a sentence."""
    return str(plain(value))


def unknown_key(key: str, known: Collection[str]) -> str:
    """That a key does not exist, and which one was probably meant."""
    return "unknown key" + (did_you_mean(key, known) or f"; known keys: {', '.join(known)}")


def is_section(kind: object) -> bool:
    """Whether a type of the schema is a section with named options."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def child_kind(kind: Any, key: str) -> Any:
    """The type that the schema gives to a key or index below `kind`; None if it has none."""
    if is_section(kind):
        field = kind.model_fields.get(key)
        return None if field is None else _bare(field.annotation)
    return _bare(get_args(kind)[-1]) if get_origin(kind) in (list, dict) else None


def _bare(kind: Any) -> Any:
    """A type without its Annotated range and without `| None`."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return _bare(next(arm for arm in get_args(kind) if arm is not type(None)))
    return kind


def _kind_at(model: type[BaseModel], path: Path) -> Any:
    kind: Any = model
    for part in path:
        kind = child_kind(kind, part)
    return kind


def explain(
    error: ValidationError, model: type[BaseModel], source: str, origins: Mapping[Path, str]
) -> str:
    """The first thing that is wrong, and how many more; `origins` has the override of each path."""
    # A misspelt key comes before the value that is missing because of it.
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    path, message = _wording(details[0], model)
    where = source
    for origin, text in origins.items():
        if path[: len(origin)] == origin:
            where = f"override {shorten(text)}"
    # a check of several options, or what a section lacks of which overrides gave the rest
    shared = bool(details[0].get("ctx", {}).get("field"))
    if details[0]["type"] == "missing":
        shared = path[:-1] in {origin[:-1] for origin in origins}
    if where == source and origins and shared:
        where = f"{source} with {', '.join(shorten(text) for text in origins.values())}"
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return one_line(": ".join(part for part in (where, ".".join(path), message) if part) + more)


def _wording(detail: ErrorDetails, model: type[BaseModel]) -> tuple[Path, str]:
    """The path of one of pydantic's errors, and our own words for it."""
    path = tuple(str(part) for part in detail["loc"])
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == REFUSED:
        below = tuple(context["field"].split(".")) if context["field"] else ()
        return path + below, context["message"]
    if kind == "invalid_key" or path[-1:] == ("[key]",):
        path = path[:-2] if path[-1:] == ("[key]",) else path[:-1]
        return path, f"keys must be strings, got {describe(value)}; put it in quotes"
    if kind == "extra_forbidden":
        return path, unknown_key(path[-1], _kind_at(model, path[:-1]).model_fields)
    if kind == "missing":
        return _required(model, path)
    if kind == "model_type":
        return _no_section(model, path, value)
    if kind == "literal_error":
        return path, _choice(value, get_args(_kind_at(model, path)))
    return path, _plain_wording(kind, value, context)


def _plain_wording(kind: str, value: Any, context: Mapping[str, Any]) -> str:
    numbers = isinstance(value, int | float)
    if kind == "float_type" and numbers and not isinstance(value, bool):
        kind = "finite_number"
    literal = isinstance(value, str) and (
        INT.match(value) or FLOAT.match(value) or value.lower() in ("true", "false")
    )
    limits = {name: plain(v) for name, v in context.items()}
    known = limits | {
        "got": describe(value),
        "unquote": "; drop the quotes" if literal else "",
        "quote": "; put it in quotes" if numbers else "",
        "kind": "list" if isinstance(value, list) else "mapping",
        "length": len(value) if isinstance(value, str) else 0,
    }
    return TEMPLATES.get(kind, "cannot be used, got {got}").format_map(known)


def _choice(value: object, choices: tuple[object, ...]) -> str:
    names = [choice if isinstance(choice, str) else describe(choice) for choice in choices]
    text = value if isinstance(value, str) else ""
    # the string 'true' where true is meant
    hint = "; drop the quotes" if text in names else did_you_mean(text, names)
    return f"must be one of {', '.join(names)}, got {describe(value)}{hint}"


def _required(model: type[BaseModel], path: Path) -> tuple[Path, str]:
    """A missing section is told as its first required option."""
    kind = _kind_at(model, path)
    if is_section(kind):
        path = (*path, next(name for name, f in kind.model_fields.items() if f.is_required()))
    meaning = _kind_at(model, path[:-1]).model_fields[path[-1]].description
    return path, "required, but not given" + (f": {meaning.rstrip('.')}" if meaning else "")


def _no_section(model: type[BaseModel], path: Path, value: object) -> tuple[Path, str]:
    fields = _kind_at(model, path).model_fields
    if value is None and any(field.is_required() for field in fields.values()):
        return _required(model, path)
    empty = "; remove it, or give it keys" if value is None else ""
    example = next(iter(fields))
    return path, f"expected a mapping with keys such as {example}, got {describe(value)}{empty}"
