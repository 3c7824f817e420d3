"""Bytes from rank to rank, as uint8 tensors: the length first, then chunks. Never a pickle."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

CHUNK = 64 * 2**20  # bytes of one message


def send(payload: bytes, to: int, group: dist.ProcessGroup) -> None:
    """Returns when the other rank receives."""
    _give(payload, lambda part: dist.send(part, to, group=group))


def receive(source: int, group: dist.ProcessGroup) -> bytes:
    """What `source` sends."""
    return _take(lambda part: dist.recv(part, source, group=group))


def broadcast(payload: bytes | None, source: int, group: dist.ProcessGroup) -> bytes:
    """The payload of the rank `source`, on every rank; the others bring None."""
    if payload is None:
        return _take(lambda part: dist.broadcast(part, source, group=group))
    _give(payload, lambda part: dist.broadcast(part, source, group=group))
    return payload


def _give(payload: bytes, pass_on: Callable[[Tensor], object]) -> None:
    pass_on(torch.tensor([len(payload)]))
    view = memoryview(payload)
    for start in range(0, len(payload), CHUNK):
        part = bytearray(view[start : start + CHUNK])  # torch wants a buffer that it could write
        pass_on(torch.frombuffer(part, dtype=torch.uint8))


def _take(fill: Callable[[Tensor], object]) -> bytes:
    length = torch.zeros(1, dtype=torch.int64)
    fill(length)
    buffer = bytearray(int(length))
    for start in range(0, len(buffer), CHUNK):
        count = min(CHUNK, len(buffer) - start)
        fill(torch.frombuffer(buffer, dtype=torch.uint8, count=count, offset=start))
    return bytes(buffer)
