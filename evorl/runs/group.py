"""A group of runs: a folder with a folder for each, and one file that says what belongs to it.

Several seeds of a configuration are a group, and so is the grid of a sweep: its runs differ in
overrides. Each is a run like any other.
"""

import re
from collections.abc import Sequence
from os.path import isfile  # False for a name that is too long, too
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evorl.config import dump_yaml, read_yaml
from evorl.runs.directory import CONFIG, GROUP, RunDirectory
from evorl.runs.files import atomic_write, field, run_error

if TYPE_CHECKING:
    from evorl.config import RunConfig

FORMAT = 1
HEADING = "# What belongs to this group of runs: evorl resume FOLDER trains what is not finished.\n"
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")  # as the configuration has it


class Group(NamedTuple):
    """What group.yaml says."""

    path: Path
    config: dict[str, Any]  # as the user's file has it
    overrides: list[str]  # of all runs
    runs: dict[str, list[str]]  # further overrides of each run, by its name
    jobs: int  # runs that train at a time

    def configs(self) -> list["RunConfig"]:
        """Those of its runs; ConfigError if one is wrong."""
        return [self._config(name) for name in self.runs]

    def _config(self, name: str) -> "RunConfig":
        from evorl.config import parse_config

        given, source = [*self.overrides, *self.runs[name]], str(self.path / GROUP)
        found = parse_config(self.config, given, source=source)
        folder = found.run.model_copy(update={"folder": str(self.path), "if_exists": "error"})
        changes: dict[str, Any] = {"name": name, "run": folder}
        if found.tracking.wandb != "off" and found.tracking.group is None:
            changes["tracking"] = found.tracking.model_copy(update={"group": self.path.name})
        return found.model_copy(update=changes)

    def unfinished(self) -> list["RunConfig"]:
        """The configurations of the runs that are not finished, or are to spend more."""
        return [config for config in self.configs() if not self._is_finished(config)]

    def _is_finished(self, config: "RunConfig") -> bool:
        directory = RunDirectory(self.path / config.name)
        return directory.finished and directory.config().budget == config.budget

    def log(self, name: str) -> Path:
        """What a run would print."""
        return self.path / f"{name}.log"

    def write(self) -> None:
        """group.yaml, in the folder that is there."""
        values = {"format": FORMAT} | {n: v for n, v in self._asdict().items() if n != "path"}
        atomic_write(self.path / GROUP, HEADING + dump_yaml(values))


def is_group(path: Path) -> bool:
    """Whether this is the folder of a group."""
    return isfile(path / GROUP)


def read_group(path: Path) -> Group:
    """What belongs to a group; RunError if its file is damaged."""
    file = path / GROUP
    data = read_yaml(file)
    try:
        if (found := field(data, "format", int)) != FORMAT:
            raise ValueError(f"format: expected {FORMAT}, got {found}")
        runs = {name: _overrides(own, name) for name, own in field(data, "runs", dict).items()}
        if odd := [n for n in runs if not isinstance(n, str) or not NAME.fullmatch(n)]:
            raise ValueError(f"runs: {odd[0]!r:.40} is no name of a run")
        shared = _overrides(field(data, "overrides", list), "overrides")
        jobs = max(1, field(data, "jobs", int))
        return Group(path, field(data, "config", dict), shared, runs, jobs)
    except ValueError as error:
        raise run_error(file, f"not a group of this version: {error}") from None


def _overrides(values: Any, where: str) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise ValueError(f"{where}: expected a list of overrides")
    return values


def expand_groups(paths: Sequence[Path]) -> list[Path]:
    """These runs, and in place of groups those of their runs that have begun."""
    return [run for path in paths for run in (_begun(path) if is_group(path) else [path])]


def _begun(path: Path) -> list[Path]:
    begun = [path / name for name in read_group(path).runs if isfile(path / name / CONFIG)]
    if not begun:
        raise run_error(path, "none of its runs has begun; start them with evorl resume")
    return begun
