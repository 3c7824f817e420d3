"""What the stages of a training run share.

Legend: P agents.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evorl.pipeline.timer import Timer


@dataclass
class Context:
    """The state of a run that stages hand on. An iteration is one step of every environment."""

    agents: int
    iteration: int = 0
    generation: int = 0
    finished: bool = False
    evaluation_steps: int = 0  # environment steps spent on scoring
    episodes: int = 0  # training episodes that ended by themselves
    timer: Timer = field(default_factory=Timer)

    def __post_init__(self) -> None:
        self.agent_steps: npt.NDArray[np.int64] = np.zeros(self.agents, dtype=np.int64)
        self.new_steps = self.agent_steps.copy()  # of the current iteration
        self.agent_updates = self.agent_steps.copy()
        self.loss: npt.NDArray[np.float64] = np.full(self.agents, np.nan)  # latest of each agent
        self.epsilon = np.ones(self.agents)
        self.fitness: npt.NDArray[np.float64] = np.full(self.agents, np.nan)

    @property
    def env_steps(self) -> int:
        """Training steps of all agents and environments together."""
        return int(self.agent_steps.sum())

    @property
    def updates(self) -> int:
        """Updates of all agents together."""
        return int(self.agent_updates.sum())
