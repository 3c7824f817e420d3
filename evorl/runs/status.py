"""How far the runs of a folder are: what can be said of each without loading an agent."""

import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from evorl.config import RunConfig
from evorl.errors import CheckpointError, EvorlError, RunError, one_line
from evorl.runs.checkpoint import Checkpoint
from evorl.runs.directory import (
    CHECKPOINTS,
    CONFIG,
    LINEAGE,
    METRICS,
    SUMMARY,
    RunDirectory,
)
from evorl.runs.run_checkpoints import make_checkpoints
from evorl.runs.statistics import Estimate

State = Literal["running", "finished", "stopped", "damaged"]
OWN = (METRICS, LINEAGE, SUMMARY, CHECKPOINTS)  # that a folder has from a run and nothing else
DEPTH = 3  # folders in which runs are looked for, one below the other
BLOCK = 2**16  # bytes of a long file that are read at a time, from its end


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
            raise RunError(
                one_line(f"{folder}: no such folder; give the one that your runs are in")
            )
        if not folder.is_dir():
            raise RunError(one_line(f"{folder}: is a file; give the folder that your runs are in"))
        paths = [folder] if is_run(folder) else list(runs_below(folder))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RunError(one_line(f"{folder}: cannot be read: {reason}")) from None
    except ValueError:  # a null character in the name
        raise RunError(one_line(f"{folder}: not the name of a folder")) from None
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
        RunDirectory(path).config()
    except EvorlError:
        return False
    return True


def state_of(path: Path) -> RunState:
    """How far a run is; one that cannot be read is damaged."""
    directory = RunDirectory(path)
    running, changed = directory.running, last_change(path)
    try:
        config = RunDirectory.open(path).config()
    except EvorlError as error:
        return RunState(path, "damaged", changed=changed, problem=str(error))
    state: State = "running" if running else "stopped"
    known = RunState(path, state, config.env.id, budget=config.budget.env_steps, changed=changed)
    try:
        known = known._replace(**_progress(path / METRICS, config))
        if directory.finished:
            return known._replace(state="finished", **_result(directory, config))
        if not running:
            refuse_damaged(directory, config)
    except EvorlError as error:
        return known._replace(state="damaged", problem=str(error))
    return known


def refuse_damaged(directory: RunDirectory, config: RunConfig) -> Checkpoint | None:
    """The newest checkpoint; RunError where `evorl resume` has nothing to go on from.

    It looks at manifests, not at weights.
    """
    births, path = len(directory.lineage().births), directory.path
    try:
        with warnings.catch_warnings(action="ignore"):  # whoever loads it warns
            newest = make_checkpoints(config, directory, directory.schedule()).newest(stems=())
    except CheckpointError as error:
        raise RunError(str(error)) from None
    if newest is None:
        if births < (agents := config.population.size):
            raise RunError(
                one_line(
                    f"{path / LINEAGE}: has {births} of {agents} agents; remove it and train anew"
                )
            )
        return None
    lines = newest.state.get("lines", {})
    for name, count in directory.lines().items():
        if count < (had := lines.get(name, 0)):
            raise RunError(
                one_line(f"{path / name}: has {count} lines, but had {had} at the last checkpoint")
            )
    return newest


def _progress(path: Path, config: RunConfig) -> dict[str, Any]:
    """What the last whole line of metrics.jsonl says; little before the first evaluation."""
    line = last_line(path)
    if line is None:
        return {"share": 0.0}
    try:
        found = json.loads(line)
        steps, evaluation = int(found["env_steps"]), int(found["evaluation_steps"])
        generation = int(found["generation"])
        best = None if found["best"] is None else float(found["best"])
    except (ValueError, TypeError, KeyError):
        raise RunError(one_line(f"{path}: its last line is not of a run's metrics")) from None
    best = best if best is None or math.isfinite(best) else None
    return {"generation": generation, "best": best, **_spent(config, steps, evaluation)}


def _result(directory: RunDirectory, config: RunConfig) -> dict[str, Any]:
    """What summary.json says."""
    found = directory.summary()
    spent = _spent(config, found.env_steps, found.evaluation_steps)
    return {"score": found.score.mean, **spent}


def _spent(config: RunConfig, steps: int, evaluation: int) -> dict[str, Any]:
    """The steps of training, and the share of the budget that is spent."""
    counted = config.budget.spent(steps, evaluation)
    return {"env_steps": steps, "share": counted / config.budget.env_steps}


def last_line(path: Path) -> bytes | None:
    """The last line that is whole; None if there is none. A long file is read from its end."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            start, tail = end, b""
            while start > 0 and tail.count(b"\n") < 2:
                step = min(start, max(BLOCK, len(tail)))
                start -= step
                file.seek(start)
                tail = file.read(step) + tail
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(one_line(f"{path}: cannot be read: {error.strerror}")) from None
    whole = tail.split(b"\n")[:-1]
    return whole[-1] if whole else None


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
