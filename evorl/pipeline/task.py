"""A training run as a list of stages, run in order every iteration.

    task = Task(context)
    task.use(collect).use(learn)
    task.use(save, every=1000, filter_labels=["main"])
    task.run()

A stage is a function of the context. If it is a generator function, what follows its `yield` runs
at the iteration's end, in reverse order of the stages. With `filter_labels` it runs only in
processes that have one of these labels. One that has `state` and `restore` is in every checkpoint.
"""

from collections.abc import Callable, Collection, Generator
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from torch import Tensor


class Iterating(Protocol):
    """What a task needs of its context."""

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


C = TypeVar("C", bound=Iterating)
Stage = Callable[[C], Generator[None, None, None] | None]
When = int | Callable[[C], bool]  # every n iterations, or whenever it is true


class Task(Generic[C]):
    """Stages in order, over one context."""

    def __init__(self, context: C, labels: Collection[str] = ("main", "standalone")) -> None:
        self.context, self.labels = context, frozenset(labels)
        self.stages: list[tuple[Stage[C], When[C]]] = []
        self.stateful: list[Stateful] = []  # those of this process, for its checkpoints

    def use(
        self, stage: Stage[C], every: When[C] = 1, filter_labels: Collection[str] | None = None
    ) -> "Task[C]":
        """Add a stage that runs every n iterations, or when `every(context)` is true."""
        if filter_labels is None or self.labels & set(filter_labels):
            self.stages.append((stage, every))
            if isinstance(stage, Stateful):
                self.stateful.append(stage)
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
            for stage in [stage for stage, every in self.stages if self._due(every)]:
                rest = stage(self.context)
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

    def _due(self, every: When[C]) -> bool:
        """Whether a stage runs in this iteration; `every=n` means in iterations n, 2n, …"""
        if callable(every):
            return every(self.context)
        return (self.context.iteration + 1) % every == 0
