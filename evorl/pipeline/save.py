"""Save: a checkpoint after a generation, from which the run resumes to the same bytes.

Every rank writes its own replays, the main rank all the rest. A disk that is full is no reason to
stop: the run says so, and keeps the checkpoint before.
"""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from evorl.config import RunConfig
from evorl.distributed import World
from evorl.errors import CheckpointError, RunError
from evorl.experience import Replays
from evorl.pipeline.context import Context
from evorl.pipeline.snapshot import POPULATION, STAGES, Snapshot
from evorl.pipeline.task import Stateful
from evorl.runs import Checkpoints, Draft, RunDirectory, Written, serialise


@dataclass(frozen=True)
class Storage:
    """Where a run is kept; the main rank writes there."""

    directory: RunDirectory
    checkpoints: Checkpoints
    shared: bool  # whether all ranks see the folder


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

    def __call__(self, context: Context) -> None:
        """At a generation's end, when the next one is made."""
        draft, problem = self._begin(context)
        if draft is not None:
            files, problem = self._write_replays(draft)
            if self.world.main:
                problem = problem or self._finish(context.snapshot, draft, files)
        if problem and self.world.main:
            if draft is not None:
                draft.abandon()
            warnings.warn(f"no checkpoint this time, the last one stays: {problem}", stacklevel=2)

    def _begin(self, context: Context) -> tuple[Draft | None, str | None]:
        """The main rank makes the folder and tells the others; None if it is not due, or cannot."""
        draft, problem, path = None, None, b""
        if self.world.main and self._due(context.snapshot):
            try:
                self.storage.directory.sync()  # the checkpoint will count on these lines
                draft = self.storage.checkpoints.begin(context.snapshot.generation)
                path = str(draft.path.absolute()).encode()
            except (CheckpointError, RunError) as error:
                problem = str(error)
        path = self.world.broadcast(path if self.world.main else None)
        if path and draft is None:
            draft = Draft(Path(path.decode()))
        return draft, problem

    def _due(self, snapshot: Snapshot) -> bool:
        return snapshot.finished or snapshot.generation % self.config.every == 0

    def _write_replays(self, draft: Draft) -> tuple[list[Written], str | None]:
        """The files of all ranks, on the main rank; and what went wrong on any."""
        replays = self.replays.files() if self.config.replay else {}
        files, problem = [], None
        try:
            if self.storage.shared or self.world.main:
                files = [draft.write(*file) for file in replays.items()]
        except CheckpointError as error:
            problem = str(error)
        if not self.storage.shared:
            files, problem = self._receive_replays(draft, replays, files, problem)
        said = self.world.gather(json.dumps([files, problem]).encode())
        if said is None:
            return [], None
        replies = [json.loads(reply) for reply in said]
        problems = [problem for _, problem in replies if problem]
        return [Written(*file) for own, _ in replies for file in own], next(iter(problems), None)

    def _receive_replays(
        self,
        draft: Draft,
        replays: dict[str, dict[str, Tensor]],
        files: list[Written],
        problem: str | None,
    ) -> tuple[list[Written], str | None]:
        """The main rank writes for those that cannot see its disk, one file at a time."""
        names = self.world.gather(json.dumps(list(replays)).encode())
        if names is None:
            for tensors in replays.values():
                self.world.send(serialise(tensors), 0)
            return [], None
        for rank, own in enumerate(names[1:], 1):
            for stem in json.loads(own):
                data = self.world.receive(rank)  # even if there is nowhere to put it
                try:
                    if problem is None:
                        files.append(draft.write_bytes(stem, data))
                except CheckpointError as error:
                    problem = str(error)
        return files, problem

    def _finish(self, snapshot: Snapshot, draft: Draft, files: list[Written]) -> str | None:
        values, tensors = states_of(self.stages)
        state = snapshot.to_json() | self.settings
        state |= {"stages": values, "lines": self.storage.directory.lines()}
        try:
            files.append(draft.write_bytes(POPULATION, snapshot.packed()))
            files.append(draft.write(STAGES, tensors))
            draft.commit(state, files)
        except CheckpointError as error:
            return str(error)
        snapshot.saved = True
        return None


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
