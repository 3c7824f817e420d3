"""What ranks that train the same agents must agree on: else they would plan other updates."""

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from evorl.distributed.world import World


class Replicas:
    """Sums and maxima over the ranks with the same agents; without others, everything is itself."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world if world and world.data > 1 else None

    def total(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sum over the ranks."""
        return values if self.world is None else self._over(values, self.world.sum_)

    def highest(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The largest over the ranks."""
        return values if self.world is None else self._over(values, self.world.max_)

    def _over(
        self, values: npt.NDArray[Any], reduce_: Callable[[Tensor], None]
    ) -> npt.NDArray[Any]:
        assert self.world is not None
        found = torch.from_numpy(values.copy()).to(self.world.device)
        reduce_(found)
        return found.cpu().numpy()
