"""How an item lies in memory: all its fields side by side in one row of bytes.

One gather then fetches whole items. Fields apart would cost a cache miss each: twice the time.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from evorl.experience.transitions import Items

WORD = 8  # bytes: every field starts at a multiple, so that any type can be viewed in place


class Place(NamedTuple):
    """Where a field is in a row, in numbers of its own type."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    first: int
    strides: tuple[int, ...]  # of rows, and of the field's own dimensions


class RowLayout:
    """Where each field of an item is."""

    def __init__(self, fields: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        firsts, end = [], 0  # in bytes
        for shape, dtype in fields.values():
            firsts.append(end)
            end += -(-math.prod(shape) * dtype.itemsize // WORD) * WORD
        self.words = end // WORD
        self._dtypes = {dtype for _, dtype in fields.values()}
        self._places = [
            Place(
                shape,
                dtype,
                first // dtype.itemsize,
                (end // dtype.itemsize, *(math.prod(shape[i + 1 :]) for i in range(len(shape)))),
            )
            for first, (shape, dtype) in zip(firsts, fields.values(), strict=True)
        ]

    def empty(self, count: int, device: torch.device) -> Tensor:
        """Rows [count, words] of zeros: a slot never written stays finite."""
        return torch.zeros((count, self.words), dtype=torch.int64, device=device)

    def fields(self, rows: Tensor) -> Items:
        """The fields of whole rows, as views: writing to one writes to the rows."""
        count = len(rows)
        typed = {dtype: rows.view(dtype) for dtype in self._dtypes}
        start = rows.storage_offset() * WORD  # bytes before the first row
        return Items(
            *(
                typed[dtype].as_strided((count, *shape), strides, start // dtype.itemsize + first)
                for shape, dtype, first, strides in self._places
            )
        )
