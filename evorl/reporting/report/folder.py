"""The runs below a folder, and nothing outside of it: no path that leads elsewhere gets through."""

import json
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from evorl.errors import RunError, one_line
from evorl.reporting.report.numbers import interval, short
from evorl.runs.directory import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    LINEAGE,
    LOCK,
    METRICS,
    SCHEDULE,
    SUMMARY,
    RunDirectory,
)
from evorl.runs.saved_agent import FACTS
from evorl.runs.status import RunState, is_run, last_change, runs_below, state_of

FILES = (CONFIG, METRICS, LINEAGE, SUMMARY, SCHEDULE, LOCK, CHECKPOINTS, BEST, f"{BEST}/{FACTS}")


class NoSuchRunError(RunError):
    """A name that is no run's, or leads out of the folder: which of both is not told."""


class RunsFolder:
    """A folder of runs; a run's name is its path below it, such as `cartpole` or `lander/7`."""

    def __init__(self, path: Path) -> None:
        problem = None
        if not path.is_dir():
            what = "is a file, not a folder" if path.exists() else "no such folder"
            problem = f"{what}; give the folder that your runs are in"
        elif is_run(path):
            problem = "is a run; give the folder that it is in, or use evorl report"
        if problem is not None:
            raise RunError(one_line(f"{path}: {problem}"))
        self.path, self.real = path, path.resolve()
        self._listed: dict[str, tuple[object, dict[str, Any]]] = {}

    def run(self, name: str) -> RunDirectory:
        """The run of this name; NoSuchRunError if there is none, or if it leads out of here."""
        refused = NoSuchRunError("no such run in this folder")
        pure = PurePosixPath(name)
        if not name or "\0" in name or "\\" in name or pure.is_absolute():
            raise refused
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise refused
        path = self.path.joinpath(*pure.parts)
        try:
            if not all(self._inside(path / file) for file in ("", *FILES)) or not is_run(path):
                raise refused
        except (OSError, RuntimeError):  # RuntimeError: links that lead in a circle
            raise refused from None
        return RunDirectory(path)

    def runs(self) -> dict[str, RunDirectory]:
        """All runs by name, the one that was written to last first."""
        found = {}
        with suppress(OSError):  # gone since
            for path in runs_below(self.path, lambda path: self._find(path) is not None):
                found[self._name(path)] = RunDirectory(path)
        return dict(sorted(found.items(), key=lambda item: (-last_change(item[1].path), item[0])))

    def _name(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def _find(self, path: Path) -> RunDirectory | None:
        try:
            return self.run(self._name(path))
        except RunError:  # no run, or a link to elsewhere
            return None

    def entries(self) -> list[dict[str, Any]]:
        """What a list shows of every run; read again only when its files have changed."""
        found = {}
        for name, directory in self.runs().items():
            mark = fingerprint(directory)
            known = self._listed.get(name)
            if known is None or known[0] != mark:
                known = (mark, _entry(name, state_of(directory.path)))
            found[name] = known
        self._listed = found
        return [entry for _, entry in found.values()]

    def _inside(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.real)


def fingerprint(directory: RunDirectory) -> tuple[tuple[int, int] | bool | None, ...]:
    """Changes when one of the files does that a report reads, or when a run starts or stops."""
    found: list[tuple[int, int] | bool | None] = [directory.running]
    for name in FILES:
        try:
            known = (directory.path / name).stat()
            found.append((known.st_mtime_ns, known.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def _entry(name: str, run: RunState) -> dict[str, Any]:
    damaged = run.state == "damaged"
    return {
        "name": name,
        "updated": round(run.changed, 3),
        "env": run.env or "",
        "state": run.state,
        "problem": run.problem,
        "score": None if run.score is None else interval(run.score),
        "best": short(run.best),
        "env_steps": None if damaged else run.env_steps,
        "share": None if damaged else short(run.share),
    }


def list_payload(folder: RunsFolder) -> dict[str, Any]:
    """What the page of all runs is given."""
    return {"folder": str(folder.path), "runs": folder.entries()}


def as_bytes(data: Any) -> bytes:
    """JSON, as it is sent."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode()
