"""What is inherited: an agent's architecture, hyperparameters and ancestry, apart from weights."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import TypeAdapter

Activation = Literal["relu", "elu", "gelu", "tanh", "silu"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)  # all give f(0) = 0: padding stays 0


@dataclass(frozen=True)
class Architecture:
    """The shape of one network."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (when read from a file)

    hidden: tuple[int, ...] = (64, 64)
    activation: Activation = "relu"
    layer_norm: bool = False
    dueling: bool = False
    # gated[k]: layer k adds alpha * act(...) to its input instead of replacing it
    gated: tuple[bool, ...] = ()
    # convolutions before the hidden layers, for image observations only
    channels: tuple[int, ...] = ()
    kernels: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ValueError("hidden needs one layer or more")
        if min((*self.hidden, *self.channels, *self.kernels, *self.strides)) < 1:
            raise ValueError(f"hidden, channels, kernels and strides must be 1 or more: {self}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {self.activation!r}; known: {ACTIVATIONS}")
        if not len(self.channels) == len(self.kernels) == len(self.strides):
            raise ValueError("channels, kernels and strides must be equally many")
        if not self.gated:
            object.__setattr__(self, "gated", (False,) * len(self.hidden))
        if len(self.gated) != len(self.hidden) or self.gated[0]:
            raise ValueError("gated needs one flag per hidden layer, and False for the first")
        for k, gated in enumerate(self.gated):
            if gated and self.hidden[k] != self.hidden[k - 1]:
                raise ValueError(f"gated layer {k} must be as wide as the layer before it")

    @property
    def depth(self) -> int:
        """The number of hidden layers."""
        return len(self.hidden)


@dataclass(frozen=True)
class Genome:
    """One agent: who it is, and everything about it that is not a weight."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (when read from a file)

    id: int  # never given twice in a run
    architectures: Mapping[str, Architecture]  # by network, as the algorithm names them
    hyperparameters: Mapping[str, int | float]  # whole numbers stay whole in files
    parent: int | None = None  # id of the agent that this one is a copy of, apart from its mutation
    born: int = 0  # generation in which it first trains
    mutation: str = "initial"  # what made it differ from its parent

    def to_json(self) -> dict[str, Any]:
        """As plain values for a JSON file."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Genome":
        """Back from to_json's values; ValueError if they are no genome."""
        return _READER.validate_json(json.dumps(values), strict=True)


_READER = TypeAdapter(Genome)
