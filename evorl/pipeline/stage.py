"""Stages, as a Task holds them: what they are called, when they run, and their two halves.

stage       a function of the context, which a task calls in its iterations
halves      of a stage that yields: up to the yield, and at the iteration's end the rest
serial      several stages used as one: always in order, also where stages run at once
background  a stage that goes on beside the iterations, on a snapshot of the context
"""

from collections.abc import Awaitable, Callable, Collection, Generator
from dataclasses import dataclass, field
from functools import partial
from inspect import isasyncgenfunction, isawaitable
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from evorl.distributed import partial_stage
from evorl.errors import ConfigError


class Iterating(Protocol):
    """What a task needs of a typed context."""

    iteration: int  # iterations completed
    finished: bool  # no further iteration is to start


@runtime_checkable
class Stateful(Protocol):
    """A stage with state of its own, which checkpoints keep under its name."""

    name: str

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `restore` needs, as JSON and tensors."""

    def restore(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Resume from an earlier `state`."""


C = TypeVar("C")
Rest = Generator[None, None, None]  # what follows a stage's yield
Stage = Callable[[C], Rest | Awaitable[None] | None]
When = int | Callable[[C], bool]  # every n iterations, or whenever it is true
Busy = Literal["wait", "skip"]


class Serial(Generic[C]):
    """Several stages as one: in order, also where stages run at once."""

    def __init__(self, *stages: "Stage[C] | Serial[C]") -> None:
        if not stages:
            raise ConfigError("task.serial: expected stages, got none")
        self.stages: list[Stage[C]] = []
        for stage in stages:
            self.stages += stage.stages if isinstance(stage, Serial) else [stage]


@dataclass(slots=True)
class SingleStage:
    """One function of the context, with the wrappers around it."""

    name: str
    stage: Stage[Any]
    patterns: tuple[str, ...] | None  # of the processes that do not leave it out; None: all
    call: Stage[Any] = field(init=False)  # wrapped

    def __post_init__(self) -> None:
        self.call = self.stage

    def begin(self, context: Any, run: Callable[[Awaitable[None]], None]) -> Rest | None:
        """The stage, or its first half; `run` completes what is to be awaited."""
        if self.patterns is None:
            return self._begin(context, run)
        token = partial_stage.set((self.name, self.patterns))
        try:
            return self._begin(context, run)
        finally:
            partial_stage.reset(token)

    def _begin(self, context: Any, run: Callable[[Awaitable[None]], None]) -> Rest | None:
        rest = self.call(context)
        if rest is None:
            return None
        if isinstance(rest, Generator):
            next(rest, None)
            return rest
        if isawaitable(rest):
            run(rest)
        return None

    def end(self, rest: Rest) -> None:
        """The second half."""
        token = partial_stage.set(None if self.patterns is None else (self.name, self.patterns))
        try:
            if next(rest, StopIteration) is not StopIteration:
                raise RuntimeError("a stage yields once, and this one yielded again")
        finally:
            partial_stage.reset(token)


@dataclass(slots=True, eq=False)
class UsedStage:
    """What one `task.use` was given: one stage, or several that are serial."""

    parts: list[SingleStage]  # more than one if they are serial
    every: When[Any]
    background: bool
    busy: Busy

    @property
    def name(self) -> str:
        """What a person calls it."""
        return " + ".join(part.name for part in self.parts)

    def due(self, context: Any, iteration: int) -> bool:
        """Whether it runs in an iteration; `every=n` means in the nth, the 2nth, …"""
        if callable(self.every):
            return bool(self.every(context))
        return (iteration + 1) % self.every == 0


def name_of(stage: Any) -> str:
    """What a person calls it: of closures the function that made them, of objects the class."""
    while isinstance(stage, partial):
        stage = stage.func
    own = getattr(stage, "name", None)
    if isinstance(own, str):
        return own
    qualified = getattr(stage, "__qualname__", None)
    if not isinstance(qualified, str):
        return type(stage).__name__
    if "<lambda>" in qualified:
        return f"lambda of line {stage.__code__.co_firstlineno}"
    outer, _, inner = qualified.rpartition(".<locals>.")
    maker = outer.rpartition(".<locals>.")[2].rpartition(".")[2]
    # def collect(env): def _collect(ctx) …; return _collect
    return maker if inner.startswith("_") and inner.strip("_") in maker else inner


def add_note(error: BaseException, stage: str, iteration: int) -> None:
    """Say in which stage and iteration it was raised, once."""
    note = f"in stage {stage!r}, iteration {iteration}"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def numbered(name: str, taken: Collection[str]) -> str:
    """The name, or with a number where another stage has it."""
    made, number = name, 1
    while made in taken:
        number += 1
        made = f"{name} ({number})"
    return made


def refuse_other_than_stages(stage: Any) -> None:
    """ConfigError unless it can be called with a context."""
    if isinstance(stage, type):
        raise ConfigError(
            f"task.use: expected a stage, got the class {stage.__name__}; use an object of it"
        )
    if not callable(stage):
        raise ConfigError(f"task.use: expected a function of the context, got {stage!r}")
    if isasyncgenfunction(stage):
        raise ConfigError(
            f"task.use: {name_of(stage)} awaits and yields, which a stage cannot; make it two"
        )
