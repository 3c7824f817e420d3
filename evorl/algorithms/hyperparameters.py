"""What an algorithm declares: its section of the configuration, and what each agent has of it.

The fields of a class are the keys of `algorithm:` in YAML. Those made by `hyperparameter` are each
agent's own: genomes hold them, `population.agents` and evolution may change them. Everything else
(schema, documentation, the genome's check, the spaces of evolution) follows from them.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic.fields import FieldInfo

from evorl.config import MOST, Section, hyperparameter, marks, option

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Experience = Literal["replay", "rollout", "unrolls"]  # unrolls are rollouts that stay whole
GAMMA = {"kind": "reverse_log", "low": 0.95, "high": 0.999}
TAU = {"kind": "log", "low": 1e-3, "high": 1e-1}
Sends = Literal["gradients", "unrolls", "transitions"]
RATE = {"kind": "log", "low": 1e-4, "high": 1e-2}


class Declaration(Section):
    """The declared side of an algorithm; `Algorithm` adds what it computes."""

    experience: ClassVar[Experience] = "replay"
    sends: ClassVar[Sends | None] = None  # what goes up from actors; None: there are none

    name: str = option("", "The algorithm, or your own as module:Class.")

    @classmethod
    def hyperparameter_fields(cls) -> dict[str, FieldInfo]:
        """The fields that every agent has for itself, in the order in which they are declared."""
        return {
            n: field for n, field in cls.model_fields.items() if "hyperparameter" in marks(field)
        }

    @classmethod
    def default_spaces(cls) -> dict[str, dict[str, Any]]:
        """What evolves, and where, unless evolution.spaces says otherwise."""
        found = {name: marks(field).get("space") for name, field in cls.model_fields.items()}
        return {name: space for name, space in found.items() if space}

    @property
    def hyperparameters(self) -> dict[str, int | float]:
        """The values that agents start from."""
        return {name: getattr(self, name) for name in self.hyperparameter_fields()}

    def minibatches(self, values: Mapping[str, Floats], items: int) -> tuple[Ints, Ints]:
        """Updates that each agent makes of a rollout, and samples of each update, [P] each.

        `items` are the steps that each has collected; of algorithms that learn from unrolls, the
        unrolls.
        """
        raise TypeError(f"{type(self).__name__} does not say how it goes through a rollout")

    def update_rate(self, values: Mapping[str, float], num_envs: int) -> float:
        """Updates per environment step of an agent with these hyperparameters."""
        return 1.0

    @property
    def unused(self) -> frozenset[str]:
        """Hyperparameters that have no effect with the other options: they don't evolve."""
        return frozenset()


class OffPolicy(Declaration):
    """What algorithms that learn from a replay have in common."""

    sends: ClassVar[Sends | None] = "transitions"

    lr: float = hyperparameter(1e-3, "Adam's step size.", gt=0, le=1, space=RATE)
    gamma: float = hyperparameter(0.99, "Discount per environment step.", ge=0, le=1, space=GAMMA)
    tau: float = hyperparameter(
        0.01, "Fraction of a soft target update, per update.", gt=0, le=1, space=TAU
    )
    # No space for the batch size: larger ones are paid in time, and mattered little when measured.
    batch_size: int = hyperparameter(64, "Transitions per update.", ge=1, le=65536)
    learn_step: int = hyperparameter(
        1, "Environment steps per learn step (see replay.counts).", ge=1, le=MOST
    )
    max_grad_norm: float = hyperparameter(
        10.0, "Largest norm of each network's gradient; 0 turns clipping off.", ge=0
    )
    n_step: int = option(1, "Environment steps of reward before the bootstrap.", ge=1, le=32)
    updates: int = option(1, "Updates at each learn step (see learn_step).", ge=1, le=64)
    learning_starts: int = option(1000, "Environment steps before the first update.", ge=0, le=MOST)

    def update_rate(self, values: Mapping[str, float], num_envs: int) -> float:
        """So many for each learn step."""
        return self.updates / values["learn_step"]


class OnPolicy(Declaration):
    """What algorithms that learn from rollouts have in common."""

    experience: ClassVar[Experience] = "rollout"

    lr: float = hyperparameter(
        3e-4, "Adam's step size.", gt=0, le=1, space={"kind": "log", "low": 1e-5, "high": 1e-2}
    )
    gamma: float = hyperparameter(0.99, "Discount per environment step.", ge=0, le=1, space=GAMMA)
    gae_lambda: float = hyperparameter(
        0.95,
        "GAE lambda: 0 is the one-step TD error, 1 the full n-step return.",
        ge=0,
        le=1,
        space={"kind": "reverse_log", "low": 0.8, "high": 0.99},
    )
    max_grad_norm: float = hyperparameter(
        0.5, "Largest norm of an agent's gradient; 0 turns clipping off.", ge=0
    )
    rollout_steps: int = option(256, "Steps of each environment between updates.", ge=1, le=65536)

    def update_rate(self, values: Mapping[str, float], num_envs: int) -> float:
        """So many for each rollout."""
        items = self.rollout_steps * num_envs
        updates, _ = self.minibatches({n: np.array([v]) for n, v in values.items()}, items)
        return float(updates[0]) / items
