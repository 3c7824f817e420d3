"""What ranks that train the same agents must agree on: else they would plan other updates."""

from typing import Any

import numpy.typing as npt
import torch

from evorl.distributed.world import World


class Copies:
    """Sums and maxima over the ranks with the same agents; without others, everything is itself."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world if world and world.data > 1 else None

    def total(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sum over the ranks."""
        if self.world is None:
            return values
        found = torch.from_numpy(values.copy()).to(self.world.device)
        self.world.sum_(found)
        return found.cpu().numpy()

    def highest(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The largest over the ranks."""
        if self.world is None:
            return values
        found = torch.from_numpy(values.copy()).to(self.world.device)
        self.world.max_(found)
        return found.cpu().numpy()
