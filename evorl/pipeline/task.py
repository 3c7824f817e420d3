"""A loop as a list of stages, run in order every iteration.

    with Task() as task:
        task.use_step_wrapper(StepTimer(print_per_step=100))
        task.use(evaluate, every=10, background=True)
        task.use(collect).use(train)
        task.use(save, every=1000, filter_labels=["main"])
        task.run(max_step=10_000)

A stage is a function of the context: a closure, an object with `__call__`, a coroutine function. If
it is a generator function, what follows its `yield` runs at the iteration's end, in reverse order
of the stages. With `filter_labels` it runs only in processes that have one of these labels. One
that has `state` and `restore` is in every checkpoint of a training run.
"""

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, Protocol, TypeVar, cast, overload, runtime_checkable

from evorl.distributed import (
    checked_patterns,
    current_session,
    labels_of,
    launched_ranks,
    match,
    match_everywhere,
    rank,
)
from evorl.errors import ConfigError, EvorlError, RunError
from evorl.pipeline.async_stages import AsyncStages, Background
from evorl.pipeline.context import Context, Control, control_of, renewed, snapshot
from evorl.pipeline.router import ParallelContext, Router
from evorl.pipeline.stage import (
    Busy,
    Iterating,
    Rest,
    Serial,
    SingleStage,
    Stage,
    Stateful,
    UsedStage,
    When,
    add_note,
    name_of,
    numbered,
    refuse_other_than_stages,
)
from evorl.pipeline.threads import StageThreads

C = TypeVar("C", bound=Iterating | Context)
T = TypeVar("T")
Wrapper = Callable[[Stage[Any]], Stage[Any]]
POLL = (0.001, 0.02)  # seconds between looks at a condition of which nobody tells: more and more


@runtime_checkable
class FollowsIterations(Protocol):
    """A step wrapper that is told when iterations and runs end."""

    def iteration_ended(self, iteration: int) -> None:
        """So many are completed."""

    def run_ended(self, iteration: int) -> None:
        """No further one comes for now."""


