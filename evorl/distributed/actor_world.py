"""One process by itself: what stages ask of a World, where it is no rank that meets others."""

from typing import Any

import numpy.typing as npt


class ActorWorld:
    """An actor, of several who play for the same agents; it is its own team of one."""

    data = size = 1
    data_rank = 0

    def __init__(self, number: int = 0, fellows: int = 1, incarnation: int = 0) -> None:
        """`incarnation` counts the processes that had this number before."""
        self.fellows = fellows
        self.replica = (number, incarnation) if incarnation else (number,) * (number > 0)

    @property
    def trainers(self) -> "ActorWorld":
        """Those that train; here nobody else."""
        return self

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Everybody's payload."""
        return [payload]

    def sum_over_replicas(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Over all who play for these agents, as if they did as much as this one."""
        return values * self.fellows
