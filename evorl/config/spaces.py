"""evolution.spaces: which hyperparameters evolve, and the values that each may take."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from evorl.config.ranges import refuse
from evorl.config.section import Hyperparameters, Section
from evorl.config.wording import number, plain_number

KIND = "Scale of the values"
LOW, HIGH = "Smallest value.", "Largest value."
VALUES = "The values of a choice; a mutation takes the next larger or smaller one."
REVERSE = "reverse_log is a log scale of 1 - value, for gamma"


class SpaceConfig(Section):
    """The values that one hyperparameter may take, and the scale on which it moves."""

    kind: Literal["linear", "log", "reverse_log", "integer", "power_of_two", "choice"]
    low: float | None = None
    high: float | None = None
    values: Sequence[float] | None = None

    @property
    def whole(self) -> bool:
        """Whether all its values are whole numbers."""
        return self.kind in ("integer", "power_of_two")

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value."""
        if self.values is not None:
            return min(self.values), max(self.values)
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def __contains__(self, value: float) -> bool:
        """Whether a value is one of the choices, or between the bounds."""
        low, high = self.bounds
        return low <= value <= high if self.values is None else value in self.values

    def __str__(self) -> str:
        low, high = self.bounds
        choices = ", ".join(number(value) for value in self.values or ())
        return choices or f"{number(low)} to {number(high)}"

    @model_validator(mode="after")
    def _complete(self) -> "SpaceConfig":
        ends = ("low", "high")
        needed, other = (("values",), ends) if self.kind == "choice" else (ends, ("values",))
        for name in other:
            if (value := getattr(self, name)) is not None:
                refuse(name, f"be left out for kind {self.kind}", _shown(value))
        for name in needed:
            if getattr(self, name) is None:
                refuse(name, f"be given for kind {self.kind}", None)
        for index, value in enumerate(self.values or ()):
            if self.values and value in self.values[:index]:
                refuse(f"values.{index}", "differ from the values before it", _shown(value))
        if self.kind != "choice":
            self._check_bounds(*self.bounds)
        return self

    def _check_bounds(self, low: float, high: float) -> None:
        for side, value in (("low", low), ("high", high)):
            if self.kind == "log" and value <= 0:
                refuse(side, "be greater than 0 on a log scale", _shown(value))
            if self.kind == "reverse_log" and not 0 <= value < 1:
                rule = "be at least 0 and less than 1 on a reverse_log scale"
                refuse(side, rule, _shown(value))
            if self.whole and value != int(value):
                refuse(side, "be a whole number", value)
            if self.kind == "power_of_two" and (value < 1 or int(value) & (int(value) - 1)):
                refuse(side, "be a power of two", _shown(value))
        if low >= high:
            refuse("high", f"be greater than low = {number(low)}", _shown(high))

    @model_serializer(mode="wrap")
    def given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only what this kind of space has."""
        return {name: value for name, value in handler(self).items() if value is not None}


class FractionSpace(SpaceConfig):
    """The values that a hyperparameter such as lr may take, and the scale on which it moves."""

    kind: Literal["linear", "log", "reverse_log", "choice"] = Field(
        description=f"{KIND}; {REVERSE}."
    )
    low: float | None = Field(default=None, description=LOW)
    high: float | None = Field(default=None, description=HIGH)
    values: Annotated[list[float], Field(min_length=1)] | None = Field(
        default=None, description=VALUES
    )


class WholeSpace(SpaceConfig):
    """The whole numbers that a hyperparameter such as batch_size may be, and how it moves."""

    kind: Literal["integer", "power_of_two", "choice"] = Field(description=f"{KIND}.")
    low: int | None = Field(default=None, description=LOW)
    high: int | None = Field(default=None, description=HIGH)
    values: Annotated[list[int], Field(min_length=1)] | None = Field(
        default=None, description=VALUES
    )

    @property
    def whole(self) -> bool:
        """Whether all its values are whole numbers."""
        return True


def _describe(schema: dict[str, Any]) -> None:
    for name, field in schema["properties"].items():
        field["description"] = f"Space of {name}: {Hyperparameters.model_fields[name].description}"


class SpacesConfig(Section):
    """The hyperparameters that evolve; one without a space keeps the value of its agent."""

    model_config = ConfigDict(json_schema_extra=_describe)

    lr: FractionSpace | None = None
    gamma: FractionSpace | None = None
    tau: FractionSpace | None = None
    batch_size: WholeSpace | None = None
    learn_step: WholeSpace | None = None
    max_grad_norm: FractionSpace | None = None
    target_period: WholeSpace | None = None
    epsilon_start: FractionSpace | None = None
    epsilon_end: FractionSpace | None = None
    epsilon_steps: WholeSpace | None = None

    @property
    def evolving(self) -> dict[str, SpaceConfig]:
        """The spaces that are given, by hyperparameter."""
        named = ((name, getattr(self, name)) for name in Hyperparameters.model_fields)
        return {name: space for name, space in named if space is not None}

    @model_validator(mode="after")
    def _within_the_ranges(self) -> "SpacesConfig":
        for name, space in self.evolving.items():
            for where, value in _numbers(space):
                if rule := _broken_rule(Hyperparameters.model_fields[name], value):
                    refuse(f"{name}.{where}", rule, _shown(value))
        norm = self.max_grad_norm
        if norm is not None and norm.low == 0:  # next to the tightest limit, there would be none
            refuse("max_grad_norm.low", "be greater than 0, which turns clipping off", 0)
        return self

    @model_serializer(mode="wrap")
    def given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only the hyperparameters that evolve."""
        return {name: value for name, value in handler(self).items() if value is not None}


def default_spaces() -> SpacesConfig:
    """What evolves unless evolution.spaces says otherwise.

    Not the batch size: larger ones are paid in time, and mattered little where it was measured.
    """
    return SpacesConfig(
        lr=FractionSpace(kind="log", low=1e-4, high=1e-2),
        gamma=FractionSpace(kind="reverse_log", low=0.95, high=0.999),
        tau=FractionSpace(kind="log", low=1e-3, high=1e-1),
    )


def _numbers(space: SpaceConfig) -> Iterator[tuple[str, float]]:
    """Every number of a space, and the key or index that it has."""
    if space.values is None:
        yield from zip(("low", "high"), space.bounds, strict=True)
    for index, value in enumerate(space.values or ()):
        yield f"values.{index}", value


def _broken_rule(field: FieldInfo, value: float) -> str | None:
    """What a value outside the range of its hyperparameter must be."""
    for bound in field.metadata:
        if (gt := getattr(bound, "gt", None)) is not None and not value > gt:
            return f"be greater than {number(gt)}"
        if (ge := getattr(bound, "ge", None)) is not None and not value >= ge:
            return f"be at least {number(ge)}"
        if (le := getattr(bound, "le", None)) is not None and not value <= le:
            return f"be at most {number(le)}"
    return None


def _shown(value: object) -> object:
    return plain_number(value) if isinstance(value, float) else value
