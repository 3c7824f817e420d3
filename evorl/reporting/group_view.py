"""What a person sees while a group of runs trains: one bar for all, and a line for each that ends.

Everything is read from the runs' folders.
"""

from collections.abc import Sequence

from evorl.errors import one_line
from evorl.reporting.console import Console
from evorl.runs import Group, RunDirectory, RunState, decimals, state_of

WARNING = "warning: "  # by which a run's output has warnings


class GroupView:
    """One bar over the environment steps of all runs; warnings of runs, each once."""

    def __init__(self, console: Console, group: Group, budgets: Sequence[int]) -> None:
        """`budgets` are the environment steps that each run may spend."""
        self.console, self.group = console, group
        self.budgets = dict(zip(group.runs, budgets, strict=True))
        self._known: dict[str, RunState] = {}
        self._read = {name: self._size(name) for name in group.runs}  # bytes of its output
        self._warned = set[str]()
        self._shown = 0
        self._began = False  # what there was before is no news
        count, jobs = len(group.runs), min(group.jobs, len(group.runs))
        self.console.say(f"runs:         {count} in {group.path}, {jobs} at a time")
        console.start(sum(budgets), "training", "step")
        self.update()
        self._began = True

    def update(self) -> None:
        """Show how far all are."""
        for name in self.group.runs:
            if (self.group.path / name).exists():
                self._look_at(name)
            self._pass_on_warnings(name)
        shares = {name: min(1.0, run.share or 0.0) for name, run in self._known.items()}
        spent = sum(int(share * self.budgets[name]) for name, share in shares.items())
        self.console.advance(spent - self._shown)
        self._shown = spent
        best = max((run.best for run in self._known.values() if run.best is not None), default=None)
        figure = "" if best is None else f", best {best:.{decimals([best])}f}"
        self.console.show(f"{self._finished} of {len(self.group.runs)} runs finished{figure}")

    def ended(self, name: str, problem: str | None) -> None:
        """A run's process has ended: with its score, or for this reason."""
        self.update()
        if problem is not None:
            self.console.warn(one_line(f"{name}: {problem}"))
            return
        score = RunDirectory(self.group.path / name).summary().mean
        count = f"{self._finished} of {len(self.group.runs)}"
        self.console.say(f"{name}: held-out mean {score}, {count} finished")

    @property
    def _finished(self) -> int:
        return sum(run.state == "finished" for run in self._known.values())

    def _look_at(self, name: str) -> None:
        before, now = self._known.get(name), state_of(self.group.path / name)
        self._known[name] = now
        if now.generation in (None, before and before.generation):
            return
        if self.console.verbose and self._began:
            best = "" if now.best is None else f"  best so far {now.best:.{decimals([now.best])}f}"
            self.console.say(f"{name}: generation {now.generation}  {now.env_steps:,} steps{best}")

    def _pass_on_warnings(self, name: str) -> None:
        if self._size(name) == self._read[name]:
            return
        with self.group.log(name).open("rb") as file:
            file.seek(self._read[name])
            whole, _, _ = file.read().rpartition(b"\n")
        self._read[name] += len(whole) + 1 if whole else 0
        for line in whole.decode(errors="replace").splitlines():
            if line.startswith(WARNING) and line not in self._warned:
                self._warned.add(line)
                self.console.warn(one_line(f"{name}: {line.removeprefix(WARNING)}"))

    def _size(self, name: str) -> int:
        log = self.group.log(name)
        return log.stat().st_size if log.exists() else 0
