"""A training run as a list of stages, run in order every iteration.

    task = Task(context)
    task.use(collect)
    task.use(learn)
    task.use(evaluate, every=1000)
    task.run()

A stage is a function of the context. If it is a generator function, what follows its `yield` runs
at the iteration's end, in reverse order of the stages.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Iterating(Protocol):
    """What a task needs of its context."""

    iteration: int  # iterations completed
    finished: bool  # no further iteration is to start


C = TypeVar("C", bound=Iterating)
Stage = Callable[[C], Generator[None, None, None] | None]


@dataclass(frozen=True)
class Step(Generic[C]):
    """A stage and when it runs."""

    stage: Stage[C]
    every: int | Callable[[C], bool]

    def due(self, context: C) -> bool:
        """Whether the stage runs in this iteration; `every=n` means in iterations n, 2n, …"""
        if callable(self.every):
            return self.every(context)
        return (context.iteration + 1) % self.every == 0


class Task(Generic[C]):
    """Stages in order, over one context."""

    def __init__(self, context: C) -> None:
        self.context = context
        self.steps: list[Step[C]] = []

    def use(self, stage: Stage[C], every: int | Callable[[C], bool] = 1) -> "Task[C]":
        """Add a stage that runs every so many iterations, or when `every(context)` is true."""
        if not callable(every) and every < 1:
            raise ValueError(f"a stage runs every 1 iteration or more, got {every}")
        self.steps.append(Step(stage, every))
        return self

    def run(self) -> C:
        """Iterate until the context says that it is finished."""
        while not self.context.finished:
            self.iterate()
        return self.context

    def iterate(self) -> None:
        """One iteration: the stages due at its beginning, then what they left for the end."""
        waiting: list[Generator[None, None, None]] = []
        try:
            for step in [step for step in self.steps if step.due(self.context)]:
                rest = step.stage(self.context)
                if rest is not None:
                    next(rest, None)
                    waiting.append(rest)
            while waiting:
                if next(waiting.pop(), StopIteration) is not StopIteration:
                    raise RuntimeError("a stage yields once, and this one yielded again")
        finally:  # after an error, generators still get to clean up
            while waiting:
                waiting.pop().close()
        self.context.iteration += 1
