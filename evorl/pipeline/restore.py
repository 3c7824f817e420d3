"""Restore: all ranks go on from the newest good checkpoint, as if nothing had happened."""

import json
import warnings

from safetensors.torch import load
from torch import Tensor

from evorl.distributed.world import World
from evorl.errors import CheckpointError
from evorl.experience import Replays
from evorl.runs.checkpoint import Checkpoint, Checkpoints

NOTHING = -1  # there is no checkpoint yet


class Restore:
    """Reads a checkpoint on the main rank, and the replays of every rank on that rank."""

    def __init__(
        self, world: World, checkpoints: Checkpoints, replays: Replays, *, shared: bool
    ) -> None:
        self.world, self.checkpoints = world, checkpoints
        self.replays, self.shared = replays, shared

    def find(self) -> Checkpoint | None:
        """The newest good checkpoint; None if there is none, and on ranks that cannot see it."""
        found = None
        if self.world.main:
            self.checkpoints.clean()  # what a kill while saving has left
            found = self.checkpoints.newest()
        told = str(found.generation if found else NOTHING).encode() if self.world.main else None
        generation = int(self.world.broadcast(told))
        if self.world.main or generation == NOTHING or not self.shared:
            return found
        with warnings.catch_warnings(action="ignore"):  # the main rank has said it
            found = self.checkpoints.newest()
        if found is None or found.generation != generation:
            raise CheckpointError(
                f"{self.checkpoints.folder}: rank {self.world.rank} finds another checkpoint than"
                " the main rank; set checkpoint.shared_filesystem=false"
            )
        return found

    def load_replays(self, checkpoint: Checkpoint | None) -> None:
        """Every rank its own, from disk or from the main rank."""
        told = None
        if checkpoint and self.world.main:
            saved = checkpoint.state["mesh"]
            told = json.dumps([checkpoint.stems(), saved["population"], saved["data"]]).encode()
        files, population, data = json.loads(self.world.broadcast(told))
        stems, mesh = [stem for stem in files if "replay" in stem], (population, data)
        if not stems:
            self._warn("replays were not kept (checkpoint.replay: false) and fill up first")
            return
        if self.shared:
            assert checkpoint is not None
            exact = self.replays.load(stems, checkpoint.load, mesh)
        elif self.world.main:
            assert checkpoint is not None
            exact = self.replays.load(stems, checkpoint.load, mesh)
            self._serve(checkpoint)
        else:
            exact = self.replays.load(stems, self._ask, mesh)
            self.world.send(b"", 0)  # enough
        if self.world.agree(not exact):
            self._warn("there are other ranks than before: replays are not what each had")

    def _ask(self, stem: str) -> dict[str, Tensor]:
        self.world.send(stem.encode(), 0)
        return load(self.world.receive(0))

    def _serve(self, checkpoint: Checkpoint) -> None:
        for rank in range(1, self.world.size):
            while stem := self.world.receive(rank):
                self.world.send(checkpoint.raw(stem.decode()), rank)

    def _warn(self, what: str) -> None:
        if self.world.main:
            warnings.warn(
                f"{what}, so that the run goes on, but not to the same bytes", stacklevel=3
            )
