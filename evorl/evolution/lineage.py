"""Who descends from whom, and what mutations brought: lineage.jsonl, with births and fitness.

A birth's generation is the first in which the agent trains, 0 for those that the run starts with. A
fitness is measured at its generation's end. A child of generation g descends from its parent as
that was at the end of generation g - 1, or of an earlier one if that was the best of the run.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from evorl.errors import RunError
from evorl.genome import Architecture, Genome

DIGITS = 3  # significant ones of a number, or as many as it takes to tell two numbers apart
EXACT = 17  # significant digits that tell any two floats apart
STRICT: ConfigDict = {"extra": "forbid", "allow_inf_nan": False}
NOISE = "parameters"  # the mutation that changes weights only


@dataclass(frozen=True)
class Birth:
    """An agent that is new in a generation."""

    __pydantic_config__ = STRICT

    event: Literal["birth"]
    generation: int
    place: int  # of the agent in the population
    genome: Genome
    change: str  # against its parent, in words
    copied: int | None = None  # the generation at whose end it left its parent


@dataclass(frozen=True)
class FitnessLine:
    """How good an agent was at a generation's end."""

    __pydantic_config__ = STRICT

    event: Literal["fitness"]
    generation: int
    env_steps: int  # training steps of all agents so far
    own_steps: int  # training steps of this agent and its ancestors so far
    place: int
    id: int
    fitness: float | None  # None: the agent is dead, or no episode of it has ended
    error: float | None  # standard error of the fitness over the episodes; None if it is not known


_LINE: TypeAdapter[Birth | FitnessLine] = TypeAdapter(
    Annotated[Birth | FitnessLine, Field(discriminator="event")]
)


def birth(
    genome: Genome, place: int, parent: Genome | None, copied: int | None = None
) -> dict[str, Any]:
    """The line of a new agent: of the start, or a copy of its parent at the end of `copied`.

    A run's start (training/start.py) makes the first lines, and Evolve those of children; Record
    writes these to lineage.jsonl.
    """
    change = "initial" if parent is None else describe_change(parent, genome)
    return asdict(Birth("birth", genome.born, place, genome, change, copied))


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
        """From an agent's first ancestor to itself, `until` a generation or its last evaluation."""
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
    raise RunError(f"{where}: {reason}")


def first_problem(error: ValidationError, skip: int = 0) -> str:
    """Where the first thing is that is wrong with some data, and what it is."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][skip:])
    return f"{where}: {first['msg']}" if where else first["msg"]


def describe_change(parent: Genome, child: Genome) -> str:
    """What changed, such as `lr 0.001 → 0.002`; of several networks `critic layer_norm on`."""
    changes = [
        f"{_prefix(parent, name)}{change}"
        for name, old in parent.architectures.items()
        for change in _architecture_changes(old, child.architectures[name])
    ]
    for name, value in parent.hyperparameters.items():
        if value != (new := child.hyperparameters[name]):
            changes.append(f"{name} {_number_change(value, new)}")
    if changes:
        return ", ".join(changes)
    return "noise on the weights" if child.mutation == NOISE else "copy"


def describe_architectures(genome: Genome) -> str:
    """The shapes of an agent's networks, such as `64-64 relu`, by name if there are several."""
    return ", ".join(
        f"{_prefix(genome, name)}{_describe_architecture(architecture)}"
        for name, architecture in genome.architectures.items()
    )


def describe_number(value: float, digits: int = DIGITS) -> str:
    """A number with this many significant digits; near 1, as gamma is, those of its rest to 1."""
    if value == int(value):
        return str(int(value))
    if 0.9 < value < 1:
        places = digits - 1 - math.floor(math.log10(1 - value)) - 1
        return f"{value:.{min(places, EXACT)}f}".rstrip("0").rstrip(".")
    if abs(value) >= 10**digits:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def _describe_architecture(architecture: Architecture) -> str:
    words = [_join(architecture.hidden), architecture.activation]
    if architecture.channels:
        words.insert(0, f"channels {_join(architecture.channels)},")
    words += [name for name in ("layer_norm", "dueling") if getattr(architecture, name)]
    return " ".join(words)


def _join(sizes: Sequence[int]) -> str:
    return "-".join(str(size) for size in sizes)


def _prefix(genome: Genome, network: str) -> str:
    """What tells a network from the agent's others."""
    return f"{network} " if len(genome.architectures) > 1 else ""


def _number_change(old: float, new: float) -> str:
    for digits in range(DIGITS, EXACT + 1):
        texts = describe_number(old, digits), describe_number(new, digits)
        if texts[0] != texts[1]:
            break
    return " → ".join(texts)


def _architecture_changes(old: Architecture, new: Architecture) -> Iterator[str]:
    sizes = ["channels", "kernels", "strides"]
    if layer := _extra_layer(new, old):
        yield f"layer {layer} added: {_join(new.hidden)}"
    elif layer := _extra_layer(old, new):
        yield f"layer {layer} removed: {_join(new.hidden)}"
    else:
        sizes.insert(0, "gated" if old.hidden == new.hidden else "hidden")
    for name in sizes:
        if getattr(old, name) != getattr(new, name):
            yield f"{name} {_join(getattr(old, name))} → {_join(getattr(new, name))}"
    if old.activation != new.activation:
        yield f"activation {old.activation} → {new.activation}"
    for name in ("layer_norm", "dueling"):
        if getattr(old, name) != getattr(new, name):
            yield f"{name} {'on' if getattr(new, name) else 'off'}"


def _extra_layer(deeper: Architecture, other: Architecture) -> int | None:
    """The layer, counted from 1, without which the deeper network is the other; the last of any."""
    for k in reversed(range(deeper.depth)):
        hidden = deeper.hidden[:k] + deeper.hidden[k + 1 :]
        gated = deeper.gated[:k] + deeper.gated[k + 1 :]
        if (hidden, gated) == (other.hidden, other.gated):
            return k + 1
    return None
