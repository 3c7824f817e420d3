"""What a checkpoint must say before any of it is used: types, bounds, and what fits the run.

A checkpoint may be somebody else's: its checksum proves that it is whole, not who made it.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from evorl.algorithms import Algorithm
from evorl.config import Section
from evorl.evolution import first_problem
from evorl.genome import Genome
from evorl.networks import Spec, row_shapes
from evorl.pipeline.snapshot import ARRAYS, Snapshot
from evorl.population import PARTS, AgentState

MOST = 10**15  # of anything that is counted
Count = Annotated[int, Field(ge=0, le=MOST)]


class AgentFacts(Section):
    """An agent, without its weights."""

    genome: Genome
    alive: bool
    updates: Count


class Counts(Section):
    """What is counted and planned: see `Progress`."""

    env_steps: Count
    evaluation_steps: Count
    updates: Count
    episodes: Count
    failures: Count
    generation: Count
    begins: Count
    ends: Count
    last: bool
    finished: bool
    places: Annotated[int, Field(ge=1, le=MOST)]
    latest_evaluation: Count


class MeshFacts(Section):
    """The ranks that wrote it."""

    population: Annotated[int, Field(ge=1, le=MOST)]
    data: Annotated[int, Field(ge=1, le=MOST)]


class ChampionFacts(Section):
    """What is known of an agent when it became the champion."""

    env: str
    place: Count
    fitness: float
    generation: Count
    env_steps: Count
    own_steps: Count


class ChampionState(Section):
    """The champion, without its weights and returns."""

    genome: Genome
    state: Count  # its updates
    generation: Count
    own_steps: Count
    facts: ChampionFacts


class EvolveState(Section):
    """What evolution remembers, without returns."""

    next_id: Count
    children: tuple[Annotated[int, Field(ge=-1, le=MOST)], Count]
    explore: list[list[float]]


class BudgetState(Section):
    """The highest score so far, and after which generation."""

    peak: float | None
    peaked: Count


class SavedState(Section):
    """A checkpoint's JSON: `Snapshot.to_json`, the settings of Save, and the states of stages."""

    agents: Annotated[list[AgentFacts], Field(min_length=1)]
    context: Counts
    evolved: bool
    best: float | None
    best_episodes: Count = 0
    budget: dict[str, Any]
    compiled: bool | Literal["auto"]
    mesh: MeshFacts
    precision: str
    lag: Literal[0, 1] = 0
    actors: Count = 0
    stages: dict[str, dict[str, Any]]
    lines: dict[str, Count | str]


def check_state(state: Mapping[str, Any]) -> SavedState:
    """ValueError unless it is the state of a checkpoint."""
    try:
        saved: SavedState = _read(SavedState, state)
        kinds = {"champion": ChampionState, "evolve": EvolveState, "budget": BudgetState}
        for name, kind in kinds.items():
            if values := saved.stages.get(name):  # there is no champion at first
                _read(kind, values)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    if lacking := {"champion", "budget"} - saved.stages.keys():
        raise ValueError(f"stages: must have {min(lacking)}")
    if any(type(saved.lines.get(name)) is not int for name in ("metrics.jsonl", "lineage.jsonl")):
        raise ValueError("lines: must say how many metrics.jsonl and lineage.jsonl have")
    return saved


def _read(kind: Any, values: Any) -> Any:
    """As JSON: there a list may be a tuple."""
    return TypeAdapter(kind).validate_json(json.dumps(values), strict=True)


def check_snapshot(
    snapshot: Snapshot, generation: int, agents: int, specs: Mapping[str, Spec], own: Algorithm
) -> None:
    """ValueError unless it is one of a run of at most so many `agents` with these networks."""
    if snapshot.generation != generation:
        raise ValueError(f"its agents are of generation {snapshot.generation}")
    if not snapshot.places <= snapshot.agents <= agents:
        raise ValueError(f"it has {snapshot.agents} agents, and places for {snapshot.places}")
    if len({genome.id for genome in snapshot.genomes}) < snapshot.agents:
        raise ValueError("two agents have the same id")
    for genome, state in zip(snapshot.genomes, snapshot.states, strict=True):
        check_agent(genome, state, specs, own)
    for name in ARRAYS:
        array, dimensions = getattr(snapshot, name), 1 + (name == "returns")
        kind = np.int64 if name == "agent_steps" else np.float64
        if array.dtype != kind or array.ndim != dimensions or len(array) != snapshot.agents:
            raise ValueError(f"{name} of {snapshot.agents} agents is {array.dtype} {array.shape}")
    if not ((snapshot.agent_steps >= 0) & (snapshot.agent_steps <= MOST)).all():
        raise ValueError("an agent's own steps are no number of steps")


def check_agent(
    genome: Genome, state: AgentState, specs: Mapping[str, Spec], own: Algorithm
) -> None:
    """ValueError unless the algorithm can train it, and its weights fit its architecture."""
    if min(genome.id, genome.born, genome.parent or 0) < 0:
        raise ValueError(f"agent {genome.id}: ids and generations are 0 or more")
    values = own.model_dump() | dict(genome.hyperparameters)
    if genome.hyperparameters.keys() != own.hyperparameters.keys():
        raise ValueError(f"agent {genome.id}: it has other hyperparameters than {own.name}")
    try:
        type(own).model_validate(values)
    except ValidationError as error:
        raise ValueError(f"agent {genome.id}: {first_problem(error)}") from None
    networks = {name for name in genome.architectures if name in specs}
    if networks != genome.architectures.keys():
        raise ValueError(f"agent {genome.id}: it has other networks")
    expected = row_shapes(specs, genome.architectures)
    for part in PARTS:
        weights = getattr(state, part)
        if {name: tuple(value.shape) for name, value in weights.items()} != expected:
            raise ValueError(f"agent {genome.id}: {part} does not fit its architecture")
        if not all(value.is_floating_point() for value in weights.values()):
            raise ValueError(f"agent {genome.id}: {part} has other numbers than weights")


def check_tensor(tensors: Mapping[str, Tensor], name: str, *shape: int | None) -> Tensor:
    """A tensor of float64 with this shape, where None is any size; ValueError if it is not that."""
    found = tensors.get(name)
    fits = found is not None and len(found.shape) == len(shape)
    if found is None or found.dtype != torch.float64 or not fits:
        raise ValueError(f"{name} is missing, or not what it was")
    if any(size not in (None, own) for size, own in zip(shape, found.shape, strict=True)):
        raise ValueError(f"{name} has shape {tuple(found.shape)}")
    return found
