"""How long each stage takes, as a table every n iterations.

task.use_step_wrapper(StepTimer(print_per_step=100))

Runs of `evorl train` count their time with `Timer` of training_context.py instead.
"""

import threading
import time
from collections.abc import Awaitable, Callable, Generator
from functools import wraps
from inspect import isawaitable
from typing import Any, NamedTuple

from evorl.distributed import is_main_process_of_launch
from evorl.errors import ConfigError
from evorl.pipeline.stage import Rest, Stage, name_of, numbered


class Spent:
    """The seconds of one stage since the last table."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0


class Row(NamedTuple):
    """A stage in a table."""

    stage: str
    seconds: float
    calls: int


class StepTimer:
    """Prints on the main rank, for each stage, the mean time of a call, its share and their number.

    Stages of the same name have numbers. Both halves of a generator count as one call. Shares are
    of the time that the iterations took: where stages run at once they add up to more than 100 %.

    Args:
        print_per_step: Iterations between two tables.
        print_on: Called with each table.
    """

    def __init__(self, print_per_step: int = 100, print_on: Callable[[str], None] = print) -> None:
        if isinstance(print_per_step, bool) or print_per_step < 1:
            raise ConfigError(
                f"print_per_step: expected a number from 1 on, got {print_per_step!r}"
            )
        self._per_step, self._print = print_per_step, print_on
        self._spent: dict[str, Spent] = {}
        self._lock = threading.Lock()
        self._iterations = 0  # since the last table
        self._began: float | None = None  # when the first stage after it was

    def __call__(self, stage: Stage[Any]) -> Stage[Any]:
        """The stage, timed."""
        name = numbered(name_of(stage), self._spent)
        spent = self._spent[name] = Spent()

        @wraps(stage, updated=())
        def timed(context: Any) -> Rest | Awaitable[None] | None:
            began = time.perf_counter()
            if self._began is None:
                self._began = began
            try:
                rest = stage(context)
            finally:
                self._add(spent, began, calls=1)
            if isinstance(rest, Generator):
                return self._time_halves(spent, rest)
            return self._time_awaiting(spent, rest) if isawaitable(rest) else None

        timed.name = name  # type: ignore[attr-defined]
        return timed

    def iteration_ended(self, iteration: int) -> None:
        """Print, if it is time to."""
        self._iterations += 1
        if self._iterations >= self._per_step:
            self._show(iteration)

    def run_ended(self, iteration: int) -> None:
        """Print what has not been printed yet."""
        if self._iterations:
            self._show(iteration)
        self._began = None

    def _time_halves(self, spent: Spent, rest: Rest) -> Rest:
        try:
            while True:
                began = time.perf_counter()
                try:
                    next(rest)
                except StopIteration:
                    return
                finally:
                    self._add(spent, began)
                yield
        finally:
            rest.close()

    async def _time_awaiting(self, spent: Spent, rest: Awaitable[None]) -> None:
        began = time.perf_counter()
        try:
            await rest
        finally:
            self._add(spent, began)

    def _add(self, spent: Spent, began: float, calls: int = 0) -> None:
        with self._lock:
            spent.seconds += time.perf_counter() - began
            spent.calls += calls

    def _show(self, iteration: int) -> None:
        now = time.perf_counter()
        with self._lock:
            rows = [Row(name, one.seconds, one.calls) for name, one in self._spent.items()]
            for one in self._spent.values():
                one.seconds, one.calls = 0.0, 0
        total, self._began = now - (self._began or now), now
        iterations, self._iterations = self._iterations, 0
        if is_main_process_of_launch():
            self._print(table([row for row in rows if row.calls], iteration, iterations, total))


def table(rows: list[Row], iteration: int, iterations: int, total: float) -> str:
    """Stages with their seconds and calls in so many iterations, as a person likes to read it."""
    width = max([len("stage"), *(len(row.stage) for row in rows)])
    lines = [
        f"iteration {iteration:,}: {iterations:,} in {duration(total)},"
        f" {duration(total / iterations)} each",
        f"  {'stage':{width}}  {'mean':>8}  {'share':>6}  {'count':>7}",
    ]
    for row in rows:
        mean, share = duration(row.seconds / row.calls), row.seconds / total if total else 0.0
        lines.append(f"  {row.stage:{width}}  {mean:>8}  {share:>6.1%}  {row.calls:>7,}")
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.0f} ns"
