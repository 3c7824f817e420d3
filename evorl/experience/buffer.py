"""The ring that holds every window, in preallocated tensors.

R replays (one shared by all agents, or one for each), C capacity of one replay, K items of one
call, n steps of a window. Item c of replay r lies in flat slot r*C + c.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evorl.experience.packing import WORD, RowLayout
from evorl.experience.transitions import AnyArray, BoolArray, IntArray, Items, Transitions
from evorl.machine import check_fits


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
    ) -> None:
        if capacity < 1 or num_replays < 1:
            raise ValueError(
                f"a buffer of {num_replays} replays of {capacity} items: both must be at least 1"
            )
        if isinstance(obs_dtype, np.dtype):
            obs_dtype = torch.from_numpy(np.empty(0, obs_dtype)).dtype
        self.capacity = capacity
        self.num_replays = num_replays
        self.device = torch.device(device)
        self._layout = RowLayout(
            {
                "obs": (obs_shape, obs_dtype),
                "action": ((), torch.int64),
                "rewards": ((n_step,), reward_dtype),
                "next_obs": (obs_shape, obs_dtype),
                "bootstrap": ((), torch.uint8),
            }
        )
        size = num_replays * capacity * self._layout.words * WORD
        check_fits(size, f"replay.capacity={capacity}", "use a smaller one")
        self._rows = self._layout.empty(num_replays * capacity, self.device)
        self._store = self._layout.fields(self._rows)
        here = self.device.type == "cpu"
        self._arrays = [field.numpy() for field in self._store] if here else None
        self._position = np.zeros(num_replays, np.int64)  # where the next item goes
        self._size = np.zeros(num_replays, np.int64)

    @property
    def sizes(self) -> IntArray:
        """[R] items held by each replay (a live view: read only)."""
        return self._size

    @property
    def reward_dtype(self) -> torch.dtype:
        """The type of rewards, which weights share."""
        return self._store.rewards.dtype

    @property
    def item_bytes(self) -> int:
        """The size of one stored item."""
        return self._layout.words * WORD

    def add(self, transitions: Transitions, replay_index: IntArray | None = None) -> IntArray:
        """Stores `transitions` in order, item k in replay `replay_index[k]`; gives the slots.

        Of more than C items for one ring only the newest C are written: no slot is repeated.
        """
        self._check_shapes(transitions)
        count = len(transitions.action)
        if self.num_replays == 1:
            kept = min(count, self.capacity)
            # The ring moves on by all of them, as if they had come one at a time.
            slots: IntArray = (self._position + np.arange(count - kept, count)) % self.capacity
            added = np.array([count])
            values = [field[count - kept :] for field in transitions[:5]]
        else:
            slots, keep, added = self._route(replay_index, count)
            values = list(transitions[:5])
            if not keep.all():
                slots = slots[keep]
                values = [field[keep] for field in values]
        self._write(slots, values)
        self._position = (self._position + added) % self.capacity
        self._size = np.minimum(self._size + added, self.capacity)
        return slots

    def _write(self, slots: IntArray, values: Sequence[AnyArray]) -> None:
        if self._arrays is not None:  # a fifth of the time that PyTorch takes for so few items
            for array, value in zip(self._arrays, values, strict=True):
                array[slots] = value
            return
        index = torch.from_numpy(slots).to(self.device)
        for stored, value in zip(self._store, values, strict=True):
            # from_numpy takes neither read-only nor reversed arrays as they are
            fresh = torch.from_numpy(np.require(value, requirements=["C", "W"]))
            stored.index_copy_(0, index, fresh.to(device=self.device, dtype=stored.dtype))

    def gather(self, slots: Tensor) -> Items:
        """The items in flat `slots`."""
        return self._layout.fields(torch.index_select(self._rows, 0, slots))

    def inherit(self, parents: IntArray) -> None:
        """Ring i becomes a copy of ring parents[i], which must keep its own."""
        for heir in np.flatnonzero(parents != np.arange(self.num_replays)):
            first, source = heir * self.capacity, parents[heir] * self.capacity
            size = self._size[parents[heir]]
            self._rows[first : first + size] = self._rows[source : source + size]
        self._position, self._size = self._position[parents], self._size[parents]

    def state_dict(self) -> dict[str, Tensor]:
        """What is held, and where the rings stand; slots never written are left out.

        With one replay these are views of the store, not copies: write them before the next `add`.
        """
        state = {
            name: self._held(stored)
            for name, stored in zip(self._store._fields, self._store, strict=True)
        }
        state["capacity"] = torch.tensor([self.capacity])
        state["position"] = torch.from_numpy(self._position.copy())
        state["size"] = torch.from_numpy(self._size.copy())
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes over a state exactly; refuses one of another geometry."""
        rings = (int(state["capacity"].item()), len(state["size"]))
        if rings != (self.capacity, self.num_replays):
            raise ValueError(
                f"replay state of capacity {rings[0]} × {rings[1]} replays does not fit a buffer "
                f"of {self.capacity} × {self.num_replays}: make the buffer as it was when saved"
            )
        for name, stored in zip(self._store._fields, self._store, strict=True):
            if state[name].shape[1:] != stored.shape[1:] or state[name].dtype != stored.dtype:
                raise ValueError(
                    f"replay state holds {name} of {tuple(state[name].shape[1:])} "
                    f"{state[name].dtype}, this buffer {tuple(stored.shape[1:])} {stored.dtype}"
                )
        self._position = state["position"].cpu().numpy().copy()
        self._size = state["size"].cpu().numpy().copy()
        for name, stored in zip(self._store._fields, self._store, strict=True):
            parts = torch.split(state[name], self._size.tolist())
            for replay, part in enumerate(parts):
                stored[replay * self.capacity :][: len(part)] = part.to(self.device)

    def export(self, replay: int) -> dict[str, Tensor]:
        """One ring, to go to another buffer of the same geometry."""
        first, size = replay * self.capacity, int(self._size[replay])
        state = {
            name: stored[first : first + size].contiguous()
            for name, stored in zip(self._store._fields, self._store, strict=True)
        }
        state["position"] = torch.tensor([self._position[replay]])
        return state

    def take_over(self, replay: int, state: dict[str, Tensor]) -> None:
        """Ring `replay` becomes one that was exported elsewhere."""
        first, size = replay * self.capacity, len(state["action"])
        for name, stored in zip(self._store._fields, self._store, strict=True):
            stored[first : first + size] = state[name].to(self.device)
        self._position[replay], self._size[replay] = int(state["position"].item()), size

    def _held(self, stored: Tensor) -> Tensor:
        """Each ring's filled part: it grows from the front, so that is a prefix."""
        rings = [
            stored[replay * self.capacity :][:size]
            for replay, size in enumerate(self._size.tolist())
        ]
        return rings[0] if len(rings) == 1 else torch.cat(rings)

    def _route(
        self, replay_index: IntArray | None, count: int
    ) -> tuple[IntArray, BoolArray, IntArray]:
        """Slot of every item, which items are kept, and how many came for each replay."""
        if replay_index is None or len(replay_index) != count:
            got = "none" if replay_index is None else f"{len(replay_index)} indices"
            raise ValueError(
                f"{self.num_replays} replays, {count} items: each item needs its replay, got {got}"
            )
        added = np.bincount(replay_index, minlength=self.num_replays)
        if len(added) > self.num_replays:
            raise ValueError(
                f"replay {len(added) - 1} of a buffer of {self.num_replays} replays does not exist"
            )
        order = np.argsort(replay_index, kind="stable")
        rank = np.empty(
            count, np.int64
        )  # how many items of this call came before it for its replay
        rank[order] = np.arange(count) - np.repeat(np.cumsum(added) - added, added)
        place = (self._position[replay_index] + rank) % self.capacity
        keep = rank >= added[replay_index] - self.capacity
        return replay_index * self.capacity + place, keep, added

    def _check_shapes(self, transitions: Transitions) -> None:
        for name in ("obs", "rewards", "next_obs"):
            got = getattr(transitions, name).shape[1:]
            expected = getattr(self._store, name).shape[1:]
            if got != expected:
                raise ValueError(f"{name} of shape {got} in a buffer of {tuple(expected)}")
