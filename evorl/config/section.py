"""The base of all sections, and the numbers that each agent has for itself."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from evorl.config import ranges

HYPERPARAMETER = "hyperparameter"  # marks a field of which every agent has its own value


class Section(BaseModel):
    """A part of the configuration: immutable, no unknown keys, no conversions."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


def hyperparameter(
    default: float, description: str, *, space: dict[str, Any] | None = None, **limits: Any
) -> Any:
    """A field that every agent has for itself: genomes hold it, evolution may change it.

    `space` is where it evolves unless evolution.spaces says otherwise, such as
    {"kind": "log", "low": 1e-4, "high": 1e-2}; None: it stays as it is.
    """
    extra: dict[str, Any] = {HYPERPARAMETER: True} | ({"space": space} if space else {})
    return Field(default=default, description=description, json_schema_extra=extra, **limits)


class Hyperparameters(Section):
    """The numbers that every agent has for itself, and that evolution may change."""

    lr: ranges.LearningRate = 1e-3
    gamma: ranges.Gamma = 0.99
    tau: ranges.Tau = 0.01
    batch_size: ranges.BatchSize = 64
    learn_step: ranges.LearnStep = 1
    max_grad_norm: ranges.MaxGradNorm = 10.0
    target_period: ranges.TargetPeriod = 1000
    epsilon_start: ranges.EpsilonStart = 1.0
    epsilon_end: ranges.EpsilonEnd = 0.05
    epsilon_steps: ranges.EpsilonSteps = 10_000
