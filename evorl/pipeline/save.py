"""Save: a checkpoint after a generation, from which the run resumes to the same bytes.

Every rank writes its own replays, the main rank all the rest. Replays are left out where ranks
don't see the main one's disk. A full disk ends the run, which resumes from the checkpoint before.
"""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from evorl.config import RunConfig
from evorl.distributed import World
from evorl.experience import Replays
from evorl.pipeline.snapshot import POPULATION, STAGE_STATES, Snapshot
from evorl.pipeline.stage import Stateful
from evorl.pipeline.training_context import TrainingContext
from evorl.runs import Checkpoints, Draft, RunDirectory, Written


class Storage(NamedTuple):
    """Where a run is kept; the main rank writes there."""

    directory: RunDirectory
    checkpoints: Checkpoints


class Save:
    """Writes a checkpoint of all that train; together, with the main rank in charge."""

    def __init__(
        self,
        world: World,
        config: RunConfig,
        storage: Storage,
        replays: Replays | None,
        stages: Sequence[Stateful],
    ) -> None:
        """`stages` are those with state of their own, on the main rank; evaluators take no part."""
        self.world, self.config, self.storage = world, config.checkpoint, storage
        self.replays, self.stages = replays, stages
        self.settings: dict[str, Any] = {
            "budget": config.budget.model_dump(mode="json"),
            "compiled": config.compile,
            "mesh": {"population": world.population, "data": world.data},
            "precision": world.precision,
        }
        if world.lag:
            self.settings["lag"] = world.lag
        if config.mesh.actors:
            self.settings["actors"] = config.mesh.actors
        self._keeps_replays = self.config.replay and replays is not None and replays.sampler.keeps

    def __call__(self, context: TrainingContext) -> None:
        """At a generation's end, when the next one is made."""
        if not self.world.trainers.joined:
            return
        draft = self._begin(context.snapshot) if self.world.main else None
        path = self.world.trainers.broadcast_json(draft and str(draft.path.absolute()))
        if path is None:
            return
        files = self._write_replays(draft or Draft(Path(path)))
        if draft is not None:
            self._finish(context.snapshot, draft, files)

    def _begin(self, snapshot: Snapshot) -> Draft | None:
        """An empty draft; None if no checkpoint is due."""
        if not snapshot.finished and snapshot.generation % self.config.every:
            return None
        self.storage.directory.sync()  # the checkpoint will count on these lines
        return self.storage.checkpoints.begin(snapshot.generation)

    def _write_replays(self, draft: Draft) -> list[Written]:
        """The files of all ranks, on the main rank."""
        team = self.world.trainers
        if self._keeps_replays and team.any_rank(not draft.path.exists()):
            self._keeps_replays = False
            if self.world.main:
                warnings.warn(
                    f"not all ranks see {draft.path.parent}: checkpoints leave replays out; a"
                    " stopped run resumes with empty ones and will not end with the same bytes",
                    stacklevel=3,
                )
        own = self.replays.files() if self.replays and self._keeps_replays else {}
        files = [draft.write(*file) for file in own.items()]
        said = team.gather(json.dumps(files).encode())
        return [Written(*file) for reply in said or [] for file in json.loads(reply)]

    def _finish(self, snapshot: Snapshot, draft: Draft, files: list[Written]) -> None:
        """Write the rest."""
        values, tensors = states_of(self.stages)
        state = snapshot.to_json() | self.settings
        state |= {"stages": values, "lines": self.storage.directory.lines()}
        files.append(draft.write(POPULATION, snapshot.tensors()))
        files.append(draft.write(STAGE_STATES, tensors))
        draft.commit(state, files)
        snapshot.saved = True


def states_of(stages: Sequence[Stateful]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The stages' JSON by name, and their tensors as NAME.TENSOR."""
    values: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for stage in stages:
        values[stage.name], own = stage.state()
        tensors |= {f"{stage.name}.{name}": value for name, value in own.items()}
    return values, tensors


def restore_states(
    stages: Sequence[Stateful], values: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Back from `states_of`."""
    for stage in stages:
        start = f"{stage.name}."
        own = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        stage.restore(values[stage.name], own)
