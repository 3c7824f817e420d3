"""What a round of updates wants, and where each draw of it lands in the flat batch.

P agents of a group, U updates of a group's round, B width of its batch; K = sum of U*P*B over the
groups, A all agents, D draws (the K without padding).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from evorl.experience.transitions import IntArray, Samples


@dataclass(frozen=True, eq=False)
class SampleRequest:
    """One group's round: the agents of its matrix, how often each updates, on how many items."""

    agents: IntArray  # [P] which agents, of all
    updates: IntArray  # [P] updates of each in this round, 0 or more
    batch_sizes: IntArray  # [P]
    width: int  # B, at least the largest batch size

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """(U, P, B): the batch as the group's updates see it."""
        return int(max(self.updates, default=0)), len(self.agents), self.width

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for equal requests: layouts are looked up by it every round."""
        arrays = (self.agents, self.updates, self.batch_sizes)
        return (*(array.astype(np.int64).tobytes() for array in arrays), self.width)


class RoundLayout(NamedTuple):
    """Everything about a round that does not depend on what is drawn.

    Draws are agent-major, then by update, then by place in the batch: an agent's draws are one
    stretch, and within it later updates come later.
    """

    agents: IntArray  # [D] agent of each draw
    positions: IntArray  # [D] where the draw lands in the flat batch
    batches: IntArray  # first draw of every (agent, update)
    batch_of: IntArray  # [D] which of those batches
    scale: Tensor  # [K] 1 / batch size; 0 for padding
    padding: IntArray  # [K] slots before the draws are put in: the first of each agent's replay
    streams: list[tuple[int, int, int]]  # (agent, its first draw, one past its last)
    shapes: list[tuple[int, int, int]]  # (U, P, B) of each group


def make_layout(
    requests: Sequence[SampleRequest],
    first_slots: IntArray,
    dtype: torch.dtype,
    device: torch.device,
) -> RoundLayout:
    """Lays out a round. `first_slots` [A] is where each agent's replay begins."""
    check_requests(requests, len(first_slots))
    agents, positions, starts, padding, draws_of = [], [], [], [], []
    place = 0
    for request in requests:
        updates, rows, width = request.shape
        real = (np.arange(updates)[:, None] < request.updates[:, None, None]) & (
            np.arange(width) < request.batch_sizes[:, None, None]
        )  # [P, U, B]
        row, update, column = np.nonzero(real)
        agents.append(request.agents[row])
        positions.append(place + (update * rows + row) * width + column)
        starts.append(column == 0)
        padding.append(np.tile(np.repeat(first_slots[request.agents], width), updates))
        draws_of.append(request.updates * request.batch_sizes)
        place += updates * rows * width
    first = np.concatenate(starts) if starts else np.zeros(0, np.bool_)
    scale = np.zeros(place)
    flat_positions = _joined(positions)
    batch_of = np.cumsum(first) - 1
    sizes = np.bincount(batch_of)
    scale[flat_positions] = 1.0 / sizes[batch_of]
    counts = _joined(draws_of)
    ends = np.cumsum(counts)
    everyone = _joined([request.agents for request in requests])
    return RoundLayout(
        agents=_joined(agents),
        positions=flat_positions,
        batches=np.flatnonzero(first),
        batch_of=batch_of,
        scale=torch.from_numpy(scale).to(device=device, dtype=dtype),
        padding=_joined(padding),
        streams=[
            (int(agent), int(end - count), int(end))
            for agent, count, end in zip(everyone, counts, ends, strict=True)
            if count
        ],
        shapes=[request.shape for request in requests],
    )


def check_requests(requests: Sequence[SampleRequest], num_agents: int) -> None:
    """Raises on a request that cannot be laid out."""
    for group, request in enumerate(requests):
        rows = len(request.agents)
        if len(request.updates) != rows or len(request.batch_sizes) != rows:
            raise ValueError(
                f"group {group} has {rows} agents, {len(request.updates)} updates and "
                f"{len(request.batch_sizes)} batch sizes: one of each for every agent"
            )
        if rows and (min(request.updates) < 0 or min(request.batch_sizes) < 1):
            raise ValueError(
                f"group {group}: updates {request.updates} must be >= 0 and batch sizes "
                f"{request.batch_sizes} >= 1"
            )
        if rows and max(request.batch_sizes) > request.width:
            raise ValueError(
                f"group {group}: a batch of {max(request.batch_sizes)} does not fit width "
                f"{request.width}"
            )
    everyone = _joined([request.agents for request in requests])
    if len(everyone) and (min(everyone) < 0 or max(everyone) >= num_agents):
        raise ValueError(f"agents {everyone} in a population of {num_agents}")
    if len(np.unique(everyone)) < len(everyone):
        raise ValueError(f"agents {everyone}: each can be in one group only, once")


def split_groups(samples: Samples, requests: Sequence[SampleRequest]) -> list[Samples]:
    """Each group's part of a round, every field viewed as [U, P, B, ...]."""
    if len(requests) == 1:
        shape = requests[0].shape
        return [Samples(*(field.view(*shape, *field.shape[1:]) for field in samples))]
    parts = []
    place = 0
    for request in requests:
        shape = request.shape
        end = place + shape[0] * shape[1] * shape[2]
        parts.append(
            Samples(*(field[place:end].view(*shape, *field.shape[1:]) for field in samples))
        )
        place = end
    return parts


def _joined(parts: Sequence[IntArray]) -> IntArray:
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
