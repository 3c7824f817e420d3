"""The checkpoints of a run, which know it by everything that may not change while it goes on."""

import hashlib
from typing import Any

from evorl.checkpoint import Checkpoints
from evorl.config import RunConfig
from evorl.evolution.schedule import Schedule
from evorl.run_directory import CHECKPOINTS, RunDirectory

# What may change when a run goes on: none of it touches how agents learn.
CHANGEABLE: dict[str, Any] = dict.fromkeys(
    ("name", "run", "budget", "mesh", "compile", "checkpoint", "tracking"), True
)
CHANGEABLE["env"] = {"max_failures"}


def make_checkpoints(
    config: RunConfig, directory: RunDirectory, schedule: Schedule | None = None
) -> Checkpoints:
    """All in the run's directory; those of other runs are refused."""
    kept = repr(sorted(config.model_dump(mode="json", exclude=CHANGEABLE).items()))
    told = kept if schedule is None else kept + schedule.to_yaml()
    known = hashlib.sha256(told.encode()).hexdigest()
    return Checkpoints(directory.path / CHECKPOINTS, known, config.checkpoint.keep)
