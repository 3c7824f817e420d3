"""The folder of one run: its configuration, metrics, lineage, summary and best agent."""

import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from pydantic import AfterValidator, TypeAdapter, ValidationError
from safetensors import SafetensorError

from evorl.agent_file import SavedAgent, load_agent, save_agent
from evorl.config import RunConfig, load_config
from evorl.config.yaml_text import one_line
from evorl.errors import ConfigError, RunError
from evorl.evolution.lineage import Lineage, read_lineage
from evorl.evolution.schedule import Schedule, read_schedule
from evorl.statistics import Estimate

CONFIG, SUMMARY, BEST, CHECKPOINTS = "config.yaml", "summary.json", "best", "checkpoints"
LINEAGE, METRICS = "lineage.jsonl", "metrics.jsonl"
SCHEDULE, LOCK = "schedule.yaml", ".lock"


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
    """runs/<name>/: config.yaml, metrics.jsonl, lineage.jsonl, summary.json, best/."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls, folder: str | Path, name: str, if_exists: Literal["error", "number"] = "error"
    ) -> "RunDirectory":
        """Make a new directory; one that exists is never touched."""
        for number in range(1, 10_000):
            path = Path(folder) / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if if_exists == "number":
                    continue
                raise RunError(
                    f"{path} exists already: choose another name, remove it,"
                    " or set run.if_exists=number"
                ) from None
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise RunError(f"{str(path)!r}: cannot be made: {reason}") from None
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
            raise RunError(one_line(f"{path}: cannot be read: {_reason(error)}")) from None
        except ValueError:  # a null character in the name
            raise RunError(one_line(f"{path}: not the name of a folder")) from None
        return cls(path)

    def write_config(self, text: str) -> None:
        """The resolved configuration, which reruns the run."""
        _replace(self.path / CONFIG, text)

    def config(self) -> RunConfig:
        """The configuration that the run was started with."""
        try:
            return load_config(self.path / CONFIG)
        except ConfigError as error:
            raise RunError(str(error)) from None

    def write_schedule(self, schedule: Schedule) -> None:
        """The schedule that the run follows."""
        _replace(self.path / SCHEDULE, schedule.to_yaml("What this run follows."))

    def schedule(self) -> Schedule | None:
        """The schedule that the run follows; None if it follows none."""
        path = self.path / SCHEDULE
        return read_schedule(path) if path.exists() else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Refuses a second process that would write to the same run at the same time."""
        path = self.path / LOCK
        with _writing(path):
            file = path.open("w")
        with file:
            if not _lock(file):
                raise RunError(
                    one_line(f"{self.path}: another process is training this run; wait for it")
                )
            yield
        path.unlink(missing_ok=True)

    def append_metrics(self, line: dict[str, Any]) -> None:
        """One line of metrics.jsonl."""
        _append(self.path / METRICS, [line])

    def append_lineage(self, lines: Sequence[dict[str, Any]]) -> None:
        """Lines of lineage.jsonl, in one write."""
        _append(self.path / LINEAGE, lines)

    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint's folder, if there is one."""
        found = sorted((self.path / CHECKPOINTS).glob("generation-" + "[0-9]" * 6))
        return found[-1] if found else None

    def lines(self) -> dict[str, int]:
        """How many lines the files have that grow while a run goes on."""
        found = {}
        for name in (METRICS, LINEAGE):
            path = self.path / name
            found[name] = path.read_bytes().count(b"\n") if path.exists() else 0
        return found

    def cut(self, lines: Mapping[str, int]) -> None:
        """Forget what was written after a checkpoint, which said so many `lines`."""
        for name in (METRICS, LINEAGE):
            path = self.path / name
            kept = (
                path.read_bytes().splitlines(keepends=True)[: lines[name]] if path.exists() else []
            )
            if len(kept) < lines[name]:
                raise RunError(
                    f"{path}: has {len(kept)} lines, but had {lines[name]} at the last checkpoint"
                )
            _replace(path, b"".join(kept).decode())

    def lineage(self) -> Lineage:
        """Who was born, and how good everybody was."""
        return read_lineage(self.path / LINEAGE)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """The final score."""
        _replace(self.path / SUMMARY, _json(summary, indent=2) + "\n")

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
            raise RunError(one_line(f"{path}: cannot be read: {_reason(error)}")) from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            what = f"{where}: {first['msg']}" if where else first["msg"]
            raise RunError(one_line(f"{path}: not a summary of this version: {what}")) from None

    def save_best(self, agent: SavedAgent) -> None:
        """Replace best/ by this agent."""
        aside, best = self.path / f"{BEST}.new", self.path / BEST
        shutil.rmtree(aside, ignore_errors=True)
        with _writing(best):
            save_agent(aside, agent)
            shutil.rmtree(best, ignore_errors=True)
            aside.rename(best)

    def best(self) -> SavedAgent:
        """The best agent so far; RunError if there is none."""
        if not (self.path / BEST).exists():
            raise RunError(one_line(f"{self.path}: has no best agent yet"))
        return load_agent(self.path / BEST)


def _lock(file: IO[str]) -> bool:
    """Whether the lock is ours; who only asks for a run's state holds it for a moment, too."""
    for wait in (0.02, 0.05, 0.1, None):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if wait is not None:
                time.sleep(wait)
    return False


def _append(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    text = "".join(_json(line) + "\n" for line in lines)
    with _writing(path), path.open("a", encoding="utf-8") as file:
        file.write(text)


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(path.name + ".new")
    with _writing(path):
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full disk or a folder that has gone is the user's to mend."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be written: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).splitlines()[0]


def _json(value: Any, indent: int | None = None) -> str:
    """Strict JSON: what is not a finite number becomes null, as no parser need know -Infinity."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
