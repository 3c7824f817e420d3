"""The base of all sections, and the numbers that each agent has for itself."""

from pydantic import BaseModel, ConfigDict

from evorl.config import ranges


class Section(BaseModel):
    """A part of the configuration: immutable, no unknown keys, no conversions."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


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
