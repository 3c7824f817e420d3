"""Who descends from whom, and what mutations brought: lineage.jsonl, with births and fitness.

A birth's generation is the first in which the agent trains, 0 for those that the run starts with. A
fitness is measured at its generation's end. A child of generation g descends from its parent as
that was at the end of generation g - 1, or of an earlier one if that was the best of the run.
"""

import math
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from evorl.errors import RunError, one_line
from evorl.evolution.describe import describe_change
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
class FitnessLine:
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


_LINE: TypeAdapter[Birth | FitnessLine] = TypeAdapter(
    Annotated[Birth | FitnessLine, Field(discriminator="event")]
)


def birth(
    genome: Genome, place: int, parent: Genome | None, copied: int | None = None
) -> dict[str, Any]:
    """The line of a new agent; those that the run starts with have no parent.

    Others are copies of their parent as it was at the end of generation `copied`.
    """
    change = "initial" if parent is None else describe_change(parent, genome)
    return asdict(Birth("birth", genome.born, place, genome, change, copied))


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
    known = (value if math.isfinite(value) else None for value in (fitness, error))
    return asdict(FitnessLine("fitness", generation, env_steps, own_steps, place, id, *known))


class Ancestor(NamedTuple):
    """One agent of a line of descent, from its birth until the next one was born."""

    genome: Genome
    change: str
    generations: range  # in which it trained as part of this line
    fitness: list[FitnessLine]  # at the end of each of them
    own_steps: int  # training steps of the line when it was born

    @property
    def end_steps(self) -> int:
        """Training steps of the line at the end of the last of these generations."""
        return self.fitness[-1].own_steps if self.fitness else self.own_steps


class Effect(NamedTuple):
    """What a mutation brought: a child's first fitness beside its parent's when it left that."""

    parent: float | None  # fitness when the child left it; None: it has none, or it was dead
    first: float | None  # at the end of the child's first generation; None: not known, or dead
    stayed: float | None  # fitness of the parent at that same time; None: it was gone, or dead

    @property
    def change(self) -> float | None:
        """By how much the child's first fitness differs; it includes a generation of training."""
        return None if self.parent is None or self.first is None else self.first - self.parent


@dataclass(frozen=True)
class Lineage:
    """All births and evaluations of a run."""

    births: dict[int, Birth] = field(default_factory=dict)  # by id
    fitness: dict[int, list[FitnessLine]] = field(default_factory=dict)  # by id, in order

    def add(self, line: Birth | FitnessLine) -> None:
        """Take a line in; ValueError if it is of somebody unknown, or of a second birth."""
        if isinstance(line, FitnessLine):
            if line.id not in self.births:
                raise ValueError(f"agent {line.id} has a fitness, but was never born")
            self.fitness[line.id].append(line)
            return
        id, parent = line.genome.id, line.genome.parent
        if id in self.births:
            raise ValueError(f"agent {id} is born twice")
        if parent is not None and parent not in self.births:
            raise ValueError(f"agent {id} has a parent, {parent}, that is not there")
        self.births[id], self.fitness[id] = line, []

    def ancestry(self, id: int, until: int | None = None) -> list[Ancestor]:
        """The line of descent of an agent, from its first ancestor to itself; KeyError if unknown.

        `until` is the last generation that counts, by default the agent's last evaluation.
        """
        line = [self.births[id]]
        while (parent := line[0].genome.parent) is not None:
            line.insert(0, self.births[parent])
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

    def effect(self, child: Birth) -> Effect:
        """How good a child was at first, and its parent when the child left it."""
        parent = child.genome.parent
        return Effect(
            self._fitness_at(parent, left(child)),
            self._fitness_at(child.genome.id, child.generation),
            self._fitness_at(parent, child.generation),
        )

    def _fitness_at(self, id: int | None, generation: int) -> float | None:
        own = [] if id is None else self.fitness[id]
        return next((line.fitness for line in own if line.generation == generation), None)


def left(child: Birth) -> int:
    """The generation at whose end a child left its parent."""
    return child.generation - 1 if child.copied is None else child.copied


def parse_line(line: bytes) -> Birth | FitnessLine:
    """One line of lineage.jsonl; ValueError if it is none."""
    return _LINE.validate_json(line, strict=True)


def read_lineage(path: str | Path) -> Lineage:
    """Read lineage.jsonl; a last line that is cut off, as while a run is writing, is left out."""
    lineage, where = Lineage(), f"{path}"
    try:
        for number, line in enumerate(Path(path).read_bytes().split(b"\n")[:-1], 1):
            where = f"{path}: line {number}"
            lineage.add(parse_line(line))
    except OSError as error:
        reason = f"cannot be read: {(error.strerror or str(error)).lower()}"
    except ValidationError as error:
        reason = f"not a birth or a fitness of this version: {first_problem(error, skip=1)}"
    except ValueError as error:
        reason = str(error)
    else:
        if lineage.births:
            return lineage
        reason = "has no births, so it is not the lineage of a run"
    raise RunError(one_line(f"{where}: {reason}"))


def first_problem(error: ValidationError, skip: int = 0) -> str:
    """Where the first thing is that is wrong with some data, and what it is."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][skip:])
    return f"{where}: {first['msg']}" if where else first["msg"]
