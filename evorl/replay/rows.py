"""How an item lies in memory: all its fields side by side in one row of bytes.

One gather then fetches whole items. Fields apart would cost a cache miss each: twice the time.
"""

import math

import torch
from torch import Tensor

from evorl.replay.transitions import Items

WORD = 8  # bytes: every field starts at a multiple, so that any type can be viewed in place


class RowLayout:
    """Where each field of an item is, in words of 8 bytes."""

    def __init__(self, fields: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        self._places: list[tuple[int, int, tuple[int, ...], torch.dtype]] = []
        place = 0
        for shape, dtype in fields.values():
            size = math.prod(shape) * dtype.itemsize
            self._places.append((place, place + size, shape, dtype))
            place += -(-size // WORD) * WORD
        self.words = place // WORD

    def empty(self, count: int, device: torch.device) -> Tensor:
        """Rows [count, words] of zeros: a slot never written stays finite."""
        return torch.zeros((count, self.words), dtype=torch.int64, device=device)

    def fields(self, rows: Tensor) -> Items:
        """The fields of rows, as views: writing to one writes to the rows."""
        raw = rows.view(torch.uint8)
        return Items(
            *(
                raw[:, start:end].view(dtype).view(len(rows), *shape)
                for start, end, shape, dtype in self._places
            )
        )
