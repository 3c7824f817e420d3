"""How far the runs of a folder are: what can be said of each without loading an agent."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from evorl.errors import EvorlError
from evorl.runs.checkpoint import Checkpoints
from evorl.runs.directory import CHECKPOINTS, CONFIG, LINEAGE, METRICS, SUMMARY, RunDirectory
from evorl.runs.files import field, last_line, parse_json, reason, run_error
from evorl.runs.statistics import Estimate

State = Literal["running", "finished", "stopped", "damaged"]
OWN = (METRICS, LINEAGE, SUMMARY, CHECKPOINTS)  # that a folder has from a run and nothing else
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
    problem: str | None = None  # what is damaged

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        score = None if self.score is None else self.score._asdict()
        changed = datetime.fromtimestamp(self.changed, UTC).isoformat(timespec="seconds")
        return self._asdict() | {"path": str(self.path), "score": score, "changed": changed}


def find_runs(folder: Path) -> list[RunState]:
    """The runs below a folder, newest first; of a run directory, that run."""
    try:
        if not folder.exists():
            raise run_error(folder, "no such folder; give the one that your runs are in")
        if not folder.is_dir():
            raise run_error(folder, "is a file; give the folder that your runs are in")
        paths = [folder] if is_run(folder) else list(runs_below(folder))
    except OSError as error:
        raise run_error(folder, f"cannot be read: {reason(error).lower()}") from None
    except ValueError:  # a null character in the name
        raise run_error(folder, "not the name of a folder") from None
    return sorted(map(state_of, paths), key=lambda run: -run.changed)


def runs_below(
    folder: Path, accepts: Callable[[Path], bool] | None = None, depth: int = DEPTH
) -> Iterator[Path]:
    """Runs in a folder and in folders of it, not along links; `accepts` says what is one."""
    accepts = accepts or is_run
    for child in sorted(child for child in folder.iterdir() if child.is_dir()):
        if accepts(child):
            yield child
        elif depth > 1 and not child.name.startswith(".") and not child.is_symlink():
            with suppress(OSError):  # not ours to read
                yield from runs_below(child, accepts, depth - 1)


def is_run(path: Path) -> bool:
    """Whether a run has made this folder: it has files of one, or a configuration of evorl's."""
    if not path.is_dir():
        return False
    if any((path / name).exists() for name in OWN):
        return True
    try:
        return bool(RunDirectory(path).options())
    except EvorlError:
        return False


def state_of(path: Path) -> RunState:
    """How far a run is; one that cannot be read is damaged."""
    directory = RunDirectory(path)
    running = directory.running  # before anything is read: a run that ends meanwhile is no damage
    known = RunState(path, "running" if running else "stopped", changed=last_change(path))
    try:
        options = RunDirectory.open(path).options()
        known = known._replace(env=options["env"]["id"], **_progress(directory, options))
        if directory.finished:
            summary = directory.summary()
            spent = _spent(options, summary.env_steps, summary.evaluation_steps)
            return known._replace(state="finished", score=summary.score.mean, **spent)
        if not running:
            _refuse_damaged(directory, field(options, "population.size", int))
    except EvorlError as error:
        return known._replace(state="damaged", problem=str(error))
    except (ValueError, TypeError) as error:
        return known._replace(state="damaged", problem=str(run_error(path / CONFIG, str(error))))
    return known


def _refuse_damaged(directory: RunDirectory, agents: int) -> None:
    """An error where `evorl resume` would find nothing to resume, by manifests, not by weights."""
    with warnings.catch_warnings(action="ignore"):  # whoever loads it warns
        newest = Checkpoints(directory.path / CHECKPOINTS, run=None).newest(stems=())
    lines = None if newest is None else newest.state.get("lines", {})
    directory.refuse_shorter(lines, agents)


def _progress(directory: RunDirectory, options: dict[str, Any]) -> dict[str, Any]:
    """What the last whole line of metrics.jsonl says; little before the first evaluation."""
    path = directory.path / METRICS
    line = last_line(path)
    if line is None:
        return _spent(options, 0, 0)
    try:
        found = parse_json(line)
        steps, evaluation = (field(found, f"{kind}_steps", int) for kind in ("env", "evaluation"))
        generation = field(found, "generation", int)
        best = None if found.get("best") is None else field(found, "best", float)
    except ValueError as error:
        raise run_error(path, f"its last line is not of a run's metrics: {error}") from None
    return {"generation": generation, "best": best, **_spent(options, steps, evaluation)}


def _spent(options: dict[str, Any], steps: int, evaluation: int) -> dict[str, Any]:
    """The steps of training, and the share of the budget that is spent."""
    budget = field(options, "budget.env_steps", int)
    counted = steps + (evaluation if field(options, "budget.counts", str) == "all" else 0)
    return {"env_steps": steps, "budget": budget, "share": counted / max(1, budget)}


def last_change(path: Path) -> float:
    """When the run last wrote something, in seconds since 1970; 0 if nothing of it can be seen.

    The folder's own time counts if it never did.
    """
    times = []
    for name in (CONFIG, METRICS, LINEAGE, SUMMARY):
        with suppress(OSError):  # not there, or not any more
            times.append((path / name).stat().st_mtime)
    if not times:
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times, default=0.0)
