"""What may change in a run that goes on, and whether there is anything left to do."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evorl.config import RunConfig, parse_config
from evorl.errors import ConfigError, RunError, one_line
from evorl.runs.checkpoint import Checkpoint
from evorl.runs.directory import RunDirectory
from evorl.runs.run_checkpoints import CHANGEABLE
from evorl.runs.status import refuse_damaged


def reopen(directory: RunDirectory, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration with which a run goes on; refused where it cannot."""
    old = directory.config()
    newest = refuse_damaged(directory, old)
    new = parse_config(old.model_dump(), overrides, source=str(directory.path / "config.yaml"))
    refuse_changes(directory, old, new, {**CHANGEABLE, "name": False, "run": False})
    refuse_spent(old, new, newest)
    if directory.finished and new.budget == old.budget:
        raise RunError(
            one_line(
                f"{directory.path}: the run is finished; to train on, give it more to spend:"
                f" budget.env_steps={2 * old.budget.env_steps}"
            )
        )
    return new


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
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{above}{name}.")
        else:
            found[above + name] = value
    return found


def find_started(config: RunConfig) -> RunDirectory | None:
    """The directory of the run that this configuration has started before; None if it has not."""
    directory = find_directory(config)
    if directory is not None:
        old = directory.config()
        refuse_changes(directory, old, config)
        refuse_spent(old, config, refuse_damaged(directory, old))
    return directory


def find_directory(config: RunConfig) -> RunDirectory | None:
    """The directory of the run of this name; None if there is none."""
    path = Path(config.run.folder) / config.name
    if not path.exists() or RunDirectory(path).has_not_begun():
        return None
    return RunDirectory.open(path)


def with_known_choices(config: RunConfig) -> RunConfig:
    """What `auto` stood for when this configuration started its run, if it has started one.

    Chosen anew it may come out otherwise: by a timing, or as there is more to spend.
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
