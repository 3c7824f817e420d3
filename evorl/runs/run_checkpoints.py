"""The checkpoints of a run, which know it by everything that may not change while it goes on."""

import hashlib
from typing import Any

from evorl.config import RunConfig
from evorl.config.loading import parse_yaml
from evorl.evolution.schedule import Schedule, parse_schedule
from evorl.runs.checkpoint import Checkpoints
from evorl.runs.directory import CHECKPOINTS, RunDirectory

# What may change when a run goes on: none of it touches what agents learn, but for last digits.
CHANGEABLE: dict[str, Any] = dict.fromkeys(
    ("name", "run", "budget", "mesh", "compile", "checkpoint", "tracking"), True
)
CHANGEABLE["env"] = {"max_failures"}


def make_checkpoints(
    config: RunConfig, directory: RunDirectory, schedule: Schedule | None = None
) -> Checkpoints:
    """All in the run's directory; those of other runs are refused."""
    kept = repr(sorted(config.model_dump(mode="json", exclude=CHANGEABLE).items()))
    told = kept if schedule is None else kept + _as_read(schedule).to_yaml()
    known = hashlib.sha256(told.encode()).hexdigest()
    return Checkpoints(directory.path / CHECKPOINTS, known, config.checkpoint.keep)


def _as_read(schedule: Schedule) -> Schedule:
    """With numbers as its file has them: 1 is 1.0."""
    return parse_schedule(parse_yaml(schedule.to_yaml(), "schedule"), "schedule")
