"""What the stages of a training run share.

Legend: P agents, E episodes of an evaluation.
"""

import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.pipeline.timer import Timer

# What belongs to an agent, and what all ranks together have counted.
ARRAYS = ("agent_steps", "agent_updates", "loss", "exploration", "returns", "fitness")
PLAN = ("generation", "begins", "ends", "last", "finished", "latest_evaluation")
COUNTS = ("env_steps", "evaluation_steps", "updates", "episodes", "failures")


@dataclass
class Context:
    """The state of a run that stages hand on. An iteration is one step of every environment.

    Counts are those of all ranks at the generation's beginning, and this rank's own since then.
    """

    agents: int
    iteration: int = 0
    generation: int = 0
    begins: int = 0  # the iteration with which the generation that was planned last begins
    ends: int = 0  # the iteration before which it is over
    last: bool = False  # this generation is
    finished: bool = False
    env_steps: int = 0  # training steps of all agents together, of those replaced since, too
    evaluation_steps: int = 0  # environment steps spent on scoring
    latest_evaluation: int = 0  # of these, in the latest generation
    updates: int = 0  # of all agents together
    episodes: int = 0  # training episodes that ended by themselves
    failures: int = 0  # exceptions of environments, which were rebuilt
    timer: Timer = field(default_factory=Timer)
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        # Each agent's own steps, its ancestors' included: what its exploration goes by.
        self.agent_steps: npt.NDArray[np.int64] = np.zeros(self.agents, dtype=np.int64)
        self.new_steps = self.agent_steps.copy()  # of the current iteration
        self.agent_updates = self.agent_steps.copy()  # likewise with those of its ancestors
        self.loss: npt.NDArray[np.float64] = np.full(self.agents, np.nan)  # latest of each agent
        self.exploration = np.ones(self.agents)
        self.returns: npt.NDArray[np.float64] = np.full((self.agents, 1), np.nan)  # [P, E] latest
        self.fitness: npt.NDArray[np.float64] = np.full(self.agents, np.nan)  # their means

    def tensors(self) -> dict[str, Tensor]:
        """What belongs to the agents, for a message or a file."""
        return {f"context.{name}": torch.from_numpy(getattr(self, name)) for name in ARRAYS}

    def numbers(self) -> dict[str, int]:
        """What all ranks have in common."""
        return {name: getattr(self, name) for name in (*COUNTS, *PLAN)}

    def take(self, numbers: dict[str, int], tensors: dict[str, Tensor], own: slice) -> None:
        """Become what `numbers` and `tensors` once were, for some of the agents."""
        for name in (*COUNTS, *PLAN):
            setattr(self, name, numbers[name])
        for name in ARRAYS:
            setattr(self, name, tensors[f"context.{name}"].numpy()[own].copy())
        self.agents = len(self.agent_steps)
        self.new_steps = np.zeros_like(self.agent_steps)

    def inherit(self, parents: npt.NDArray[np.int64]) -> None:
        """Agent i is from now on a child of agent parents[i], or the same where parents[i] = i."""
        self.agent_steps = self.agent_steps[parents]
        self.agent_updates = self.agent_updates[parents]
        self.loss = self.loss[parents]