class Task(Generic[C]):
    """Stages in order, over one context.

    Attributes:
        context: Of the current iteration; after `run`, of the last one.
        labels: What this process is.
        stateful: The stages with state of their own that run in this process.
        router: The other processes; `is_active` if there are any.
    """

    @overload
    def __init__(
        self: "Task[Context]",
        context: None = None,
        labels: Collection[str] | None = None,
        *,
        async_mode: bool = False,
    ) -> None: ...

    @overload
    def __init__(
        self, context: C, labels: Collection[str] | None = None, *, async_mode: bool = False
    ) -> None: ...

    def __init__(
        self,
        context: Any = None,
        labels: Collection[str] | None = None,
        *,
        async_mode: bool = False,
    ) -> None:
        """Stages are to come: `use` adds them.

        Args:
            context: One of your own type, the same in every iteration; without one, or with
                a Context for the first iteration, each gets a fresh Context.
            labels: What this process is; by default its rank, and what EVORL_LABELS gives it.
            async_mode: Run the stages of an iteration at once, each in a thread of its own.
        """
        self.context = cast(C, Context() if context is None else context)
        self._free = isinstance(self.context, Context)
        if async_mode and not self._free:
            raise ConfigError(
                "async_mode: needs an evorl.Context, which sees who reads and writes what; got"
                f" {type(context).__name__}"
            )
        known = labels_of(rank(), launched_ranks()) if labels is None else frozenset(labels)
        self.labels = known | {"async"} if async_mode else known
        self.stateful: list[Stateful] = []
        self._used: list[UsedStage] = []
        self._backgrounds: dict[UsedStage, Background] = {}
        self._wrappers: list[Wrapper] = []
        self._following: list[FollowsIterations] = []
        self._began = False  # the next iteration is not the first one
        self._control = control_of(self.context) if isinstance(self.context, Context) else Control()
        self.router = Router(current_session() if self._free else None)
        self._control.processes = self.router
        self._threads = StageThreads(self._control, self.router.unpin)
        self._async_stages = AsyncStages(self._threads) if async_mode else None

    def __enter__(self) -> "Task[C]":
        return self

    def __exit__(self, *raised: object) -> None:
        self.router.leave()

    def use(
        self,
        stage: Stage[C] | Serial[C],
        every: When[C] = 1,
        filter_labels: Collection[str] | None = None,
        *,
        background: bool = False,
        busy: Busy | None = None,
    ) -> "Task[C]":
        """Add a stage.

        Args:
            stage: A function of the context, or several of them: `task.serial(first, second)`.
            every: Run it every n iterations, or when this function of the context is true.
            filter_labels: Run it where the process has one of these labels; `node.*` stands for
                all that begin so.
            background: Let it go on beside the iterations, on a copy of the context; at most one
                call is under way.
            busy: If it is due and still at work: wait for it (the default), or skip it this time.
        """
        stages = stage.stages if isinstance(stage, Serial) else [stage]
        for each in stages:
            refuse_other_than_stages(each)
        self._refuse_use(every, background, busy)
        patterns = None if filter_labels is None else checked_patterns(filter_labels)
        if patterns is not None and not match(self.labels, patterns):
            return self
        if patterns is not None and match_everywhere(self.labels, patterns):
            patterns = None
        used = UsedStage([], every, background, busy or "wait")
        self._used.append(used)
        for each in stages:
            taken = {part.name for other in self._used for part in other.parts}
            used.parts.append(SingleStage(numbered(name_of(each), taken), each, patterns))
            _wrap(used.parts[-1:], self._wrappers)
            if isinstance(each, Stateful):
                self.stateful.append(each)
        if background:
            self._backgrounds[used] = Background(used, self._threads, self._control)
        return self

    def serial(self, *stages: Stage[C] | Serial[C]) -> Serial[C]:
        """Several stages as one, for `use`: in order, also where stages run at once."""
        return Serial(*stages)

    def use_step_wrapper(self, wrapper: Wrapper) -> "Task[C]":
        """Wrap every stage, those that were used before and those to come: `wrapper(stage)`."""
        self._wrappers.append(wrapper)
        if isinstance(wrapper, FollowsIterations):
            self._following.append(wrapper)
        for used in self._used:
            _wrap(used.parts, [wrapper])
        return self

    @property
    def iteration(self) -> int:
        """Iterations completed."""
        return self._control.iteration if self._free else self.context.iteration

    @property
    def parallel_ctx(self) -> ParallelContext:
        """The newest of what the other processes have shared with `ctx.share`."""
        return self.router.parallel_ctx

    @property
    def stopping(self) -> bool:
        """Whether all stages are to end at once, because one has failed."""
        return self._control.stopping.is_set()

    def wait(self, condition: Callable[[], object], timeout: float = 600.0, what: str = "") -> bool:
        """Wait until the condition is true; False if the task ends before, or all others have.

        What it read of `parallel_ctx` is what this stage reads of it afterwards, until it waits
        again or the iteration ends. A RunError names `what` after `timeout` seconds.
        """
        until, pause = time.monotonic() + timeout, POLL[0]
        while not (met := self.router.look(condition)):
            if met is None or self._control.finishing:
                return False
            if time.monotonic() > until:
                raise RunError(
                    f"task.wait: waited {timeout:g} s for {what or name_of(condition)}"
                    f"{self.router.describe()}; look at what should make it true, or give a longer"
                    " timeout"
                )
            self.router.pause(pause)
            pause = min(2 * pause, POLL[1])
        return True

    def run(self, max_step: int | None = None) -> C:
        """Iterate until a stage sets `ctx.finish`, and at most `max_step` times; the last context.

        With a context of one's own type: until it says that it is finished. A process that has no
        stage of a task has nothing to run.
        """
        if max_step is not None and (type(max_step) is not int or max_step < 0):
            raise ConfigError(f"max_step: expected a whole number from 0 on, got {max_step!r}")
        end = None if max_step is None else self.iteration + max_step
        self.router.endless = end is None
        control = self._control
        self._threads.begin()
        try:
            while self._goes_on() and (end is None or self.iteration < end):
                self._iterate()
            control.over.set()
            for background in self._backgrounds.values():
                background.settle(waiting=True)
        except BaseException as error:
            if left := self._threads.stop():
                error.add_note(f"still running, as it does not look at task.stopping: {left}")
            raise
        finally:
            self._threads.close()
            control.over.clear()
            for wrapper in self._following:
                wrapper.run_ended(self.iteration)
        return self.context

    def _goes_on(self) -> bool:
        if self._free:
            return bool(self._used) and not self._control.ended
        return not cast(Iterating, self.context).finished

    def _iterate(self) -> None:
        """One iteration: the stages due at its beginning, then what they left for the end."""
        if self._free and self._began:
            self.context = cast(C, renewed(cast(Context, self.context)))
            self.router.unpin()
        self._began, self._control.denied = True, False
        for background in self._backgrounds.values():
            background.settle(waiting=False)
        context, iteration = self.context, self.iteration
        due = [used for used in self._used if self._named(used, used.due, context, iteration)]
        if self._async_stages is None:
            self._iterate_in_order(due)
        else:
            for used in due:  # before anything else runs: they copy the context
                if used.background:
                    self._start_background(used)
            self._async_stages.iterate(
                cast(Context, context), [used for used in due if not used.background]
            )
        if self._free:
            self._control.iteration += 1
        else:
            cast(Iterating, self.context).iteration += 1
        for wrapper in self._following:
            wrapper.iteration_ended(self.iteration)

    def _iterate_in_order(self, due: Iterable[UsedStage]) -> None:
        context, run = self.context, self._threads.loop.run
        waiting: list[tuple[SingleStage, Rest]] = []
        part: SingleStage | None = None
        try:
            for used in due:
                if used.background:
                    part = None
                    self._start_background(used)
                    continue
                for part in used.parts:
                    rest = part.begin(context, run)
                    if rest is not None:
                        waiting.append((part, rest))
            while waiting:
                part, rest = waiting.pop()
                part.end(rest)
        except BaseException as error:
            known = isinstance(error, Exception) and not isinstance(error, EvorlError)
            if part is not None and known:  # evorl's own say it themselves, and Ctrl-C is no error
                add_note(error, part.name, self.iteration)
            if self._threads.errors and isinstance(error, Exception):  # first, in the background
                raise self._threads.errors[0].error from error
            raise
        finally:  # after an error, generators still get to clean up
            while waiting:
                waiting.pop()[1].close()

    def _start_background(self, used: UsedStage) -> None:
        background = self._backgrounds[used]
        if used.busy == "skip" and background.running:
            return
        background.settle(waiting=True)
        background.start(self._named(used, snapshot, cast(Context, self.context)))

    def _named(self, used: UsedStage, call: Callable[..., T], *arguments: Any) -> T:
        """Make a call for a stage; what it raises names that."""
        try:
            return call(*arguments)
        except Exception as error:
            add_note(error, used.name, self.iteration)
            raise

    def _refuse_use(self, every: When[C], background: bool, busy: str | None) -> None:
        if not callable(every) and (type(every) is not int or every < 1):
            raise ConfigError(
                f"every: expected a whole number from 1 on or a function, got {every!r}"
            )
        if busy not in (None, "wait", "skip"):
            raise ConfigError(f"busy: expected wait or skip, got {busy!r}")
        if busy is not None and not background:
            raise ConfigError(f"busy: {busy!r} is for background=True only")
        if background and not self._free:
            raise ConfigError(
                "background: needs an evorl.Context, which can be copied; got"
                f" {type(self.context).__name__}"
            )


def _wrap(parts: Iterable[SingleStage], wrappers: Iterable[Wrapper]) -> None:
    for part in parts:
        for wrapper in wrappers:
            part.call = wrapper(part.call)
