"""Who descends from whom: lineage.jsonl, one line a birth and one line a fitness.

A birth's generation is the first in which the agent trains, 0 for those that the run starts with. A
fitness is measured at its generation's end. A child of generation g descends from its parent as
that was at the end of generation g - 1, or of an earlier one if that was the best of the run.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from evorl.errors import RunError, one_line
from evorl.evolution.change import describe_change
from evorl.genome import Genome


@dataclass(frozen=True)
class Birth:
    """An agent that is new in a generation."""

    __pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}  # noqa: RUF012

    event: Literal["birth"]
    generation: int
    place: int  # of the agent in the population
    genome: Genome
    change: str  # against its parent, in words
    copied: int | None = None  # the generation at whose end it left its parent


@dataclass(frozen=True)
class Fitness:
    """How good an agent was at a generation's end."""

    __pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}  # noqa: RUF012

    event: Literal["fitness"]
    generation: int
    env_steps: int  # training steps of all agents so far
    own_steps: int  # training steps of this agent and its ancestors so far
    place: int
    id: int
    fitness: float | None  # None: the agent is dead
    error: float | None  # standard error of the mean over the episodes; None if it is not known


_LINE: TypeAdapter[Birth | Fitness] = TypeAdapter(
    Annotated[Birth | Fitness, Field(discriminator="event")]
)


def birth(
    genome: Genome, place: int, parent: Genome | None, copied: int | None = None
) -> dict[str, Any]:
    """The line of a new agent; those that the run starts with have no parent.

    Others are copies of their parent as it was at the end of generation `copied`.
    """
    change = "initial" if parent is None else describe_change(parent, genome)
    return {
        "event": "birth",
        "generation": genome.born,
        "place": place,
        "genome": genome.to_json(),
        "change": change,
        "copied": copied,
    }


def fitness_line(
    id: int,
    place: int,
    *,
    generation: int,
    env_steps: int,
    own_steps: int,
    fitness: float,
    error: float,
) -> dict[str, Any]:
    """The line of an agent's evaluation; what is not finite is null."""
    return {
        "event": "fitness",
        "generation": generation,
        "env_steps": env_steps,
        "own_steps": own_steps,
        "place": place,
        "id": id,
        "fitness": fitness if math.isfinite(fitness) else None,
        "error": error if math.isfinite(error) else None,
    }


class Ancestor(NamedTuple):
    """One agent of a line of descent, from its birth until the next one was born."""

    genome: Genome
    change: str
    generations: range  # in which it trained as part of this line
    fitness: list[Fitness]  # at the end of each of them
    own_steps: int  # training steps of the line when it was born

    @property
    def end_steps(self) -> int:
        """Training steps of the line at the end of the last of these generations."""
        return self.fitness[-1].own_steps if self.fitness else self.own_steps


@dataclass(frozen=True)
class Lineage:
    """All births and evaluations of a run."""

    births: dict[int, Birth] = field(default_factory=dict)  # by id
    fitness: dict[int, list[Fitness]] = field(default_factory=dict)  # by id, in order

    def add(self, line: Birth | Fitness) -> None:
        """Take a line in; ValueError if it contradicts those before it."""
        if isinstance(line, Fitness):
            self._add_fitness(line)
            return
        genome = line.genome
        if genome.id in self.births:
            raise ValueError(f"agent {genome.id} is born twice")
        if genome.parent is not None and genome.parent not in self.births:
            raise ValueError(f"agent {genome.id} has a parent, {genome.parent}, that is not there")
        if not all(math.isfinite(value) for value in genome.hyperparameters.values()):
            raise ValueError(f"agent {genome.id} has a hyperparameter that is not finite")
        if genome.born != line.generation:
            raise ValueError(f"agent {genome.id} is born in two generations")
        if genome.parent is not None and genome.born <= self.births[genome.parent].generation:
            raise ValueError(f"agent {genome.id} is not younger than its parent, {genome.parent}")
        if genome.parent is not None and not (
            self.births[genome.parent].generation <= left(line) < line.generation
        ):
            raise ValueError(f"agent {genome.id} left its parent at another time than it lived")
        self.births[genome.id] = line
        self.fitness[genome.id] = []

    def _add_fitness(self, line: Fitness) -> None:
        if line.id not in self.births:
            raise ValueError(f"agent {line.id} has a fitness, but was never born")
        before = self.fitness[line.id]
        first = before[-1].generation + 1 if before else self.births[line.id].generation
        if line.generation < first:
            raise ValueError(f"the fitness of agent {line.id} goes back in time")
        before.append(line)

    def ancestry(self, id: int, until: int | None = None) -> list[Ancestor]:
        """The line of descent of an agent, from its first ancestor to itself; KeyError if unknown.

        `until` is the last generation that counts, by default the agent's last evaluation.
        """
        line = list(self._upwards(id))[::-1]
        ends = [left(after) + 1 for _, after in pairwise(line)]
        if until is None:
            evaluated = self.fitness[id]
            until = evaluated[-1].generation if evaluated else line[-1].generation - 1
        found: list[Ancestor] = []
        for one, end in zip(line, [*ends, until + 1], strict=True):
            own = found[-1].end_steps if found else 0
            lived = range(one.generation, end)
            fitness = [line for line in self.fitness[one.genome.id] if line.generation in lived]
            found.append(Ancestor(one.genome, one.change, lived, fitness, own))
        return found

    def _upwards(self, id: int | None) -> Iterator[Birth]:
        while id is not None:
            yield self.births[id]
            id = self.births[id].genome.parent


def left(child: Birth) -> int:
    """The generation at whose end a child left its parent."""
    return child.generation - 1 if child.copied is None else child.copied


def parse_line(line: bytes) -> Birth | Fitness:
    """One line of lineage.jsonl; ValueError if it is none."""
    return _LINE.validate_json(line, strict=True)


def read_lineage(path: str | Path) -> Lineage:
    """Read lineage.jsonl; a last line that is cut off, as while a run is writing, is left out."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RunError(one_line(f"{path}: cannot be read: {reason}")) from None
    lineage = Lineage()
    for number, line in enumerate(text.split(b"\n")[:-1], 1):
        try:
            lineage.add(parse_line(line))
        except ValueError as error:  # pydantic's is one, too
            raise RunError(one_line(f"{path}: line {number}: {_reason(error)}")) from None
    if not lineage.births:
        raise RunError(one_line(f"{path}: has no births, so it is not the lineage of a run"))
    return lineage


def _reason(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    what = f"{where}: {first['msg']}" if where else first["msg"]
    return f"not a birth or a fitness of this version: {what}"
