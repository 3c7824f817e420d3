"""What sections are made of: a base class, options with ranges and units, and refusals."""

from typing import Annotated, Any, Literal, NoReturn

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)
from pydantic_core import PydanticCustomError

from evorl.config.messages import REFUSED, describe
from evorl.config.registry import resolve
from evorl.errors import ConfigError

MOST = 10**12  # the upper bound of counts that have no natural one: still exact as a float
HYPERPARAMETER = "hyperparameter"  # marks a field of which every agent has its own value
ZERO_IS_OFF = "zero_is_off"  # marks one of which 0 is not the least value, but none


class Section(BaseModel):
    """A part of the configuration: immutable, no unknown keys, no conversions."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Sparse(Section):
    """A section that is written without the options that are None."""

    @model_serializer(mode="wrap")
    def _given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


def option(default: Any, description: str, **limits: Any) -> Any:
    """A field that all agents share; a default of `...` means that it must be given."""
    return Field(default=default, description=description, **limits)


def section(make: Any) -> Any:
    """A field that is a section of its own; left out, it is what `make` gives."""
    return Field(default_factory=make)


def hyperparameter(
    default: float,
    description: str,
    *,
    space: dict[str, Any] | None = None,
    zero_is_off: bool = False,
    **limits: Any,
) -> Any:
    """A field that every agent has for itself: genomes hold it, evolution may change it.

    `space` is where it evolves unless evolution.spaces says otherwise, such as
    {"kind": "log", "low": 1e-4, "high": 1e-2}; None: it stays as it is.
    """
    extra: dict[str, Any] = {HYPERPARAMETER: True} | ({"space": space} if space else {})
    extra |= {ZERO_IS_OFF: True} if zero_is_off else {}
    return Field(default=default, description=description, json_schema_extra=extra, **limits)


def refuse(field: str, rule: str, got: object) -> NoReturn:
    """Tell pydantic of a broken rule; `field` is the path below the section that checks it."""
    refusal(field, f"must {rule}, got {describe(got)}")


def refusal(field: str, message: str) -> NoReturn:
    """Tell pydantic what is wrong, in our own words."""
    raise PydanticCustomError(REFUSED, "{message}", {"field": field, "message": message})


def check_part(kind: str, name: str, field: str = "") -> Any:
    """The class or function of this name; refused if there is none."""
    try:
        return resolve(kind, name)
    except ConfigError as error:
        refusal(field, str(error))


def part_name(kind: str) -> AfterValidator:
    """Checks that a name is one of a part of ours, or of the user's."""

    def check(name: str) -> str:
        check_part(kind, name)
        return name

    return AfterValidator(check)


def _no_number(value: object) -> object:
    """True or false may not be given as 1 or 0, which Python holds to be equal."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        refuse("", "be one of auto, true, false", value)
    return value


AutoBool = Annotated[Literal["auto", True, False], BeforeValidator(_no_number)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Units = Annotated[int, Field(ge=1, le=4096)]
Channels = Annotated[int, Field(ge=1, le=1024)]
Pixels = Annotated[int, Field(ge=1, le=64)]
Activation = Literal["relu", "elu", "gelu", "tanh", "silu"]
