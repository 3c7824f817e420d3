"""The folder of one run: its configuration, metrics, lineage, summary and best agent.

What only some commands need is imported where it is used: `evorl runs` loads neither torch nor
the classes of a configuration.
"""

import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import yaml

from evorl.config import parse_yaml
from evorl.errors import ConfigError, RunError
from evorl.runs.files import (
    JsonLines,
    atomic_write,
    field,
    parse_json,
    read_bytes,
    reason,
    run_error,
    strict_json,
    sync,
    write_errors,
)
from evorl.runs.statistics import Estimate

if TYPE_CHECKING:
    from evorl.config import RunConfig
    from evorl.evolution import Lineage, Schedule
    from evorl.runs.saved_agent import SavedAgent

CONFIG, SUMMARY, BEST, CHECKPOINTS = "config.yaml", "summary.json", "best", "checkpoints"
LINEAGE, METRICS = "lineage.jsonl", "metrics.jsonl"
SCHEDULE, LOCK = "schedule.yaml", ".lock"
# All that a run writes before config.yaml, which says that it has begun.
BEFORE_CONFIG = {LOCK, LINEAGE, SCHEDULE, *(f"{name}.new" for name in (CONFIG, LINEAGE, SCHEDULE))}
BIRTH, FITNESS = b'"event": "birth"', b'"event": "fitness"'  # of a line of lineage.jsonl
LARGEST_CONFIG = 2**20  # bytes
FAST_YAML = 2**13  # characters: by depths of 2**15 libyaml's stack overflows
LOCK_WAIT = 0.25  # seconds: another process may only be looking whether the lock is held


class FinalScore(NamedTuple):
    """The held-out score of summary.json."""

    mean: Estimate
    iqm: Estimate
    episodes: int


class Summary(NamedTuple):
    """What summary.json says, as far as others read it."""

    env: str
    seed: int
    score: FinalScore
    env_steps: int  # of training
    evaluation_steps: int


