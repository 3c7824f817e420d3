"""What is wrong with a configuration, in one line: where, what was got, and what to do."""

import difflib
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from evorl.config.yaml_text import is_number, one_line

REFUSED = "refused"  # the error type of evorl's own checks, which bring their message along
SHOWN = 60  # characters of a user's value in a message

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
    if isinstance(value, Mapping):
        return "a mapping"
    return f"a value of type {type(value).__name__}"


def plain_number(value: float) -> float:
    """A whole number without the `.0` that it has as a float."""
    return int(value) if value == int(value) else value


def number(value: float) -> str:
    """A number in a sentence."""
    return str(plain_number(value))


def is_section(kind: object) -> bool:
    """Whether a type of the schema is a section with named options."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def child_kind(kind: Any, key: str) -> Any:
    """The type that the schema gives to a key or index below `kind`; None if it has none."""
    if is_section(kind):
        field = kind.model_fields.get(key)
        return None if field is None else _bare(field.annotation)
    return _bare(get_args(kind)[0]) if get_origin(kind) is list else None


def _bare(kind: Any) -> Any:
    """A type without its Annotated range and without `| None`."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return _bare(next(arm for arm in get_args(kind) if arm is not type(None)))
    return kind


def unknown_key(key: str, known: Iterable[str]) -> str:
    """That a key does not exist, and which one was probably meant."""
    known = list(known)
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
    return f"unknown key; {hint}"


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
    """The dotted path of one of pydantic's errors, and our own words for it."""
    path = tuple(str(part) for part in detail["loc"])
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    got = describe(value)
    if kind == REFUSED:
        below = tuple(context["field"].split(".")) if context["field"] else ()
        return path + below, context["message"]
    if kind == "invalid_key" or path[-1:] == ("[key]",):
        path = path[:-2] if path[-1:] == ("[key]",) else path[:-1]
        return path, f"keys must be strings, got {got}; put it in quotes"
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
    got = describe(value)
    quoted = isinstance(value, str) and (is_number(value) or value.lower() in ("true", "false"))
    unquote = "; drop the quotes" if quoted else ""
    match kind:
        case "float_type" if isinstance(value, int) and not isinstance(value, bool):
            return f"must be a finite number, got {got}"
        case "float_type":
            return f"expected a number, got {got}{unquote}"
        case "int_type":
            return f"expected a whole number, got {got}{unquote}"
        case "bool_type":
            return f"expected true or false, got {got}{unquote}"
        case "string_type":
            quote = "; put it in quotes" if isinstance(value, bool | int | float) else ""
            return f"expected a string, got {got}{quote}"
        case "list_type":
            return f"expected a list, got {got}"
        case "dict_type":
            return f"expected a mapping, got {got}"
        case "finite_number":
            return f"must be a finite number, got {got}"
        case "greater_than":
            return f"must be greater than {number(context['gt'])}, got {got}"
        case "greater_than_equal":
            return f"must be at least {number(context['ge'])}, got {got}"
        case "less_than":
            return f"must be less than {number(context['lt'])}, got {got}"
        case "less_than_equal":
            return f"must be at most {number(context['le'])}, got {got}"
        case "too_short":
            return f"must have at least {context['min_length']} entry, got an empty list"
        case "too_long":
            return f"must have at most {context['max_length']} entries, got {len(value)}"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters, got {len(value)}"
        case "string_unicode":
            return f"is not valid Unicode text, got {got}"
    return f"cannot be used, got {got}"


def _choice(value: object, choices: tuple[object, ...]) -> str:
    names = [choice if isinstance(choice, str) else describe(choice) for choice in choices]
    text = value if isinstance(value, str) else ""
    close = difflib.get_close_matches(text, names, n=1)
    hint = f"; did you mean {close[0]}?" if close and close[0] != text else ""
    if text in names:  # the string 'true' where true is meant
        hint = "; drop the quotes"
    return f"must be one of {', '.join(names)}, got {describe(value)}{hint}"


def _required(model: type[BaseModel], path: Path) -> tuple[Path, str]:
    """A missing section is told as its first required option."""
    kind = _kind_at(model, path)
    if is_section(kind):
        path = (*path, next(name for name, f in kind.model_fields.items() if f.is_required()))
    field = _kind_at(model, path[:-1]).model_fields[path[-1]]
    return path, f"required, but not given: {field.description.rstrip('.')}"


def _no_section(model: type[BaseModel], path: Path, value: object) -> tuple[Path, str]:
    fields = _kind_at(model, path).model_fields
    if value is None and any(field.is_required() for field in fields.values()):
        return _required(model, path)
    empty = "; remove it, or give it keys" if value is None else ""
    example = next(iter(fields))
    return path, f"expected a mapping with keys such as {example}, got {describe(value)}{empty}"


def _kind_at(model: type[BaseModel], path: Path) -> Any:
    kind: Any = model
    for part in path:
        kind = child_kind(kind, part)
    return kind
