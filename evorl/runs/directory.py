"""The folder of one run: its configuration, metrics, lineage, summary and best agent."""

import math
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, TypeAdapter, ValidationError

from evorl.config import RunConfig, load_config
from evorl.errors import ConfigError, RunError, one_line
from evorl.evolution.lineage import Lineage, read_lineage
from evorl.evolution.schedule import Schedule, read_schedule
from evorl.runs.atomic import reason, replace, strict_json, sync, writing
from evorl.runs.jsonl import GrowingFile
from evorl.runs.lock import is_locked, locked
from evorl.runs.saved_agent import SavedAgent, load_agent, save_agent
from evorl.runs.statistics import Estimate

CONFIG, SUMMARY, BEST, CHECKPOINTS = "config.yaml", "summary.json", "best", "checkpoints"
LINEAGE, METRICS = "lineage.jsonl", "metrics.jsonl"
SCHEDULE, LOCK = "schedule.yaml", ".lock"
# All that a run writes before config.yaml, which says that it has begun.
BEFORE_CONFIG = {LOCK, LINEAGE, SCHEDULE, *(f"{name}.new" for name in (CONFIG, LINEAGE, SCHEDULE))}


def _all_finite(estimate: Estimate) -> Estimate:
    if not all(map(math.isfinite, estimate)):
        raise ValueError("is not finite")
    return estimate


@dataclass(frozen=True)
class FinalScore:
    """The held-out score of summary.json."""

    mean: Annotated[Estimate, AfterValidator(_all_finite)]
    iqm: Annotated[Estimate, AfterValidator(_all_finite)]
    episodes: int


@dataclass(frozen=True)
class Summary:
    """What summary.json says, as far as others read it."""

    env: str
    seed: int
    score: FinalScore
    env_steps: int  # of training
    evaluation_steps: int


_SUMMARY = TypeAdapter(Summary)


