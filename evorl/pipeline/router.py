"""What a task's processes tell each other: that it is finished, and what their stages share.

    ctx.share("state_dict", "train_iter")  # on one
    task.wait(lambda: task.parallel_ctx.get("train_iter", -1) > seen)  # on another
    model.load_state_dict(task.parallel_ctx.state_dict)

Values travel as tensors and plain values, never as a pickle. Which one is the newest when somebody
looks depends on timing.
"""

import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from evorl.bus import Value
from evorl.config import did_you_mean
from evorl.distributed import Session
from evorl.errors import RunError

SENDABLE = "share numbers, words, tensors, arrays, and dicts, lists and tuples of them"
TASKS = 8  # whose last values stay on the bus: tasks of one process use these names in turn


class Shared:
    """What a process shared at once."""

    def __init__(self, value: Value) -> None:
        self._fields, self.arrival = value.fields, value.arrival
        self.names = frozenset(value.fields["tree"])

    @cached_property
    def values(self) -> dict[str, Any]:
        """By name."""
        return {name: unpack(node, self._fields) for name, node in self._fields["tree"].items()}


class ParallelContext:
    """The newest of what other processes have shared, at one moment.

    `parallel_ctx.name` is the newest of all processes, `parallel_ctx[1].name` that of rank 1. The
    tensors are those of everybody who looks: copy before you write.
    """

    def __init__(self, shared: dict[int, list[Shared]]) -> None:
        self._by_rank = shared

    @property
    def ranks(self) -> tuple[int, ...]:
        """The processes that have shared something."""
        return tuple(sorted(self._by_rank))

    def get(self, name: str, default: Any = None) -> Any:
        """The newest value of a name, or the default where nobody shared it."""
        found = [each for each in self._all() if name in each.names]
        return max(found, key=lambda each: each.arrival).values[name] if found else default

    def __getitem__(self, rank: int) -> "ParallelContext":
        return ParallelContext({rank: self._by_rank.get(rank, [])})

    def __contains__(self, name: str) -> bool:
        return any(name in each.names for each in self._all())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self:
            known = {
                known for own in self._by_rank.values() for each in own for known in each.names
            }
            raise AttributeError(
                f"parallel_ctx.{name}: no other process has shared it yet"
                f"{did_you_mean(name, known) or '; task.wait for it, or use .get'}"
            )
        return self.get(name)

    def _all(self) -> list[Shared]:
        return [each for own in self._by_rank.values() for each in own]


class Pinned(threading.local):
    """In each thread: what it goes on with, after it waited for it."""

    active = False
    context: ParallelContext | None = None


