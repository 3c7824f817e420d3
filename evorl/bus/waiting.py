"""Waiting for something to change, without asking all the time."""

import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")
ASK_AGAIN = 0.5  # seconds after which a wait asks its condition although nothing has changed


def never() -> bool:
    """What waiting ends for, if nothing but time ends it."""
    return False


class Deadline(NamedTuple):
    """Until when a call waits."""

    seconds: float
    at: float  # time.monotonic()
    over: Callable[[], bool] = never  # asked when something arrives: there is no use in waiting

    @classmethod
    def unless(cls, over: Callable[[], bool]) -> "Deadline":
        """For ever, but for that."""
        return cls(math.inf, math.inf, over)

    @classmethod
    def after(cls, seconds: "float | Deadline") -> "Deadline":
        """From now on; one that is known already stays as it is."""
        if isinstance(seconds, Deadline):
            return seconds
        return cls(seconds, time.monotonic() + seconds)


Timeout = float | Deadline | None  # of a call: seconds, or None for the bus's own


class Changed(threading.Condition):
    """A lock, and what tells those who wait that something has changed."""

    def __init__(self) -> None:
        lock = threading.RLock()
        super().__init__(lock)
        self.acknowledged = threading.Condition(lock)
        self.requested = threading.Condition(lock)
        self._count = 0  # of changes: who asks without the lock sees whether it missed one

    def announce(self) -> None:
        """Something has changed; with the lock held."""
        self._count += 1
        self.notify_all()
        self.acknowledged.notify_all()

    def announce_request(self) -> None:
        """Something was asked, or can be answered from now on: only who serves waits for that."""
        self.requested.notify_all()

    def announce_end(self) -> None:
        """There is nothing to wait for any more."""
        self.announce()
        self.announce_request()

    def announce_credit(self) -> None:
        """Something was acknowledged, which nobody waits for but who wants to send."""
        self._count += 1
        self.acknowledged.notify_all()

    def until(
        self,
        condition: Callable[[], T | None],
        deadline: Deadline,
        check: Callable[[], None],
        for_credit: bool = False,
    ) -> T | None:
        """What `condition` gives once it is true; None after the deadline.

        All are called without the lock: conditions may have locks of their own. `check` raises if
        there is no use in waiting any longer.
        """
        changed = self.acknowledged if for_credit else self
        while True:
            asked = self._count
            if result := condition():
                return result
            check()
            if deadline.over():
                return None
            with self:
                left = deadline.at - time.monotonic()
                if left <= 0:
                    return None
                if self._count == asked:
                    changed.wait(min(left, ASK_AGAIN))
