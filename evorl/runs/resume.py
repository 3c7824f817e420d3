"""Resume: which run, from which checkpoint, and what may change in it."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evorl.config import RunConfig, parse_config, parse_yaml
from evorl.errors import CheckpointError, ConfigError, RunError, one_line
from evorl.evolution import Schedule, parse_schedule
from evorl.runs.checkpoint import Checkpoint, Checkpoints
from evorl.runs.directory import CHECKPOINTS, CONFIG, RunDirectory
from evorl.runs.files import run_error

# What may change when a run resumes: none of it touches what agents learn, but for last digits.
CHANGEABLE: dict[str, Any] = dict.fromkeys(
    ("name", "run", "budget", "mesh", "compile", "checkpoint", "tracking"), True
)
CHANGEABLE["env"] = {"max_failures"}


def make_checkpoints(
    config: RunConfig, directory: RunDirectory, schedule: Schedule | None = None
) -> Checkpoints:
    """All in the run's directory, which know it by what may not change: others are refused."""
    text = repr(sorted(config.model_dump(mode="json", exclude=CHANGEABLE).items()))
    if schedule is not None:  # with numbers as its file has them: 1 is 1.0
        text += parse_schedule(parse_yaml(schedule.to_yaml(), "schedule"), "schedule").to_yaml()
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    return Checkpoints(directory.path / CHECKPOINTS, fingerprint, config.checkpoint.keep)


def reopen(directory: RunDirectory, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration with which a run resumes; refused where it cannot."""
    old = directory.config()
    newest = newest_checkpoint(directory, old)
    new = parse_config(old.model_dump(), overrides, source=str(directory.path / CONFIG))
    refuse_changes(directory, old, new, {**CHANGEABLE, "name": False, "run": False})
    refuse_spent(old, new, newest)
    if directory.finished and new.budget == old.budget:
        more = f"budget.env_steps={2 * old.budget.env_steps}"
        problem = f"the run is finished; to train on, give it more to spend: {more}"
        raise run_error(directory.path, problem)
    return new


def find_started(config: RunConfig) -> RunDirectory | None:
    """The directory of the run that this configuration has started before; None if it has not."""
    directory = find_directory(config)
    if directory is not None:
        old = directory.config()
        refuse_changes(directory, old, config)
        refuse_spent(old, config, newest_checkpoint(directory, old))
    return directory


def find_directory(config: RunConfig) -> RunDirectory | None:
    """The directory of the run of this name; None if there is none."""
    path = Path(config.run.folder) / config.name
    if not path.exists() or RunDirectory(path).has_not_begun():
        return None
    return RunDirectory.open(path)


def newest_checkpoint(directory: RunDirectory, config: RunConfig) -> Checkpoint | None:
    """The newest with a good manifest, None if the run must start again; RunError if it cannot."""
    directory.lineage()  # is good, all of it
    try:
        with warnings.catch_warnings(action="ignore"):  # whoever loads it warns
            newest = make_checkpoints(config, directory, directory.schedule()).newest(stems=())
    except CheckpointError as error:
        raise RunError(str(error)) from None
    lines = None if newest is None else newest.state.get("lines", {})
    directory.refuse_shorter(lines, config.population.size)
    return newest


def refuse_spent(old: RunConfig, new: RunConfig, newest: Checkpoint | None) -> None:
    """ConfigError where another budget is less than what was spent at the newest checkpoint."""
    if newest is None or new.budget == old.budget:
        return
    numbers = newest.state["context"]
    spent = new.budget.spent(numbers["env_steps"], numbers["evaluation_steps"])
    if spent > new.budget.env_steps:
        raise ConfigError(
            f"budget.env_steps: the run has spent {spent:,} already, got {new.budget.env_steps:,};"
            " give more, or leave it out"
        )


def refuse_changes(
    directory: RunDirectory,
    old: RunConfig,
    new: RunConfig,
    changeable: Mapping[str, Any] = CHANGEABLE,
) -> None:
    """ConfigError that names the first option which cannot change in a run that has begun."""
    exclude = {name: which for name, which in changeable.items() if which}
    was, now = (_flat(config.model_dump(exclude=exclude)) for config in (old, new))
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            raise ConfigError(
                one_line(
                    f"{name}: cannot change in a run that has begun ({directory.path} has"
                    f" {was.get(name)!r}, got {now.get(name)!r}); start a new run for that"
                )
            )


def _flat(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    """By path, such as `budget.env_steps`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, dict) and value
        found |= _flat(value, f"{above}{name}.") if nested else {above + name: value}
    return found


def with_known_choices(config: RunConfig) -> RunConfig:
    """What `auto` stood for when this configuration started its run, if it has started one.

    Chosen again it may come out otherwise: by a timing, or as there is more to spend.
    """
    directory = find_directory(config)
    if directory is None:
        return config
    known = directory.config()
    if config.env.backend == "auto":
        env = config.env.model_copy(update={"backend": known.env.backend})
        config = config.model_copy(update={"env": env})
    if config.compile == "auto":
        config = config.model_copy(update={"compile": known.compile})
    return config
