"""The evolution section: what evolves and where, who survives, and how children differ."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model, model_validator
from pydantic.fields import FieldInfo

from evorl.config.sections import (
    Channels,
    Fraction,
    Section,
    Sparse,
    Units,
    check_part,
    option,
    refusal,
    refuse,
    unknown_key,
)
from evorl.genome import ACTIVATIONS, Activation

Weight = Annotated[float, Field(ge=0, le=1e6)]
FRACTIONS = ("linear", "log", "reverse_log", "choice")
WHOLES = ("integer", "power_of_two", "choice")


class SpaceConfig(Sparse):
    """The values that one hyperparameter may take, and the scale on which it moves."""

    kind: Literal["linear", "log", "reverse_log", "integer", "power_of_two", "choice"] = option(
        ..., "Scale of the values; reverse_log is a log scale of 1 - value, for gamma."
    )
    low: float | None = option(None, "Smallest value.")
    high: float | None = option(None, "Largest value.")
    values: Sequence[float] | None = option(
        None, "The values of a choice; a mutation takes the next one.", min_length=1
    )

    @property
    def whole(self) -> bool:
        """Whether all its values are whole numbers."""
        return self.kind in ("integer", "power_of_two") or isinstance(self.bounds[0], int)

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value."""
        ends = self.values or (self.low, self.high)
        known = [end for end in ends if end is not None]
        return min(known), max(known)

    @model_validator(mode="after")
    def _complete(self) -> "SpaceConfig":
        for name in ("low", "high", "values"):
            needed, given = (name == "values") == (self.kind == "choice"), getattr(self, name)
            if needed == (given is None):
                rule = f"be {'given' if needed else 'left out'} for kind {self.kind}"
                refuse(name, rule, given)
        if self.values and len(set(self.values)) < len(self.values):
            refusal("values", "must differ from each other")
        if self.low is not None and self.high is not None:
            self._check_end("low", self.low)
            self._check_end("high", self.high)
            if self.low >= self.high:
                refuse("high", f"be greater than low = {self.low}", self.high)
        return self

    def _check_end(self, side: str, value: float) -> None:
        if self.kind == "log" and value <= 0:
            refuse(side, "be greater than 0 on a log scale", value)
        if self.kind == "reverse_log" and not 0 <= value < 1:
            refuse(side, "be at least 0 and less than 1 on a reverse_log scale", value)
        if self.kind == "power_of_two" and (value < 1 or int(value) & (int(value) - 1)):
            refuse(side, "be a power of two", value)


class SpacesConfig(Sparse):
    """The hyperparameters that evolve: if given, only these; others stay as agents have them."""


def spaces_model(hyperparameters: Mapping[str, FieldInfo]) -> type[SpacesConfig]:
    """SpacesConfig with an algorithm's hyperparameters, each space within its limits."""
    spaces: dict[str, Any] = {
        name: (_space_model(name, own) | None, option(None, f"Space of {name}: {own.description}"))
        for name, own in hyperparameters.items()
    }
    doc = SpacesConfig.__doc__
    return create_model("SpacesConfig", __base__=SpacesConfig, __doc__=doc, **spaces)


def _space_model(name: str, field: FieldInfo) -> type[SpaceConfig]:
    value, known = field.rebuild_annotation(), SpaceConfig.model_fields
    fields: dict[str, Any] = {
        "kind": (Literal[WHOLES if field.annotation is int else FRACTIONS], known["kind"]),
        "low": (value | None, known["low"]),
        "high": (value | None, known["high"]),
        "values": (list[value] | None, known["values"]),  # type: ignore[valid-type]
    }
    return create_model(
        f"{name.title().replace('_', '')}Space",
        __base__=SpaceConfig,
        __doc__=f"The values that {name} may take, and the scale on which it moves.",
        **fields,
    )


def _own_kinds(schema: dict[str, Any]) -> None:
    """A user's own mutations: any key with a colon."""
    schema["patternProperties"] = {":": schema.pop("additionalProperties")}
    schema["additionalProperties"] = False


