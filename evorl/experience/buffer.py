"""The ring that holds every window, in preallocated tensors.

R replays (one shared by all agents, or one for each), C capacity of one replay, K items of one
call, n steps of a window. Item c of replay r lies in flat slot r*C + c.

Every item has a number: how many came for its replay before it. Number k lies in place k mod C, and
no number is ever given twice: it says whether an item is still there.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evorl.experience.transitions import AnyArray, BoolArray, IntArray, Transitions
from evorl.machine import check_fits

MOST_ADDED = 10**15  # items that ever came
WORD = 8  # bytes: every field starts at a multiple, so that any type can be viewed in place


class RowLayout:
    """How an item lies in memory: all its fields side by side in one row of bytes.

    One gather then fetches whole items. Fields apart would cost a cache miss each: twice the time.
    """

    def __init__(self, fields: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        self._fields, self._firsts, self.bytes = fields, list[int](), 0
        for shape, dtype in fields.values():
            self._firsts.append(self.bytes)
            self.bytes += -(-math.prod(shape) * dtype.itemsize // WORD) * WORD
        self._dtypes = {dtype for _, dtype in fields.values()}
        self._strides = [
            (self.bytes // dtype.itemsize, *(math.prod(shape[i + 1 :]) for i in range(len(shape))))
            for shape, dtype in fields.values()
        ]

    def fields(self, rows: Tensor) -> dict[str, Tensor]:
        """The fields of rows [K, bytes / WORD], as views: writing to one writes to the rows."""
        typed = {dtype: rows.view(dtype) for dtype in self._dtypes}
        start = rows.storage_offset() * WORD  # bytes before the first row
        places = zip(self._fields.items(), self._firsts, self._strides, strict=True)
        return {
            name: typed[dtype].as_strided(
                (len(rows), *shape), strides, (start + first) // dtype.itemsize
            )
            for (name, (shape, dtype)), first, strides in places
        }


def torch_dtype(dtype: torch.dtype | np.dtype[Any]) -> torch.dtype:
    """The same type as PyTorch has it."""
    return torch.from_numpy(np.empty(0, dtype)).dtype if isinstance(dtype, np.dtype) else dtype


class ReplayBuffer:
    """R rings of C items each; a new item takes the place of the oldest of its ring."""

    def __init__(
        self,
        capacity: int,
        obs_shape: tuple[int, ...],
        obs_dtype: torch.dtype | np.dtype[Any],
        n_step: int,
        num_replays: int = 1,
        reward_dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        action_shape: tuple[int, ...] = (),
        action_dtype: torch.dtype | np.dtype[Any] = torch.int64,
    ) -> None:
        obs_dtype, action_dtype = torch_dtype(obs_dtype), torch_dtype(action_dtype)
        self.capacity, self.reward_dtype = capacity, reward_dtype
        self.device = torch.device(device)
        self._layout = RowLayout(
            {
                "obs": (obs_shape, obs_dtype),
                "action": (action_shape, action_dtype),
                "rewards": ((n_step,), reward_dtype),
                "next_obs": (obs_shape, obs_dtype),
                "bootstrap": ((), torch.uint8),
            }
        )
        self.item_bytes, count = self._layout.bytes, num_replays * capacity
        check_fits(count * self.item_bytes, f"replay.capacity={capacity}", "use a smaller one")
        words = self.item_bytes // WORD
        # zeros: a slot never written stays finite
        rows = torch.zeros((count, words), dtype=torch.int64, device=self.device)
        self._hold(rows, num_replays)
        self.added = np.zeros(num_replays, np.int64)  # [R] number of each replay's next item
        self.sizes = np.zeros(num_replays, np.int64)  # [R] items held by each replay

    def add(self, transitions: Transitions, replay_index: IntArray | None = None) -> IntArray:
        """Stores `transitions` in order, item k in replay `replay_index[k]`; gives the slots.

        Of more than C items for one ring only the newest C are written: no slot is repeated.
        """
        count = len(transitions.action)
        if self.num_replays == 1:
            kept = min(count, self.capacity)
            # The ring moves on by all of them, as if they had come one at a time.
            slots: IntArray = (self.added + np.arange(count - kept, count)) % self.capacity
            added = np.array([count])
            values = [field[count - kept :] for field in transitions[:5]]
        else:
            assert replay_index is not None, "each item needs its replay"
            slots, keep, added = self._route(replay_index)
            values = list(transitions[:5])
            if not keep.all():
                slots = slots[keep]
                values = [field[keep] for field in values]
        self._write(slots, values)
        self.added = self.added + added
        self.sizes = np.minimum(self.sizes + added, self.capacity)
        return slots

    def gather(self, slots: Tensor) -> dict[str, Tensor]:
        """The items in flat `slots`, field by field."""
        return self._layout.fields(torch.index_select(self._rows, 0, slots))

    def numbers(self, replays: IntArray, places: IntArray) -> IntArray:
        """The numbers of the items in some places [Q] of replays [Q]."""
        last = self.added[replays] - 1
        return last - (last - places) % self.capacity

    def holds(self, replays: IntArray, numbers: IntArray) -> BoolArray:
        """Which items [Q] of replays [Q] nothing has taken the place of since."""
        new = self.added[replays]
        return (new - self.sizes[replays] <= numbers) & (numbers < new)

    def clear(self, replay: int) -> None:
        """Empty one ring; what comes next has a number that nothing had before."""
        self._begin(replay, 0, 0)

    def inherit(self, parents: IntArray) -> None:
        """Ring i becomes a copy of ring parents[i], which must keep its own."""
        for heir in np.flatnonzero(parents != np.arange(self.num_replays)).tolist():
            parent = int(parents[heir])
            first, source, size = heir * self.capacity, parent * self.capacity, self.sizes[parent]
            self._rows[first : first + size] = self._rows[source : source + size]
            self._begin(heir, int(self.added[parent]), int(size))

    def keep(self, replays: IntArray) -> None:
        """Only these rings are left, in this order; -1: one as if nothing had ever been in it."""
        rows = self._rows.view(self.num_replays, -1)[torch.from_numpy(replays).to(self.device)]
        self._hold(rows.view(-1, rows.shape[1] // self.capacity), len(replays))
        empty = replays < 0
        self.added = np.where(empty, 0, self.added[replays])
        self.sizes = np.where(empty, 0, self.sizes[replays])

    def state_dict(self, replay: int = 0) -> dict[str, Tensor]:
        """One ring: what it holds, and where it stands; slots never written are left out.

        These are views of the store, not copies: write them before the next `add`.
        """
        first, size = replay * self.capacity, int(self.sizes[replay])
        state = {name: stored[first : first + size] for name, stored in self._store.items()}
        state["capacity"] = torch.tensor([self.capacity])
        state["position"] = torch.tensor([self.added[replay] % self.capacity])
        state["added"] = torch.tensor([self.added[replay]])
        return state

    def load_state_dict(self, state: dict[str, Tensor], replay: int = 0) -> None:
        """One ring becomes what a ring was, of this buffer or of another with the same geometry."""
        first, size = replay * self.capacity, len(state["action"])
        if int(state["capacity"].item()) != self.capacity or any(
            state[name].shape != (size, *stored.shape[1:]) or state[name].dtype != stored.dtype
            for name, stored in self._store.items()
        ):
            raise ValueError("the replay had another capacity or other items when it was saved")
        position = int(state["position"].item())
        if size > self.capacity or position != (
            position % self.capacity if size == self.capacity else size
        ):
            raise ValueError(f"the replay has {size} items, and the next one at {position}")
        for name, stored in self._store.items():
            stored[first : first + size] = state[name].to(self.device)
        whole = self.capacity if size == self.capacity else 0
        added = int(state["added"].item()) if "added" in state else whole + position  # older ones
        if not size <= added <= MOST_ADDED or added % self.capacity != position:
            raise ValueError(f"the replay counts {added} items, and the next one is at {position}")
        self._begin(replay, added, size)

    def _hold(self, rows: Tensor, replays: int) -> None:
        """The items of so many rings, [R * C, bytes / WORD]."""
        self._rows, self.num_replays = rows, replays
        self._store = self._layout.fields(rows)
        here = self.device.type == "cpu"
        self._arrays = [field.numpy() for field in self._store.values()] if here else None

    def _begin(self, replay: int, added: int, size: int) -> None:
        """A ring holds other items from now on; if it ever held any, they get new numbers."""
        if given := int(self.added[replay]):
            rounds = -(-(given + size - added) // self.capacity)
            added += max(rounds, 0) * self.capacity  # in the same places
        self.added[replay], self.sizes[replay] = added, size

    def _write(self, slots: IntArray, values: Sequence[AnyArray]) -> None:
        if self._arrays is not None:  # a fifth of the time that PyTorch takes for so few items
            for array, value in zip(self._arrays, values, strict=True):
                array[slots] = value
            return
        index = torch.from_numpy(slots).to(self.device)
        for stored, value in zip(self._store.values(), values, strict=True):
            # from_numpy takes neither read-only nor reversed arrays as they are
            fresh = torch.from_numpy(np.require(value, requirements=["C", "W"]))
            stored.index_copy_(0, index, fresh.to(device=self.device, dtype=stored.dtype))

    def _route(self, replay_index: IntArray) -> tuple[IntArray, BoolArray, IntArray]:
        """Slot of every item, which items are kept, and how many came for each replay."""
        count = len(replay_index)
        added = np.bincount(replay_index, minlength=self.num_replays)
        order = np.argsort(replay_index, kind="stable")
        rank = np.empty(count, np.int64)  # items of this call before it for its replay
        rank[order] = np.arange(count) - np.repeat(np.cumsum(added) - added, added)
        place = (self.added[replay_index] + rank) % self.capacity
        keep = rank >= added[replay_index] - self.capacity
        return replay_index * self.capacity + place, keep, added
