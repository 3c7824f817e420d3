"""Stages at once: each in a thread of its own, until all meet at the iteration's end.

And stages in the background, which go on beside the iterations.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from evorl.errors import StageError
from evorl.pipeline.context import Accesses, Context, Control, MissingAttributeError, watched
from evorl.pipeline.stage import Rest, SingleStage, UsedStage
from evorl.pipeline.threads import StageFailure, StageThreads

LOOK = 0.1  # seconds between looks at what runs in the background
GRACE = 0.3  # seconds for others to write what a stage missed: that is a conflict, and no typo
CLEAN_UP = 0.2  # seconds for what is open when a stage has failed


@dataclass(eq=False)
class StageRun:
    """A stage in the current iteration, and what it left for the iteration's end."""

    used: UsedStage
    future: "Future[Any]" = field(default_factory=Future)
    rests: list[tuple[SingleStage, Rest]] = field(default_factory=list)


class AsyncStages:
    """Runs the stages of an iteration at once."""

    def __init__(self, threads: StageThreads) -> None:
        self._threads = threads

    def iterate(self, context: Context, due: Sequence[UsedStage]) -> None:
        """Start all in order and wait for all; then their second halves, in reverse order."""
        accesses = Accesses(context)
        runs = [StageRun(used) for used in due]
        try:
            for place, run in enumerate(runs):
                self._begin(run, place, context, accesses)
            self._meet(runs, accesses)
            accesses.closed = True
            for run in reversed(runs):
                while run.rests:
                    self._end(run, accesses)
        except BaseException:
            self._threads.stop()
            self._clean_up(runs)
            raise

    def _begin(self, run: StageRun, place: int, context: Context, accesses: Accesses) -> None:
        begun = threading.Event()

        def call() -> None:
            begun.set()
            for part in run.used.parts:
                own = watched(context, accesses, place, part.name)
                if (rest := self._first_half(part, own)) is not None:
                    run.rests.append((part, rest))

        run.future = self._start(run, call)
        begun.wait()

    def _first_half(self, part: SingleStage, context: Context) -> Rest | None:
        return self._threads.guarded(
            part.name, context.iteration, lambda: part.begin(context, self._threads.loop.run)
        )

    def _end(self, run: StageRun, accesses: Accesses) -> None:
        """A second half, in the thread of the first: it may hold what belongs to a thread."""
        part, rest = run.rests[-1]
        call = partial(
            self._threads.guarded, part.name, accesses.iteration, partial(part.end, rest)
        )
        run.future = self._start(run, call)
        self._meet([run], accesses)
        run.rests.pop()

    def _start(self, run: StageRun, call: Callable[[], Any]) -> "Future[Any]":
        return self._threads.start(run.used, run.used.name, call)

    def _meet(self, runs: Sequence[StageRun], accesses: Accesses) -> None:
        """Wait until all are done, or one has failed."""
        pending = {run.future for run in runs}
        while pending:
            done, pending = wait(pending, LOOK, FIRST_EXCEPTION)
            if self._threads.errors or any(future.exception() for future in done):
                break  # in the background, perhaps
        failed = self._threads.errors[0] if self._threads.errors else None
        missed = failed is not None and isinstance(failed.error, MissingAttributeError)
        if missed:
            _, pending = wait(pending, GRACE, FIRST_EXCEPTION)
        if accesses.conflict is not None:
            raise accesses.conflict
        if failed is not None and missed and pending:
            raise _perhaps_later(failed, [run for run in runs if run.future in pending])
        if failed is not None:
            raise failed.error
        for run in runs:
            run.future.result()

    def _clean_up(self, runs: Sequence[StageRun]) -> None:
        """Close the generators that are open, so that their `finally` is run."""
        for run in reversed(runs):
            if run.future.done() and run.rests:
                rests = [rest for _, rest in reversed(run.rests)]
                wait([self._start(run, partial(_close, rests))], CLEAN_UP)


def _close(rests: Sequence[Rest]) -> None:
    for rest in rests:
        rest.close()


def _perhaps_later(failed: StageFailure, others: Sequence[StageRun]) -> StageError:
    """What a stage missed may be what another one is about to write."""
    names = [part.name for run in others for part in run.used.parts]
    raised = StageError(
        f"{failed.error}, and stage {failed.stage!r} read it while {', '.join(names)} still ran; if"
        f" one of these writes it, put them in order: task.use(task.serial({names[0]},"
        f" {failed.stage}))"
    )
    raised.__cause__ = failed.error
    return raised


class Background:
    """A stage beside the iterations: at most one call under way, each on a snapshot."""

    def __init__(self, used: UsedStage, threads: StageThreads, control: Control) -> None:
        self._used, self._threads, self._control = used, threads, control
        self._future: Future[Any] | None = None

    @property
    def running(self) -> bool:
        """Whether a call is under way."""
        return self._future is not None and not self._future.done()

    def start(self, context: Context) -> None:
        """Begin a call on a context that is nobody else's; the one before must have ended."""
        self._future = self._threads.start(self._used, self._used.name, lambda: self._call(context))

    def settle(self, waiting: bool) -> None:
        """Raise what a call has raised; with `waiting`, first wait for the one under way."""
        if self._future is not None and (waiting or self._future.done()):
            future, self._future = self._future, None
            future.result()

    def _call(self, context: Context) -> None:
        for part in self._used.parts:
            try:
                self._threads.guarded(
                    part.name, context.iteration, partial(self._one, part, context)
                )
            except BaseException:
                self._control.stopping.set()  # those who wait need not wait longer
                raise

    def _one(self, part: SingleStage, context: Context) -> None:
        rest = part.begin(context, self._threads.loop.run)
        if rest is not None:
            rest.close()
            raise StageError(
                f"stage {part.name!r} yields, and no iteration's end comes in the background;"
                " use it without background=True"
            )
