"""Everybody: all agents of all ranks, brought together on the main rank between two generations.

What selection, mutation, the hall of fame, tracking and checkpoints see: nothing here is split over
ranks. In a run of one process it is that process's own agents.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from evorl.algorithms.base import Algorithm, Trained
from evorl.genome import Genome
from evorl.networks.layout import Parameters
from evorl.population.group import AgentState
from evorl.runs.checkpoint import digest

PARTS = AgentState._fields[:4]  # those that are weights


class Everybody:
    """The agents of a run: genome, weights and optimizer of each, and who is alive."""

    def __init__(
        self, genomes: Sequence[Genome], networks: Mapping[str, Trained], algorithm: Algorithm
    ) -> None:
        self.networks, self.algorithm = dict(networks), algorithm
        self.specs = {name: own.spec for name, own in networks.items()}
        self.genomes = list(genomes)
        self.states: list[AgentState] = []  # empty while they train
        self.alive: npt.NDArray[np.bool_] = np.ones(len(self.genomes), dtype=bool)
        # agent i is a child of agent parents[i] of the generation before, or itself
        self.parents: npt.NDArray[np.int64] = np.arange(len(self.genomes))

    @property
    def size(self) -> int:
        """The number of agents P."""
        return len(self.genomes)

    def meet(
        self, genomes: Sequence[Genome], states: Sequence[AgentState], alive: Sequence[bool]
    ) -> None:
        """At a generation's end."""
        self.genomes, self.states = list(genomes), list(states)
        self.alive = np.array(alive, dtype=bool)
        self.parents = np.arange(len(self.genomes))

    def state(self, agent: int) -> AgentState:
        """One agent's weights and optimizer."""
        return self.states[agent]

    def replace(
        self,
        genomes: Sequence[Genome],
        states: Sequence[AgentState],
        parents: npt.NDArray[np.int64],
    ) -> None:
        """The next generation: all of them are alive."""
        self.meet(genomes, states, [True] * len(genomes))
        self.parents = parents.copy()


def pack(states: Sequence[AgentState], first: int = 0) -> dict[str, Tensor]:
    """Agents' weights and moments by name, such as `7.online.hidden0.weight`."""
    return {
        f"{first + i}.{part}.{name}": value.detach().cpu().contiguous()
        for i, state in enumerate(states)
        for part in PARTS
        for name, value in getattr(state, part).items()
    }


def unpack(tensors: Mapping[str, Tensor], steps: Mapping[int, int]) -> dict[int, AgentState]:
    """Back from `pack`, by number; `steps` are the updates that each agent has made."""
    found: dict[int, dict[str, Parameters]] = {
        agent: {part: {} for part in PARTS} for agent in steps
    }
    for name, value in tensors.items():
        agent, part, segment = name.split(".", 2)
        if int(agent) in found:
            found[int(agent)][part][segment] = value
    return {agent: AgentState(**parts, steps=steps[agent]) for agent, parts in found.items()}


def digests(states: Sequence[AgentState], first: int = 0) -> dict[str, str]:
    """A hash of every tensor, by the names of `pack`."""
    return {name: digest({"": value}) for name, value in pack(states, first).items()}