class RunDirectory:
    """runs/<name>/: config.yaml, metrics.jsonl, lineage.jsonl, summary.json, best/.

    A full disk does not stop a run: lines and the best agent wait in memory until there is room.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._logs = {name: JsonLines(path / name) for name in (METRICS, LINEAGE)}
        self._unsaved: SavedAgent | None = None  # the best agent, while it waits
        self._warned = False  # that something waits

    @classmethod
    def create(
        cls, folder: str | Path, name: str, if_exists: Literal["error", "number"] = "error"
    ) -> "RunDirectory":
        """Make a new directory; one that exists is never touched, unless its run did not begin."""
        for number in range(1, 10_000):
            path = Path(folder) / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir(parents=True)
                return cls(path)
            except FileExistsError:
                if if_exists == "error":
                    if cls(path)._take_over():
                        return cls(path)
                    other = "choose another name, remove it, or set run.if_exists=number"
                    raise RunError(f"{path} exists already: {other}") from None
            except (OSError, ValueError) as error:
                raise RunError(f"{str(path)!r}: cannot be made: {reason(error)}") from None
        raise run_error(Path(folder) / name, "9,999 runs of that name exist, choose another")

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """A directory that a run has made, to read from it; RunError if there is none."""
        path = Path(path)
        problem = None
        try:
            if not path.exists():
                problem = "no such run directory"
            elif not path.is_dir():
                problem = "is a file; give the run directory that it is in"
            elif not (path / CONFIG).is_file():
                problem = f"not a run directory, as it has no {CONFIG}"
        except OSError as error:
            problem = f"cannot be read: {reason(error)}"
        except ValueError:  # a null character in the name
            problem = "not the name of a folder"
        if problem is not None:
            raise run_error(path, problem)
        return cls(path)

    def has_not_begun(self) -> bool:
        """Whether this is no more than what a start leaves that is killed before config.yaml."""
        try:
            there = list(self.path.iterdir())
            plain = all(path.is_file() and not path.is_symlink() for path in there)
            if not plain or not {path.name for path in there} <= BEFORE_CONFIG:
                return False
            lineage = self.path / LINEAGE  # a start has births only
            return not lineage.exists() or FITNESS not in lineage.read_bytes()
        except (OSError, ValueError):
            return False

    def _take_over(self) -> bool:
        """Clear a run that has not begun; False if it has, or is just about to."""
        with suppress(OSError, RunError):
            if self.has_not_begun():
                with self.locked():
                    if self.has_not_begun():
                        for name in BEFORE_CONFIG - {LOCK}:
                            (self.path / name).unlink(missing_ok=True)
                        return True
        return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Refuses a second process that would write to the same run at the same time.

        The lock dies with its process.
        """
        from filelock import FileLock, Timeout

        path = self.path / LOCK
        lock = FileLock(path, timeout=LOCK_WAIT)
        with write_errors(path):
            try:
                lock.acquire()
            except Timeout:
                problem = "another process is training this run; wait for it"
                raise run_error(self.path, problem) from None
        try:
            yield
        except KeyboardInterrupt as error:
            error.add_note(f"resume with evorl resume {self.path}")
            raise
        finally:  # removed while it is held: whoever waits for it sees that it is gone
            with suppress(OSError):
                path.unlink()
            lock.release()

    @property
    def running(self) -> bool:
        """Whether a process is training this run; nothing is written to find out."""
        import fcntl

        path = self.path / LOCK
        try:
            if path.is_file():  # a pipe would be waited for
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until it is closed
        except BlockingIOError:
            return True
        except OSError:  # gone, or no locks on this disk
            pass
        return False

    def write_config(self, text: str) -> None:
        """The resolved configuration, which reruns the run; once it is there, the run has begun."""
        atomic_write(self.path / CONFIG, text)

    def config(self) -> "RunConfig":
        """The configuration that the run was started with."""
        from evorl.config import load_config

        try:
            return load_config(self.path / CONFIG)
        except ConfigError as error:
            raise RunError(str(error)) from None

    def options(self) -> dict[str, Any]:
        """The configuration as plain data, by section: read fast, and not validated."""
        path = self.path / CONFIG
        try:
            data = _fast_yaml(read_bytes(path, LARGEST_CONFIG).decode(), str(path))
            field(data, "env.id", str)
        except ConfigError as error:
            raise RunError(str(error)) from None
        except ValueError as error:
            raise run_error(path, str(error)) from None
        return dict(data)

    def write_schedule(self, schedule: "Schedule") -> None:
        """The schedule that the run follows."""
        atomic_write(self.path / SCHEDULE, schedule.to_yaml("What this run follows."))

    def schedule(self) -> "Schedule | None":
        """The schedule that the run follows; None if it follows none."""
        if not (self.path / SCHEDULE).exists():
            return None
        from evorl.evolution import read_schedule

        return read_schedule(self.path / SCHEDULE)

    def append_metrics(self, line: dict[str, Any]) -> None:
        """One line of metrics.jsonl."""
        self._logs[METRICS].add([line])
        self.flush()

    def append_lineage(self, lines: Sequence[dict[str, Any]]) -> None:
        """Lines of lineage.jsonl, in one write."""
        self._logs[LINEAGE].add(lines)
        self.flush()

    def flush(self) -> None:
        """Write what waits; what there is no room for waits on, and one warning says so."""
        try:
            self._write_waiting()
            self._warned = False
        except RunError as error:
            if not self._warned:
                warnings.warn(f"{error}; the run continues and will try again", stacklevel=3)
            self._warned = True

    def _write_waiting(self) -> None:
        for file in self._logs.values():
            file.flush()
        if self._unsaved is not None:
            self._replace_best(self._unsaved)
            self._unsaved = None

    def sync(self) -> None:
        """Make sure that all lines are on the disk, before something there relies on them."""
        for file in self._logs.values():
            file.flush()
        with write_errors(self.path):
            sync(self.path, *(file.path for file in self._logs.values() if file.path.exists()))

    def lines(self) -> dict[str, int]:
        """How many lines metrics.jsonl and lineage.jsonl have on the disk."""
        return {name: file.lines() for name, file in self._logs.items()}

    def cut(self, lines: Mapping[str, int]) -> None:
        """Remove what was written after a checkpoint, at which there were `lines`."""
        for name, file in self._logs.items():
            file.cut(lines[name])

    def refuse_shorter(self, lines: Mapping[str, int] | None, agents: int) -> None:
        """RunError if there are fewer `lines` than at the last checkpoint: none can resume that.

        Without a checkpoint, None, the run starts again: from the births of all `agents`.
        """
        logs = {name: file.read((lines or {}).get(name, 0)) for name, file in self._logs.items()}
        births = sum(BIRTH in line for line in logs[LINEAGE])
        if lines is None and births < agents:
            problem = f"has {births} of {agents} agents; remove the run and train again"
            raise run_error(self.path / LINEAGE, problem)

    def lineage(self) -> "Lineage":
        """Who was born, and how good everybody was."""
        from evorl.evolution import read_lineage

        return read_lineage(self.path / LINEAGE)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """The final score, once all the rest is written."""
        self._write_waiting()
        atomic_write(self.path / SUMMARY, strict_json(summary, indent=2) + "\n")

    def remove_summary(self) -> None:
        """A finished run continues."""
        (self.path / SUMMARY).unlink(missing_ok=True)

    @property
    def finished(self) -> bool:
        """Whether the run has its final score."""
        return (self.path / SUMMARY).exists()

    def summary(self) -> Summary:
        """The final score; RunError if the run is not finished."""
        path = self.path / SUMMARY
        if not self.finished:
            raise run_error(self.path, f"the run is not finished, it has no {SUMMARY}")
        try:
            return _read_summary(parse_json(read_bytes(path)))
        except ValueError as error:
            raise run_error(path, f"not a summary of this version: {error}") from None

    def save_best(self, agent: "SavedAgent") -> None:
        """Replace best/ by this agent, now or when there is room."""
        self._unsaved = agent
        self.flush()

    def _replace_best(self, agent: "SavedAgent") -> None:
        """The old one is removed when the new one is in place; killed between, it is best.old/."""
        from evorl.runs.saved_agent import save_agent

        best, aside, old = (self.path / f"{BEST}{end}" for end in ("", ".new", ".old"))
        with write_errors(best):
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

    def best(self) -> "SavedAgent":
        """The best agent so far; RunError if there is none."""
        from evorl.runs.saved_agent import read_agent

        for path in (self.path / BEST, self.path / f"{BEST}.old"):
            if path.exists():
                return read_agent(path)
        raise run_error(self.path, "has no best agent yet")


def _fast_yaml(text: str, source: str) -> Any:
    """The data of a YAML text, in a fifth of the time that a RunConfig's loader takes."""
    if len(text) <= FAST_YAML and yaml.__with_libyaml__:
        with suppress(yaml.YAMLError, RecursionError):
            return yaml.load(text, Loader=yaml.CSafeLoader)
    return parse_yaml(text, source)  # says in one line what is wrong


def _read_summary(values: Any) -> Summary:
    """ValueError that names the first field which is missing or wrong."""
    mean, iqm = (
        Estimate(*(field(values, f"score.{name}.{part}", float) for part in Estimate._fields))
        for name in ("mean", "iqm")
    )
    return Summary(
        env=field(values, "env", str),
        seed=field(values, "seed", int),
        score=FinalScore(mean, iqm, field(values, "score.episodes", int)),
        env_steps=field(values, "env_steps", int),
        evaluation_steps=field(values, "evaluation_steps", int),
    )
