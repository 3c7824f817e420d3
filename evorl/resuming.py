"""What may change in a run that goes on, and whether there is anything left to do."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evorl.config import RunConfig, parse_config
from evorl.config.yaml_text import one_line
from evorl.errors import ConfigError, RunError
from evorl.office import CHANGEABLE
from evorl.run_directory import RunDirectory
from evorl.run_state import refuse_damaged


def reopen(directory: RunDirectory, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration with which a run goes on; refused where it cannot."""
    old = directory.config()
    refuse_damaged(directory, old)
    new = parse_config(old.model_dump(), overrides, source=str(directory.path / "config.yaml"))
    refuse_changes(directory, old, new)
    if directory.finished and new.budget == old.budget:
        raise RunError(
            one_line(
                f"{directory.path}: the run is finished; to train on, give it more to spend:"
                f" budget.env_steps={2 * old.budget.env_steps}"
            )
        )
    return new


def refuse_changes(directory: RunDirectory, old: RunConfig, new: RunConfig) -> None:
    """ConfigError that names the first option which cannot change in a run that has begun."""
    was, now = (_flat(config.model_dump(exclude=CHANGEABLE)) for config in (old, new))
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
    path = Path(config.run.folder) / config.name
    if not path.exists():
        return None
    directory = RunDirectory.open(path)
    old = directory.config()
    refuse_changes(directory, old, config)
    refuse_damaged(directory, old)
    return directory