class RunDirectory:
    """runs/<name>/: config.yaml, metrics.jsonl, lineage.jsonl, summary.json, best/.

    A full disk does not stop a run: lines and the best agent wait in memory until there is room.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._growing = {name: GrowingFile(path / name) for name in (METRICS, LINEAGE)}
        self._unsaved: SavedAgent | None = None  # the best agent, while it waits
        self._told = False  # that something waits

    @classmethod
    def create(
        cls, folder: str | Path, name: str, if_exists: Literal["error", "number"] = "error"
    ) -> "RunDirectory":
        """Make a new directory; one that exists is never touched, unless its run did not begin."""
        for number in range(1, 10_000):
            path = Path(folder) / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if if_exists == "number":
                    continue
                if cls(path)._take_over():
                    return cls(path)
                raise RunError(
                    f"{path} exists already: choose another name, remove it,"
                    " or set run.if_exists=number"
                ) from None
            except (OSError, ValueError) as error:
                raise RunError(f"{str(path)!r}: cannot be made: {reason(error)}") from None
            return cls(path)
        raise RunError(f"{Path(folder) / name}: 9,999 runs of that name exist, choose another")

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """A directory that a run has made, to read from it; RunError if there is none."""
        path = Path(path)
        try:
            if not path.exists():
                raise RunError(one_line(f"{path}: no such run directory"))
            if not path.is_dir():
                raise RunError(one_line(f"{path}: is a file; give the run directory that it is in"))
            if not (path / CONFIG).is_file():
                raise RunError(one_line(f"{path}: not a run directory, as it has no {CONFIG}"))
        except OSError as error:
            raise RunError(one_line(f"{path}: cannot be read: {reason(error)}")) from None
        except ValueError:  # a null character in the name
            raise RunError(one_line(f"{path}: not the name of a folder")) from None
        return cls(path)

    def has_not_begun(self) -> bool:
        """Whether this is no more than what a start leaves that is killed before config.yaml."""
        try:
            there = list(self.path.iterdir())
            plain = all(path.is_file() and not path.is_symlink() for path in there)
            if not plain or not {path.name for path in there} <= BEFORE_CONFIG:
                return False
            lineage = self.path / LINEAGE  # a start has births only
            return not lineage.exists() or b'"event": "fitness"' not in lineage.read_bytes()
        except (OSError, ValueError):
            return False

    def _take_over(self) -> bool:
        """Clear a run that has not begun; False if it has, or is just about to."""
        if not self.has_not_begun():
            return False
        try:
            with self.locked():
                if not self.has_not_begun():
                    return False
                for name in BEFORE_CONFIG - {LOCK}:
                    (self.path / name).unlink(missing_ok=True)
        except (OSError, RunError):
            return False
        return True

    def write_config(self, text: str) -> None:
        """The resolved configuration, which reruns the run; its being there says: it has begun."""
        replace(self.path / CONFIG, text)

    def config(self) -> RunConfig:
        """The configuration that the run was started with."""
        try:
            return load_config(self.path / CONFIG)
        except ConfigError as error:
            raise RunError(str(error)) from None

    def write_schedule(self, schedule: Schedule) -> None:
        """The schedule that the run follows."""
        replace(self.path / SCHEDULE, schedule.to_yaml("What this run follows."))

    def schedule(self) -> Schedule | None:
        """The schedule that the run follows; None if it follows none."""
        path = self.path / SCHEDULE
        return read_schedule(path) if path.exists() else None

    def locked(self) -> AbstractContextManager[None]:
        """Refuses a second process that would write to the same run at the same time."""
        refusal = one_line(f"{self.path}: another process is training this run; wait for it")
        return locked(self.path / LOCK, refusal)

    @property
    def running(self) -> bool:
        """Whether a process is training this run; nothing is written to find out."""
        return is_locked(self.path / LOCK)

    def append_metrics(self, line: dict[str, Any]) -> None:
        """One line of metrics.jsonl."""
        self._growing[METRICS].add([line])
        self.catch_up()

    def append_lineage(self, lines: Sequence[dict[str, Any]]) -> None:
        """Lines of lineage.jsonl, in one write."""
        self._growing[LINEAGE].add(lines)
        self.catch_up()

    def catch_up(self) -> None:
        """Write what waits; what there is no room for waits on, and a warning says so once."""
        try:
            self._write_waiting()
            self._told = False
        except RunError as error:
            if not self._told:
                warnings.warn(f"{error}; the run goes on and will try again", stacklevel=3)
            self._told = True

    def _write_waiting(self) -> None:
        for file in self._growing.values():
            file.flush()
        if self._unsaved is not None:
            self._replace_best(self._unsaved)
            self._unsaved = None

    def sync(self) -> None:
        """See that all lines are on the disk, before something there relies on them."""
        for file in self._growing.values():
            file.flush()
        with writing(self.path):
            sync(self.path, *(file.path for file in self._growing.values() if file.path.exists()))

    def lines(self) -> dict[str, int]:
        """How many lines the files have on the disk that grow while a run goes on."""
        return {name: file.lines() for name, file in self._growing.items()}

    def cut(self, lines: Mapping[str, int]) -> None:
        """Forget what was written after a checkpoint, which said so many `lines`."""
        for name, file in self._growing.items():
            file.cut(lines[name])

    def lineage(self) -> Lineage:
        """Who was born, and how good everybody was."""
        return read_lineage(self.path / LINEAGE)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """The final score, once all the rest is written."""
        self._write_waiting()
        replace(self.path / SUMMARY, strict_json(summary, indent=2) + "\n")

    def remove_summary(self) -> None:
        """A finished run goes on."""
        (self.path / SUMMARY).unlink(missing_ok=True)

    @property
    def finished(self) -> bool:
        """Whether the run has come to its final score."""
        return (self.path / SUMMARY).exists()

    def summary(self) -> Summary:
        """The final score; RunError if the run is not finished."""
        path = self.path / SUMMARY
        if not self.finished:
            raise RunError(one_line(f"{self.path}: the run is not finished, it has no {SUMMARY}"))
        try:
            return _SUMMARY.validate_json(path.read_bytes(), strict=True)
        except OSError as error:
            raise RunError(one_line(f"{path}: cannot be read: {reason(error)}")) from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            what = f"{where}: {first['msg']}" if where else first["msg"]
            raise RunError(one_line(f"{path}: not a summary of this version: {what}")) from None

    def save_best(self, agent: SavedAgent) -> None:
        """Replace best/ by this agent, now or when there is room."""
        self._unsaved = agent
        self.catch_up()

    def _replace_best(self, agent: SavedAgent) -> None:
        """The old one goes when the new one is in place; killed between, it is in best.old/."""
        best, aside, old = (self.path / f"{BEST}{end}" for end in ("", ".new", ".old"))
        with writing(best):
            shutil.rmtree(aside, ignore_errors=True)
            try:
                save_agent(aside, agent)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise
            if best.exists():
                shutil.rmtree(old, ignore_errors=True)
                best.rename(old)
            aside.rename(best)
            shutil.rmtree(old, ignore_errors=True)

    def best(self) -> SavedAgent:
        """The best agent so far; RunError if there is none."""
        for path in (self.path / BEST, self.path / f"{BEST}.old"):
            if path.exists():
                return load_agent(path)
        raise RunError(one_line(f"{self.path}: has no best agent yet"))
