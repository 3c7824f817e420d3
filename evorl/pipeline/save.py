"""Save: a checkpoint after a generation, from which the run resumes to the same bytes.

Every rank writes its own replays, the main rank all the rest. Replays are left out where ranks
don't see the main one's disk. A full disk is no reason to stop: the checkpoint before stays.
"""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from evorl.config import RunConfig
from evorl.distributed import World
from evorl.errors import CheckpointError, RunError
from evorl.experience import Replays
from evorl.pipeline.context import Context
from evorl.pipeline.snapshot import POPULATION, STAGES, Snapshot
from evorl.pipeline.task import Stateful
from evorl.runs import Checkpoints, Draft, RunDirectory, Written


class Storage(NamedTuple):
    """Where a run is kept; the main rank writes there."""

    directory: RunDirectory
    checkpoints: Checkpoints


class Save:
    """Writes a checkpoint of all ranks; a collective act, of which the main rank is in charge."""

    def __init__(
        self,
        world: World,
        config: RunConfig,
        storage: Storage,
        replays: Replays,
        stages: Sequence[Stateful],
    ) -> None:
        """`stages` are those with state of their own, on the main rank."""
        self.world, self.config, self.storage = world, config.checkpoint, storage
        self.replays, self.stages = replays, stages
        self.settings = {
            "budget": config.budget.model_dump(mode="json"),
            "compiled": config.compile,
            "mesh": {"population": world.population, "data": world.data},
            "precision": world.precision,
        }
        self._keeps_replays = self.config.replay and replays.sampler.keeps

    def __call__(self, context: Context) -> None:
        """At a generation's end, when the next one is made."""
        draft = self._begin(context) if self.world.main else None
        path = self.world.broadcast_json(draft and str(draft.path.absolute()))
        if path is None:
            return
        files, problem = self._write_replays(draft or Draft(Path(path)))
        if draft is not None:
            problem = problem or self._finish(context.snapshot, draft, files)
            if problem:
                draft.abandon()
                _warn(problem)

    def _begin(self, context: Context) -> Draft | None:
        """An empty draft; None if no checkpoint is due, or the disk takes none."""
        snapshot = context.snapshot
        if not snapshot.finished and snapshot.generation % self.config.every:
            return None
        try:
            self.storage.directory.sync()  # the checkpoint will count on these lines
            return self.storage.checkpoints.begin(snapshot.generation)
        except (CheckpointError, RunError) as error:
            _warn(str(error))
            return None

    def _write_replays(self, draft: Draft) -> tuple[list[Written], str | None]:
        """The files of all ranks, on the main rank; and what went wrong on any."""
        files, problem = list[Written](), None
        if self._keeps_replays and self.world.agree(not draft.path.exists()):
            self._keeps_replays = False
            if self.world.main:
                warnings.warn(
                    f"not all ranks see {draft.path.parent}: checkpoints are without replays, and a"
                    " run that is stopped resumes with empty ones, but not to the same bytes",
                    stacklevel=3,
                )
        try:
            if self._keeps_replays:
                files = [draft.write(*file) for file in self.replays.files().items()]
        except CheckpointError as error:
            problem = str(error)
        said = self.world.gather(json.dumps([files, problem]).encode())
        replies = [json.loads(reply) for reply in said or []]
        problems = [problem for _, problem in replies if problem]
        return [Written(*file) for own, _ in replies for file in own], next(iter(problems), None)

    def _finish(self, snapshot: Snapshot, draft: Draft, files: list[Written]) -> str | None:
        """Write the rest; what went wrong."""
        values, tensors = states_of(self.stages)
        state = snapshot.to_json() | self.settings
        state |= {"stages": values, "lines": self.storage.directory.lines()}
        try:
            files.append(draft.write(POPULATION, snapshot.tensors()))
            files.append(draft.write(STAGES, tensors))
            draft.commit(state, files)
        except CheckpointError as error:
            return str(error)
        snapshot.saved = True
        return None


def _warn(problem: str) -> None:
    warnings.warn(f"no checkpoint this time, the last one stays: {problem}", stacklevel=3)


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