class Router:
    """The other processes of a task, if there are any."""

    def __init__(self, session: Session | None) -> None:
        self._bus = session.bus if session is not None else None
        self._number = session.next_task() if session is not None else 0
        self._groups: dict[frozenset[str], int] = {}  # names that are shared together
        self._finished = self._told = False
        self.endless = False  # whether the task runs until somebody finishes
        self._read_all = False  # of all that the others shared, and nothing new can come
        self._pinned = Pinned()
        self._lock = threading.Lock()

    @property
    def is_active(self) -> bool:
        """Whether there are other processes."""
        return self._bus is not None and self._bus.is_active

    @property
    def finished(self) -> bool:
        """Whether another process has finished.

        One that only reads what others share, without an end of its own, has finished with them.
        """
        if self._bus is not None and not self._finished:
            in_vain = self._read_all and self.endless and not self._groups
            others = self._others()
            self._finished = in_vain or any(self._latest("finish", peer) for peer in others)
        return self._finished

    @property
    def alone(self) -> bool:
        """Whether nothing new can come: those who share have ended, and all they shared is here.

        Who has not shared anything yet may still begin to, as long as the main process goes on.
        """
        if self._bus is None:
            return True
        others = self._others()
        ended = {peer for peer in others if peer in self._bus.gone or self._ended(peer)}
        sharing = {peer for peer in others if self._values(peer)}
        quiet = bool(sharing) and sharing <= ended and not ({0} & others - ended)
        return quiet or ended == others

    @property
    def parallel_ctx(self) -> ParallelContext:
        """The newest of what others have shared; in one process, nothing."""
        if self._bus is None:
            return ParallelContext({})
        if not self._pinned.active:
            return self._newest()
        if self._pinned.context is None:
            self._pinned.context = self._newest()
        return self._pinned.context

    def look(self, condition: Callable[[], object]) -> bool | None:
        """Whether it is true; None if it never will be, as all have ended whom it asks for.

        It sees one state of the others. If it is true, so does what follows in this thread.
        """
        alone = self._bus is not None and self.alone
        self._pinned.active, self._pinned.context = True, None
        if condition():
            return True
        in_vain = alone and self._pinned.context is not None
        self.unpin()
        self._finished |= in_vain
        return None if in_vain else False

    def pause(self, seconds: float) -> None:
        """Until somebody says something, or the time is over."""
        if self._bus is None:
            time.sleep(seconds)
        else:
            self._bus.pause(seconds)

    def unpin(self) -> None:
        """From now on this thread sees what is newest at any time."""
        self._pinned.active, self._pinned.context = False, None

    def describe(self) -> str:
        """What is known of the others, for an error; empty without them."""
        if self._bus is None:
            return ""
        said = []
        for peer in sorted(self._others()):
            times = [float(value.fields["time"]) for value in self._values(peer)]
            word = f"shared {time.time() - max(times):.1f} s ago" if times else "shared nothing yet"
            if peer in self._bus.gone or self._ended(peer):
                word = f"ended: {self._bus.gone.get(peer, 'it left')}"
            said.append(f"rank {peer} {word}")
        return f" ({', '.join(said)})"

    def finish(self) -> None:
        """Tell the others, also those that join later."""
        with self._lock:
            told, self._told = self._told, True
        if self._bus is not None and not told:
            self._publish("finish", {})

    def share(self, values: dict[str, Any]) -> None:
        """Send values, all at once; they replace those that had the same names."""
        if self._bus is None:
            return
        fields: dict[str, Any] = {"time": time.time()}
        tree = {name: pack(value, f"ctx.{name}", fields) for name, value in values.items()}
        with self._lock:
            group = self._groups.setdefault(frozenset(values), len(self._groups))
        self._publish(f"ctx{group}", {**fields, "tree": tree})

    def leave(self) -> None:
        """Tell the others that nothing comes from here any more."""
        if self._bus is not None and self._bus.is_active:
            own = self._bus.rank
            self._publish("ended", {"versions": [value.version for value in self._values(own)]})

    def _newest(self) -> ParallelContext:
        alone = self.alone
        found = {peer: [Shared(value) for value in self._values(peer)] for peer in self._others()}
        self._read_all |= alone
        return ParallelContext({peer: shared for peer, shared in found.items() if shared})

    def _others(self) -> set[int]:
        assert self._bus is not None
        return set(range(self._bus.size)) - {self._bus.rank}

    def _values(self, peer: int) -> list[Value]:
        assert self._bus is not None
        found: list[Value] = []
        while value := self._latest(f"ctx{len(found)}", peer):
            found.append(value)
        return found

    def _publish(self, name: str, fields: dict[str, Any]) -> None:
        assert self._bus is not None
        what = "ctx.share" if "tree" in fields else "task"
        self._bus.publish(self._named(name), {**fields, "task": self._number}, what=what)

    def _latest(self, name: str, peer: int) -> Value | None:
        """What a process said last in this task."""
        assert self._bus is not None
        found = self._bus.latest(self._named(name), peer)
        return found if found and found.fields["task"] == self._number else None

    def _named(self, name: str) -> str:
        return f"task{self._number % TASKS}/{name}"

    def _ended(self, peer: int) -> bool:
        """Whether a process has ended; its last word may be here before what it shared."""
        assert self._bus is not None
        last = self._bus.latest(self._named("ended"), peer)
        if last is None or last.fields["task"] < self._number:
            return False
        if last.fields["task"] > self._number:  # it is far ahead
            return True
        return [value.version for value in self._values(peer)] == list(last.fields["versions"])


def pack(value: Any, what: str, fields: dict[str, Any]) -> list[Any]:
    """A value as a tree of plain ones; tensors and arrays become fields of their own."""
    if isinstance(value, Tensor | np.ndarray):
        name = str(len(fields))
        fields[name] = value
        return ["raw", name]
    if isinstance(value, dict):
        if not all(type(key) in (str, int) for key in value):
            raise RunError(f"{what}: has keys that are no words; {SENDABLE}")
        items = value.items()
        return ["dict", [[key, pack(each, f"{what}.{key}", fields)] for key, each in items]]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [pack(each, f"{what}[{i}]", fields) for i, each in enumerate(value)]]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return ["plain", value]
    raise RunError(f"{what}: is a {type(value).__name__}, which cannot be sent; {SENDABLE}")


def unpack(node: Any, fields: dict[str, Any]) -> Any:
    """What `pack` was given."""
    kind, value = node
    if kind == "raw":
        return fields[value]
    if kind == "dict":
        return {key: unpack(each, fields) for key, each in value}
    if kind in ("list", "tuple"):
        parts = [unpack(each, fields) for each in value]
        return parts if kind == "list" else tuple(parts)
    return value
