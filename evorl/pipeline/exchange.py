"""Exchange: the new transitions of all ranks, on every rank (`replay.share: world`)."""

import numpy as np
import torch
from safetensors.torch import load

from evorl.distributed.world import World
from evorl.experience import Transitions
from evorl.runs.checkpoint import serialise


class Exchange:
    """Every rank stores what all have seen, in the order of ranks: their replays stay alike."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __call__(self, own: Transitions) -> Transitions:
        """What all ranks have collected in this round, whatever each has."""
        if self.world.size == 1:
            return own
        fields = {
            name: torch.from_numpy(np.ascontiguousarray(field))
            for name, field in own._asdict().items()
        }
        parts = [load(payload) for payload in self.world.share(serialise(fields))]
        joined = {name: torch.cat([part[name] for part in parts]).numpy() for name in fields}
        return Transitions(**joined)