class MutationConfig(Section):
    """How a child is made: relative probabilities of the kinds, and the limits of each.

    A key such as my_module:my_mutation is the weight of a mutation of your own.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=_own_kinds)
    __pydantic_extra__: dict[str, Weight]

    none: Weight = option(0.0, "Weight of an exact copy.")
    architecture: Weight = option(0.2, "Weight of a change of the network.")
    parameters: Weight = option(0.2, "Weight of noise on the weights.")
    activation: Weight = option(0.0, "Weight of another activation.")
    hyperparameters: Weight = option(0.6, "Weight of other hyperparameters.")
    new_layer: Fraction = option(0.2, "Probability that a layer is added or removed, not units.")
    units: list[Units] = option([16, 32], "Units added or removed: one of these.", min_length=1)
    channels: list[Channels] = option([4, 8], "Channels added or removed (images).", min_length=1)
    min_layers: int = option(1, "Fewest hidden layers.", ge=1, le=8)
    max_layers: int = option(3, "Most hidden layers.", ge=1, le=8)
    min_units: Units = option(16, "Fewest units of a layer.")
    max_units: Units = option(256, "Most units of a layer.")
    min_channels: Channels = option(4, "Fewest channels (images).")
    max_channels: Channels = option(64, "Most channels (images).")
    activations: list[Activation] = option(
        list(ACTIVATIONS), "Activations that a mutation may choose.", min_length=1
    )
    noise_fraction: Fraction = option(0.1, "Share of the weights that parameter noise changes.")
    noise: float = option(0.1, "Its standard deviation, relative to a weight.", gt=0, le=10)
    reset_dormant: bool = option(True, "Whether it first resets units that learn nothing.")

    @property
    def user(self) -> dict[str, float]:
        """The weights of the user's own mutations, by module:function."""
        return dict(self.__pydantic_extra__)

    @model_validator(mode="after")
    def _fits_together(self) -> "MutationConfig":
        for name in self.user:
            if ":" not in name:
                refusal(name, unknown_key(name, type(self).model_fields))
            check_part("mutation", name, name)
        for what in ("layers", "units", "channels"):
            low, high = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if low > high:
                refuse(f"max_{what}", f"be at least min_{what} = {low}", high)
        kinds = ("none", "architecture", "parameters", "activation", "hyperparameters")
        if not any((*(getattr(self, kind) for kind in kinds), *self.user.values())):
            refuse("none", "be greater than 0 when all kinds of mutation are 0", self.none)
        return self


class ExploreConfig(Section):
    """How a hyperparameter mutation chooses new values within the spaces."""

    strategy: Literal["perturb", "resample", "pb2"] = option(
        "resample", "Grow or shrink; also draw new values; or learn what raised fitness (PB2)."
    )
    grow: float = option(1.25, "Factor of a value that grows.", gt=1, le=100)
    shrink: float = option(0.8, "Factor of a value that shrinks.", gt=0, lt=1)
    resample: Fraction = option(0.25, "Probability that a value is drawn again (resample).")


class HalvingConfig(Section):
    """Successive halving: many agents begin, and few get most of the steps."""

    survivors: int | None = option(
        None, "Agents that are left in the end; null: as many as there were.", ge=1, le=4096
    )
    within: Fraction = option(
        0.5, "Share of the budget in which the others go, half of those that are left at a time."
    )


class EvolutionConfig(Section):
    """How the population changes from one generation to the next."""

    method: Literal["none", "random_search", "evolution"] = option(
        "evolution", "Leave agents as they are, draw them once from the spaces, or evolve them."
    )
    spaces: SpacesConfig = Field(default_factory=SpacesConfig)  # with the algorithm's own options
    halving: HalvingConfig = Field(default_factory=HalvingConfig)
    selection: Any = None  # the class that the registry has for its kind
    mutation: MutationConfig = Field(default_factory=MutationConfig)  # type: ignore[arg-type]
    explore: ExploreConfig = Field(default_factory=ExploreConfig)
