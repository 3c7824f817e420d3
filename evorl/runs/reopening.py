"""Resume: which run, and what may change in it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evorl.config import SCHEDULE, RunConfig, parse_config, parse_yaml
from evorl.errors import ConfigError
from evorl.evolution import Schedule, parse_schedule
from evorl.runs.checkpoint import Checkpoints
from evorl.runs.compare import differences
from evorl.runs.directory import CHECKPOINTS, CONFIG, RunDirectory
from evorl.runs.files import run_error

# What may change when a run resumes: none of it touches what agents learn, but for last digits.
SECTIONS = ("name", "run", "budget", "mesh", "compile", "checkpoint", "tracking")
PARTS = {"env": {"max_failures", "timeout"}, "actors": {"place"}}
CHANGEABLE: dict[str, Any] = {**PARTS, **dict.fromkeys(SECTIONS, True)}


def make_checkpoints(
    config: RunConfig, directory: RunDirectory, schedule: Schedule | None = None
) -> Checkpoints:
    """All in the run's directory, which know it by what may not change: others are refused."""
    text = repr(sorted(config.model_dump(mode="json", exclude=CHANGEABLE).items()))
    if schedule is not None:  # with numbers as its file has them: 1 is 1.0
        data = parse_yaml(schedule.to_yaml(), "schedule", SCHEDULE)
        text += parse_schedule(data, "schedule").to_yaml()
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    return Checkpoints(directory.path / CHECKPOINTS, fingerprint, config.checkpoint.keep)


def reopen(directory: RunDirectory, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration with which a run resumes; refused where it cannot."""
    old = directory.config()
    new = parse_config(old.model_dump(), overrides, source=str(directory.path / CONFIG))
    fixed = ("name", "run")  # it stays where it is
    _refuse_changes(directory, new, {k: v for k, v in CHANGEABLE.items() if k not in fixed})
    if directory.finished and new.budget == old.budget:
        limits = ("env_steps", "seconds", "patience")
        given = {name: getattr(old.budget, name) for name in limits}
        more = " ".join(f"budget.{name}={2 * own}" for name, own in given.items() if own)
        raise run_error(
            directory.path, f"the run is finished; to train on, give it more to spend: {more}"
        )
    return new


def find_started(config: RunConfig) -> RunDirectory | None:
    """The directory of the run that this configuration has started before; None if it has not."""
    if (directory := _find_directory(config)) is not None:
        _refuse_changes(directory, config, CHANGEABLE)
    return directory


def with_known_choices(config: RunConfig) -> RunConfig:
    """With what `auto` stood for when its run started: chosen again, it may come out otherwise."""
    if (directory := _find_directory(config)) is None:
        return config
    known = directory.config()
    backend = known.env.backend if config.env.backend == "auto" else config.env.backend
    compiled = known.compile if config.compile == "auto" else config.compile
    env = config.env.model_copy(update={"backend": backend})
    return config.model_copy(update={"env": env, "compile": compiled})


def _find_directory(config: RunConfig) -> RunDirectory | None:
    path = Path(config.run.folder) / config.name
    if not path.exists() or RunDirectory(path).has_not_begun():
        return None
    return RunDirectory.open(path)


def _refuse_changes(directory: RunDirectory, new: RunConfig, changeable: dict[str, Any]) -> None:
    """ConfigError that names an option which cannot change in a run that has begun."""
    both = directory.config(), new
    for name, (was, now) in differences([c.model_dump(exclude=changeable) for c in both]):
        what = f"{name}: cannot change in a run that has begun ({directory.path} has {was!r}, got"
        raise ConfigError(f"{what} {now!r}); start a new run for that")
