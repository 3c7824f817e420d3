"""The folder of one run: its configuration, metrics, lineage, summary and best agent.

What only some commands need is imported where it is used: `evorl runs` loads neither torch nor
the classes of a configuration.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, chain, count, pairwise
from os.path import exists, isfile  # False for a name that is too long, too
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from evorl.config import read_yaml
from evorl.errors import EvorlError, RunError, one_line, raised
from evorl.runs.estimates import Estimate
from evorl.runs.files import (
    append_lines,
    atomic_write,
    field,
    open_regular,
    parse_json,
    read_bytes,
    read_lines,
    reason,
    refuse_links,
    run_error,
    strict_json,
    sync,
    write_errors,
)

if TYPE_CHECKING:
    from evorl.config import RunConfig
    from evorl.evolution import Lineage, Schedule
    from evorl.runs.agent import SavedAgent

CONFIG, SUMMARY, BEST, CHECKPOINTS = "config.yaml", "summary.json", "best", "checkpoints"
BEST_AGENT, FAILURE = f"{BEST}/agent.json", "failure.json"
LINEAGE, METRICS, SCHEDULE, LOCK = "lineage.jsonl", "metrics.jsonl", "schedule.yaml", ".lock"
TOKEN = "actors-token"  # what lets actors join
GROUP = "group.yaml"  # in a folder of runs that belong together
STOP = "stop"  # that somebody has asked for it; the run looks when it has written a checkpoint
LINEAGE_HASH = f"{LINEAGE} sha256"  # among the lines that a checkpoint counts on
# All that a run writes before config.yaml, which says that it has begun.
BEFORE_CONFIG = {LINEAGE, SCHEDULE, f"{CONFIG}.new", f"{SCHEDULE}.new", LOCK}
LOCK_WAIT = 0.25  # seconds: another process may only be looking whether the lock is held


class Summary(NamedTuple):
    """What summary.json says, as far as others read it."""

    mean: Estimate  # held-out score
    iqm: Estimate
    episodes: int
    env_steps: int  # of training
    evaluation_steps: int


class BestAgent(NamedTuple):
    """What a run knows of its best agent, without its weights."""

    id: int
    generation: int  # at whose end it was the best
    own_steps: int  # training steps of its line until then
    fitness: float
    confirmed: float | None  # on further episodes


class Failure(NamedTuple):
    """Why a run has ended before it was finished."""

    reason: str  # what, and what to do, in one line
    lasting: bool  # it would end so again if it resumed as it is


class RunDirectory:
    """runs/<name>/: config.yaml, metrics.jsonl, lineage.jsonl, summary.json, best/.

    What cannot be written is a RunError, which ends the run; it resumes from its last checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._trains = False  # in this process

    @classmethod
    def create(
        cls, folder: str | Path, name: str, if_exists: Literal["error", "number"] = "error"
    ) -> "RunDirectory":
        """Make a new directory; one that exists is never touched, unless its run did not begin."""
        path = Path(folder) / name
        try:
            if if_exists == "number":
                others = (path.with_name(f"{name}-{number}") for number in count(2))
                path = next(one for one in chain([path], others) if not one.exists())
            path.mkdir(parents=True)
        except FileExistsError:
            if not cls(path).has_not_begun():
                other = "choose another name, remove it, or set run.if_exists=number"
                raise RunError(f"{path} exists already: {other}") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{str(path)!r}: cannot be made: {reason(error)}") from None
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """A directory that a run has made, to read from it; RunError if there is none."""
        if not isfile(Path(path, CONFIG)):
            problem = f"not a run directory, as it has no {CONFIG}"
            if isfile(Path(path, GROUP)):
                problem = "a group of runs; give one of those in it"
            raise run_error(Path(path), problem if exists(path) else "no such run directory")
        found = cls(Path(path))
        found.refuse_links()
        return found

    def refuse_links(self) -> None:
        """RunError if something in it leads out of it, or is no file: a run has no such thing."""
        checkpoints = self.path / CHECKPOINTS
        refuse_links(self.path, self.path / BEST, checkpoints)
        refuse_links(*checkpoints.glob("generation-*"))

    def has_not_begun(self) -> bool:
        """Whether this is no more than what a start leaves that is killed before config.yaml."""
        return self.path.is_dir() and {path.name for path in self.path.iterdir()} <= BEFORE_CONFIG

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Refuses a second process; what a start that was killed has left is removed."""
        from filelock import FileLock, Timeout

        path = self.path / LOCK
        lock = FileLock(path, timeout=LOCK_WAIT)
        self.refuse_links()
        with write_errors(path):
            try:
                lock.acquire()
            except Timeout:
                problem = "another process is training this run; wait for it"
                raise run_error(self.path, problem) from None
        try:
            self._clean()
            yield
        except KeyboardInterrupt as error:
            error.add_note(f"resume with evorl resume {self.path}")
            raise
        except Exception as error:
            if self._trains and not self.finished:
                with suppress(RunError):  # there may be no room for it
                    self._write_failure(error)
            raise
        finally:  # removed while it is held: whoever waits for it sees that it is gone
            path.unlink(missing_ok=True)
            lock.release()

    def token(self) -> str:
        """What lets actors join, for this user alone; it is the same when the run resumes."""
        from evorl.bus import check_token, new_token

        path = self.path / TOKEN
        if not path.exists():
            atomic_write(path, new_token() + "\n", mode=0o600)
        return check_token(read_bytes(path).decode(errors="replace").strip(), str(path))

    def _clean(self) -> None:
        """Remove what a kill has left: half of a file or folder, and a start without its config."""
        if self.has_not_begun():
            for name in BEFORE_CONFIG - {LOCK}:
                (self.path / name).unlink(missing_ok=True)
        for folder in (self.path, self.path / CHECKPOINTS):
            for path in folder.glob("*.new"):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def begin(self) -> None:
        """It trains from now on: what goes wrong is its failure, and one from before is over."""
        self._trains = True
        (self.path / FAILURE).unlink(missing_ok=True)
        (self.path / STOP).unlink(missing_ok=True)  # it was asked of an earlier process

    def ask_to_stop(self) -> None:
        """The process that trains this run stops when it has written its next checkpoint."""
        atomic_write(self.path / STOP, "")

    @property
    def asked_to_stop(self) -> bool:
        """Whether it is to stop, and has not yet."""
        return (self.path / STOP).exists()

    def _write_failure(self, error: Exception) -> None:
        failure = Failure(one_line(raised(error)), lasting=False)
        if isinstance(error, EvorlError):
            failure = Failure(str(error), error.lasting)
        atomic_write(self.path / FAILURE, strict_json(failure._asdict(), indent=2) + "\n")

    def failure(self) -> Failure | None:
        """Why the run has ended, if by an error; not of one that is finished, or trains again."""
        path = self.path / FAILURE
        if self.finished or not path.exists():
            return None
        try:
            known = parse_json(read_bytes(path))
            return Failure(one_line(field(known, "reason", str)), field(known, "lasting", bool))
        except ValueError as error:
            raise run_error(path, f"not a failure of this version: {error}") from None

    @property
    def running(self) -> bool:
        """Whether a process is training this run; nothing is written to find out."""
        import fcntl

        try:
            with os.fdopen(open_regular(self.path / LOCK), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until it is closed
        except BlockingIOError:
            return True
        except OSError:  # there is none, or no locks on this disk
            pass
        return False

    def write_config(self, text: str) -> None:
        """The resolved configuration, which reruns the run; once it is there, the run has begun."""
        atomic_write(self.path / CONFIG, text)

    def config(self) -> "RunConfig":
        """The configuration that the run was started with."""
        from evorl.config import parse_config

        file = self.path / CONFIG  # not by load_config, which looks for modules beside it
        data = read_yaml(file)
        return parse_config({} if data is None else data, source=str(file))

    def options(self) -> dict[str, Any]:
        """The configuration as plain data, by section, not validated."""
        data = read_yaml(self.path / CONFIG)
        self._text(data, "env.id")
        return dict(data)

    def option(self, where: str) -> str:
        """One of them that is a text, such as `env.id`."""
        return self._text(self.options(), where)

    def _text(self, data: Any, where: str) -> str:
        try:
            return field(data, where, str)
        except ValueError as error:
            raise run_error(self.path / CONFIG, str(error)) from None

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
        append_lines(self.path / METRICS, [line])

    def append_lineage(self, lines: Sequence[dict[str, Any]]) -> None:
        """Lines of lineage.jsonl, in one write."""
        append_lines(self.path / LINEAGE, lines)

    def sync(self) -> None:
        """Make sure that all lines are on the disk, before something there relies on them."""
        files = (self.path / METRICS, self.path / LINEAGE)
        with write_errors(self.path):
            sync(self.path, *(path for path in files if path.exists()))

    def lines(self) -> dict[str, Any]:
        """How many lines metrics.jsonl and lineage.jsonl have on the disk, for `cut`.

        Also a hash of the lineage, which is the same whenever the run is repeated.
        """
        found = {name: read_lines(self.path / name) for name in (METRICS, LINEAGE)}
        counts = {name: len(lines) for name, lines in found.items()}
        return counts | {LINEAGE_HASH: _hash(found[LINEAGE])}

    def cut(self, lines: Mapping[str, Any]) -> None:
        """Remove what was written after a checkpoint, at which `lines` were there."""
        counts = {name: lines[name] for name in (METRICS, LINEAGE)}
        found = {name: read_lines(self.path / name)[:count] for name, count in counts.items()}
        for name, needed in counts.items():
            if len(found[name]) < needed:
                problem = f"has {len(found[name])} of the {needed} lines that it had"
                raise run_error(self.path / name, f"{problem}; start a new run")
        if lines.get(LINEAGE_HASH, known := _hash(found[LINEAGE])) != known:  # older ones have none
            problem = "its lines are not those that were written"
            raise run_error(self.path / LINEAGE, f"{problem}; put them back, or start a new run")
        for name, kept in found.items():
            atomic_write(self.path / name, b"".join(line + b"\n" for line in kept).decode())

    def seconds(self) -> float:
        """That its processes have trained, up to the last line of metrics.jsonl."""
        path = self.path / METRICS
        try:
            told = [field(parse_json(line), "seconds", float) for line in read_lines(path)]
        except ValueError as error:
            raise run_error(path, str(error)) from None
        return total_seconds(told)[-1] if told else 0.0

    def lineage(self) -> "Lineage":
        """Who was born, and how good everybody was."""
        from evorl.evolution import read_lineage

        return read_lineage(self.path / LINEAGE)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """The final score, once all the rest is written."""
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
            values = parse_json(read_bytes(path))
            mean, iqm = (
                Estimate(*(field(values, f"score.{name}.{of}", float) for of in Estimate._fields))
                for name in ("mean", "iqm")
            )
            counts = ("score.episodes", "env_steps", "evaluation_steps")
            return Summary(mean, iqm, *(field(values, name, int) for name in counts))
        except ValueError as error:
            raise run_error(path, f"not a summary of this version: {error}") from None

    def save_best(self, agent: "SavedAgent") -> None:
        """Replace best/ by this agent."""
        from evorl.runs.agent import save_agent

        best, aside = self.path / BEST, self.path / f"{BEST}.new"
        with write_errors(best):
            shutil.rmtree(aside, ignore_errors=True)
            save_agent(aside, agent)
            shutil.rmtree(best, ignore_errors=True)
            aside.rename(best)

    def best_agent(self) -> BestAgent | None:
        """What is known of the best agent so far; None if there is none."""
        path = self.path / BEST_AGENT
        if not path.exists():
            return None
        try:
            known = parse_json(read_bytes(path))
            generation = field(known, "facts.generation", int)
            steps = field(known, "facts.own_steps", int)
            fitness, confirmed = field(known, "facts.fitness", float), None
            if known["facts"].get("confirmed") is not None:
                confirmed = field(known, "facts.confirmed", float)
            return BestAgent(field(known, "genome.id", int), generation, steps, fitness, confirmed)
        except ValueError as error:
            raise run_error(path, f"not an agent of this version: {error}") from None

    def best(self) -> "SavedAgent":
        """The best agent so far; RunError if there is none."""
        from evorl.runs.agent import read_agent

        if not (self.path / BEST).exists():
            raise run_error(self.path, "has no best agent yet")
        return read_agent(self.path / BEST)


def total_seconds(told: Sequence[float]) -> list[float]:
    """Of a whole run: one that is resumed counts its seconds from zero again."""
    spent = (after - before if after >= before else after for before, after in pairwise([0, *told]))
    return list(accumulate(spent))


def _hash(lines: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\n".join(lines)).hexdigest()
