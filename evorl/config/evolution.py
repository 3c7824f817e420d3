"""The evolution section: what evolves, who survives, and how a child differs from its parent."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from evorl.config import ranges
from evorl.config.ranges import refuse
from evorl.config.section import Section
from evorl.config.spaces import SpacesConfig, default_spaces

Probability = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1e6)]


class SelectionConfig(Section):
    """Who is replaced by whose child."""

    kind: Literal["truncation", "tournament"] = Field(
        default="truncation", description="The worst get children of the best, or tournaments."
    )
    fraction: float = Field(
        default=0.25,
        gt=0,
        le=0.5,
        description="Share of agents replaced, and of parents (truncation).",
    )
    size: int = Field(default=2, ge=1, le=4096, description="Agents per tournament (tournament).")
    elitism: bool = Field(
        default=True, description="Whether the best agent always stays (tournament)."
    )
    min_gap: float = Field(
        default=1.0,
        ge=0,
        le=100,
        description="Standard errors of the paired difference by which a parent must lead.",
    )
    eval_loop: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Evaluations over which fitness is averaged; until then all that live stay.",
    )
    champion: Probability = Field(
        default=1.0,
        description="Probability that a child descends from the best agent ever seen instead, if"
        " its confirmed score is above the parent's fitness; the best has at most as many children"
        " this way as there are agents.",
    )


class MutationConfig(Section):
    """How a child is made: relative probabilities of the kinds, and the limits of each."""

    none: Weight = Field(default=0.0, description="Weight of an exact copy.")
    architecture: Weight = Field(default=0.2, description="Weight of a change of the network.")
    parameters: Weight = Field(default=0.2, description="Weight of noise on the weights.")
    activation: Weight = Field(default=0.0, description="Weight of another activation.")
    hyperparameters: Weight = Field(default=0.6, description="Weight of other hyperparameters.")
    user: dict[str, Weight] = Field(
        default={}, description="Weights of mutations of your own, by module:function."
    )
    new_layer: Probability = Field(
        default=0.2,
        description="Probability that an architecture gains or loses a layer, not units.",
    )
    units: list[Annotated[int, Field(ge=1, le=4096)]] = Field(
        default=[16, 32], min_length=1, description="Units added or removed: one of these."
    )
    channels: list[Annotated[int, Field(ge=1, le=1024)]] = Field(
        default=[4, 8],
        min_length=1,
        description="Channels added or removed: one of these (images).",
    )
    min_layers: int = Field(default=1, ge=1, le=8, description="Fewest hidden layers.")
    max_layers: int = Field(default=3, ge=1, le=8, description="Most hidden layers.")
    min_units: int = Field(default=16, ge=1, le=4096, description="Fewest units of a layer.")
    max_units: int = Field(default=256, ge=1, le=4096, description="Most units of a layer.")
    min_channels: int = Field(default=4, ge=1, le=1024, description="Fewest channels (images).")
    max_channels: int = Field(default=64, ge=1, le=1024, description="Most channels (images).")
    activations: list[ranges.Activation] = Field(
        default=["relu", "elu", "gelu", "tanh", "silu"],
        min_length=1,
        description="Activations that a mutation may choose.",
    )
    noise_fraction: Probability = Field(
        default=0.1, description="Share of the weights that parameter noise changes."
    )
    noise: float = Field(
        default=0.1,
        gt=0,
        le=10,
        description="Standard deviation of the noise, relative to a weight.",
    )
    reset_dormant: bool = Field(
        default=True, description="Whether parameter noise first resets units that learn nothing."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> "MutationConfig":
        for what in ("layers", "units", "channels"):
            low, high = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if low > high:
                refuse(f"max_{what}", f"be at least min_{what} = {low}", high)
        kinds = ("none", "architecture", "parameters", "activation", "hyperparameters")
        if not any(getattr(self, kind) for kind in kinds):
            refuse("none", "be greater than 0 when all kinds of mutation are 0", self.none)
        return self


class ExploreConfig(Section):
    """How a hyperparameter mutation chooses new values within the spaces."""

    strategy: Literal["perturb", "resample", "pb2"] = Field(
        default="resample",
        description="Grow or shrink; now and then draw anew; or learn what raised fitness (PB2).",
    )
    grow: float = Field(default=1.25, gt=1, le=100, description="Factor of a value that grows.")
    shrink: float = Field(default=0.8, gt=0, lt=1, description="Factor of a value that shrinks.")
    resample: Probability = Field(
        default=0.25, description="Probability that a value is drawn anew (resample)."
    )


class EvolutionConfig(Section):
    """How the population changes from one generation to the next."""

    method: Literal["none", "random_search", "evolution"] = Field(
        default="evolution",
        description="Leave agents as they are, draw them once from the spaces, or evolve them.",
    )
    spaces: SpacesConfig = Field(
        default_factory=default_spaces,
        description="Which hyperparameters evolve, and within which bounds; if given, only these.",
    )
    selection: SelectionConfig = Field(
        default_factory=SelectionConfig, description="Who is replaced by whose child."
    )
    mutation: MutationConfig = Field(
        default_factory=MutationConfig, description="How a child differs from its parent."
    )
    explore: ExploreConfig = Field(
        default_factory=ExploreConfig, description="How hyperparameters are chosen anew."
    )
