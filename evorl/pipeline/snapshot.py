"""Snapshot: all that a run is between two generations, as JSON and named tensors.

Gather makes it from the ranks, evolution changes it to the next, Save writes it, Broadcast sends
it, a resumed run reads it. In one process it is handed on as it is, and serialised by Save only.

Legend: P agents, E episodes of an evaluation.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load
from torch import Tensor

from evorl.genome import Genome
from evorl.networks import Parameters
from evorl.population import PARTS, AgentState
from evorl.runs import Checkpoint, digest, serialise

# What belongs to an agent, what the main rank plans, and what ranks count.
ARRAYS = ("agent_steps", "loss", "exploration", "returns", "fitness")
PLAN = ("generation", "begins", "ends", "last", "finished", "places", "latest_evaluation")
COUNTS = ("env_steps", "evaluation_steps", "updates", "episodes", "failures")
POPULATION, STAGE_STATES = "population", "progress"  # files of a checkpoint
FACTS = "facts"  # JSON, as a tensor of bytes

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass
class Progress:
    """How far agents have come: those of one rank (TrainingContext), or all of them (Snapshot)."""

    agents: int
    generation: int = 0  # generations completed
    begins: int = 0  # the iteration with which the next generation, or this one, begins
    ends: int = 0  # the iteration before which it is over
    last: bool = False  # it is the last one
    finished: bool = False
    places: int = 0  # agents that the next generation has room for
    env_steps: int = 0  # training steps of all agents together, of those replaced since, too
    evaluation_steps: int = 0  # environment steps spent on scoring
    latest_evaluation: int = 0  # of these, in the latest generation
    updates: int = 0  # of all agents together
    episodes: int = 0  # training episodes that ended by themselves
    failures: int = 0  # exceptions of environments, which were rebuilt

    def __post_init__(self) -> None:
        self.places = self.places or self.agents
        # Each agent's own steps, its ancestors' included: what its exploration goes by.
        self.agent_steps: npt.NDArray[np.int64] = np.zeros(self.agents, dtype=np.int64)
        self.loss: npt.NDArray[np.float64] = np.full(self.agents, np.nan)  # latest of each agent
        self.exploration = np.ones(self.agents)
        self.returns: npt.NDArray[np.float64] = np.full((self.agents, 1), np.nan)  # [P, E] latest
        self.fitness: npt.NDArray[np.float64] = np.full(self.agents, np.nan)  # by these

    def take(self, other: "Progress", own: slice = slice(None)) -> None:
        """Become what another is, for some of its agents."""
        for name in (*COUNTS, *PLAN):
            setattr(self, name, getattr(other, name))
        for name in ARRAYS:
            setattr(self, name, getattr(other, name)[own].copy())


class Snapshot(Progress):
    """All agents of all ranks, what they have counted, and what the next generation is to be."""

    def __init__(
        self, genomes: Sequence[Genome], states: Sequence[AgentState], alive: Sequence[bool] | Bools
    ) -> None:
        super().__init__(len(genomes))
        self.genomes, self.states = list(genomes), list(states)
        self.alive: Bools = np.array(alive, dtype=bool)
        self.best = -np.inf  # score of the best agent ever seen
        self.best_episodes = 0  # over as many of the further ones
        self.evolved = False  # whether selection has followed the latest evaluation
        # What only the end of this generation knows; a resumed run begins after that.
        self.kept: Ints = np.arange(self.agents)  # which of those that trained are still there
        self.parents: Ints = np.arange(self.agents)  # whose child each agent is, or itself
        self.births: list[dict[str, Any]] = []  # as lines of the lineage
        self.saved = False  # in a checkpoint

    @property
    def ended(self) -> int:
        """The generation at whose end this is."""
        return self.generation - 1

    def keep(self, agents: Ints) -> None:
        """Only these are left, in this order."""
        self.genomes = [self.genomes[agent] for agent in agents]
        self.states = [self.states[agent] for agent in agents]
        for name in (*ARRAYS, "alive"):
            setattr(self, name, getattr(self, name)[agents])
        self.agents, self.kept, self.parents = len(agents), agents, np.arange(len(agents))

    def to_json(self) -> dict[str, Any]:
        """All but the tensors; nothing in it depends on time, host or process."""
        agents = [
            {"genome": genome.to_json(), "alive": bool(alive), "updates": state.updates}
            for genome, alive, state in zip(self.genomes, self.alive, self.states, strict=True)
        ]
        best = self.best if np.isfinite(self.best) else None
        numbers = {name: getattr(self, name) for name in (*COUNTS, *PLAN)}
        score = {"best": best, "best_episodes": self.best_episodes}
        return {"agents": agents, "context": numbers, "evolved": self.evolved, **score}

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments by name, such as `7.online.q.hidden0.weight`, and the arrays."""
        arrays = {f"context.{name}": torch.from_numpy(getattr(self, name)) for name in ARRAYS}
        return arrays | pack(self.states)

    @classmethod
    def unpacked(cls, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "Snapshot":
        """Back from `to_json` and `tensors`."""
        agents = values["agents"]
        states = unpack(tensors, [agent["updates"] for agent in agents])
        genomes = [Genome.from_json(agent["genome"]) for agent in agents]
        found = cls(genomes, states, [agent["alive"] for agent in agents])
        for name, value in values["context"].items():
            setattr(found, name, value)
        for name in ARRAYS:
            setattr(found, name, tensors[f"context.{name}"].numpy().copy())
        found.evolved = values["evolved"]
        found.best = -np.inf if values["best"] is None else values["best"]
        found.best_episodes = values.get("best_episodes", 0)  # older ones have none
        return found

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> "Snapshot":
        """The snapshot that a checkpoint holds; its file's hash has proved it."""
        return cls.unpacked(checkpoint.state, checkpoint.load(POPULATION))

    def to_bytes(self, weights: bool = True) -> bytes:
        """All of it, or all but the weights and moments, for another rank."""
        tensors = {k: v for k, v in self.tensors().items() if weights or not k[0].isdigit()}
        return to_message(self.to_json(), tensors)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Snapshot":
        """Back from `to_bytes`."""
        return cls.unpacked(*from_message(data))


def to_message(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Plain values and tensors, for another rank."""
    said = torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)
    return serialise({**tensors, FACTS: said})


def from_message(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Back from `to_message`."""
    tensors = load(data)
    return json.loads(tensors.pop(FACTS).numpy().tobytes()), tensors


def pack(states: Sequence[AgentState]) -> dict[str, Tensor]:
    """Agents' weights and moments by name, on the CPU."""
    return {
        f"{i}.{part}.{name}": value.detach().cpu().contiguous()
        for i, state in enumerate(states)
        for part in PARTS
        for name, value in getattr(state, part).items()
    }


def unpack(tensors: Mapping[str, Tensor], updates: Sequence[int]) -> list[AgentState]:
    """Back from `pack`; `updates` are those that each agent has made."""
    found: list[dict[str, Parameters]] = [{part: {} for part in PARTS} for _ in updates]
    for name, value in tensors.items():
        agent, _, rest = name.partition(".")
        if agent.isdigit():
            part, _, segment = rest.partition(".")
            found[int(agent)][part][segment] = value
    return [AgentState(**parts, updates=own) for parts, own in zip(found, updates, strict=True)]


def digests(states: Sequence[AgentState]) -> list[str]:
    """A hash of all tensors of each agent: what a rank proves that it has."""
    return [digest(pack([state])) for state in states]
