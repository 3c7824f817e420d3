"""How far the runs of a folder are: what can be said of each without loading an agent."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from evorl.errors import EvorlError
from evorl.runs.directory import CONFIG, FAILURE, LINEAGE, METRICS, SUMMARY, RunDirectory
from evorl.runs.estimates import Estimate
from evorl.runs.files import field, parse_json, read_lines, reason, run_error

State = Literal["running", "finished", "stopped", "failed", "damaged"]
OWN = (METRICS, LINEAGE, SUMMARY)  # that a folder has from a run and nothing else
LATEST = 2.5e11  # seconds since 1970 that a date can be made of
DEPTH = 3  # folders in which runs are looked for, one below the other


class RunState(NamedTuple):
    """One run, as far as it has come."""

    path: Path
    state: State
    env: str | None = None
    generation: int | None = None  # that was evaluated last
    env_steps: int = 0  # of training
    budget: int | None = None  # in environment steps
    share: float | None = None  # of the budget that is spent
    best: float | None = None  # confirmed fitness of the best agent so far
    score: Estimate | None = None  # on held-out episodes, of a finished run
    changed: float = 0.0  # when something was last written: seconds since 1970
    problem: str | None = None  # what is damaged, or why it failed and what to do
    resumable: bool = False  # evorl resume continues it
    actors: int = 0  # that are to play
    alive: int | None = None  # of them at the end of the latest generation

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        score = None if self.score is None else self.score._asdict()
        seconds = min(max(self.changed, 0.0), LATEST)  # a file's time may be anything
        changed = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
        return self._asdict() | {"path": str(self.path), "score": score, "changed": changed}


def find_runs(folder: Path) -> list[RunState]:
    """The runs below a folder, newest first; of a run directory, that run."""
    try:
        if not folder.is_dir():
            raise run_error(folder, "no such folder; give the one that your runs are in")
        paths = [folder] if is_run(folder) else list(runs_below(folder))
    except OSError as error:
        raise run_error(folder, f"cannot be read: {reason(error).lower()}") from None
    return sorted(map(state_of, paths), key=lambda run: -run.changed)


def is_run(path: Path) -> bool:
    """Whether a run has made this folder: it has files of one."""
    return any((path / name).exists() for name in OWN)


def runs_below(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Runs in a folder and in folders of it, not along links."""
    for child in sorted(child for child in folder.iterdir() if child.is_dir()):
        if is_run(child):
            yield child
        elif depth > 1 and not child.name.startswith(".") and not child.is_symlink():
            with suppress(OSError):  # not ours to read
                yield from runs_below(child, depth - 1)


def state_of(path: Path) -> RunState:
    """How far a run is; one that cannot be read is damaged."""
    directory = RunDirectory(path)
    running = directory.running  # before anything is read: a run that ends meanwhile is no damage
    known = RunState(path, "running" if running else "stopped", changed=last_change(path))
    try:
        options = RunDirectory.open(path).options()
        if not running:
            known = _ended(known, directory)
        known = known._replace(env=options["env"]["id"], actors=_actors(options))
        steps, evaluation = 0, 0
        if lines := read_lines(path / METRICS):
            last = parse_json(lines[-1])
            steps, evaluation = field(last, "env_steps", int), field(last, "evaluation_steps", int)
            best = None if last.get("best") is None else field(last, "best", float)
            alive = None if last.get("actors") is None else field(last, "actors.alive", int)
            known = known._replace(
                generation=field(last, "generation", int), best=best, alive=alive
            )
        if directory.finished:
            summary = directory.summary()
            steps, evaluation = summary.env_steps, summary.evaluation_steps
            known = known._replace(state="finished", score=summary.mean)
        budget = field(options, "budget.env_steps", int)
        spent = steps + (evaluation if field(options, "budget.counts", str) == "all" else 0)
        return known._replace(env_steps=steps, budget=budget, share=spent / max(1, budget))
    except EvorlError as error:
        return known._replace(state="damaged", problem=str(error), resumable=False)
    except Exception as error:  # whatever one stumbles on in what others may have written
        damage = run_error(path, f"{CONFIG} or the last line of {METRICS}: {reason(error)}")
        return known._replace(state="damaged", problem=str(damage), resumable=False)


def _ended(known: RunState, directory: RunDirectory) -> RunState:
    """Of a run that no process trains: why, and whether it can continue."""
    if directory.finished:
        return known
    if (failure := directory.failure()) is None:
        return known._replace(resumable=True)
    return known._replace(state="failed", problem=failure.reason, resumable=not failure.lasting)


def _actors(options: dict[str, Any]) -> int:
    """How many a run is to have; older ones say nothing of them."""
    mesh = options.get("mesh")
    return field(mesh, "actors", int) if isinstance(mesh, dict) and "actors" in mesh else 0


def last_change(path: Path) -> float:
    """When the run last wrote something, in seconds since 1970; 0 if nothing of it can be seen."""
    times = [0.0]
    for name in (CONFIG, METRICS, LINEAGE, SUMMARY, FAILURE):
        with suppress(OSError):  # not there, or not any more
            times.append((path / name).lstat().st_mtime)
    return max(times)
