"""A barrier that knows who is missing, and a roll call after a collective has failed.

The ranks meet in the launcher's key-value store: it outlives a rank, every rank can look up who
came, and one that waits there can still be interrupted, unlike in a collective.
"""

import itertools
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from evorl.distributed.failure import ADVICE, ranks, telling
from evorl.distributed.launch import restarts
from evorl.errors import RunError

LONGEST_PAUSE = 0.05  # seconds between two looks
GRACE = 5.0  # seconds after the time-out in which an ordinary error should have come
PATIENCE = 4.5  # seconds in which ranks that live say so after a collective has failed
ALL_CAME = b"all came"

_numbers = itertools.count()  # meetings of one process share the store


class Meeting:
    """The same ranks, time after time; made by all of them in the same order."""

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self._rank, self._size, self._timeout = rank, size, timeout
        self._times = 0
        store = launchers_store(timedelta(seconds=timeout))
        self._store = PrefixStore(f"meeting{next(_numbers)}", store)

    def meet(self, where: str) -> None:
        """Wait for the other ranks; all ranks leave, or all raise the same RunError."""
        self._times += 1
        lost = f"{where}: rank {self._rank} lost the launcher of the main machine"
        with telling(lost), _at_most(self._timeout + GRACE, lost):
            verdict = self._wait([self._key(rank) for rank in range(self._size)])
            if verdict == ALL_CAME:
                self._forget_the_last()
        if verdict != ALL_CAME:
            raise RunError(
                f"{where}: {verdict.decode()} did not come within {self._timeout:g} s; {ADVICE}"
            )

    def silent(self, others: Iterable[int]) -> list[int]:
        """Say that a collective has failed here, and look which of the others don't say so.

        Nobody, if the store is gone too. It is asked by a thread: it may never reply, and a signal
        still ends the wait at once.
        """
        missing, given_up = set[int](), threading.Event()

        def call_the_roll() -> None:
            with suppress(RuntimeError):
                self._store.set(f"lost/{self._rank}", "here")
                left = set(others) - {self._rank}
                while left and not given_up.wait(LONGEST_PAUSE):
                    left = {rank for rank in left if not self._store.check([f"lost/{rank}"])}
                missing.update(left)

        caller = threading.Thread(target=call_the_roll, daemon=True)
        try:
            caller.start()
            deadline = time.monotonic() + PATIENCE
            while caller.is_alive() and time.monotonic() < deadline:
                # in short waits: one that a signal comes just before would never hear of it
                caller.join(LONGEST_PAUSE)
        finally:
            given_up.set()
        caller.join(10 * LONGEST_PAUSE)
        return sorted(missing)

    def _wait(self, keys: list[str]) -> bytes:
        self._store.set(keys[self._rank], "here")
        deadline = time.monotonic() + self._timeout
        pause = 0.0005
        while not (came := self._store.check(keys)) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        missing = [] if came else [i for i, key in enumerate(keys) if not self._store.check([key])]
        # The first to decide decides for all: nobody goes on where another has given up.
        verdict = ranks(missing) if missing else ALL_CAME.decode()
        decided: bytes = self._store.compare_set(self._key("verdict"), "", verdict)
        return decided

    def _forget_the_last(self) -> None:
        """Where all came, nobody looks at the keys of the time before any more."""
        self._store.delete_key(self._key(self._rank, self._times - 1))
        if self._rank == 0:
            self._store.delete_key(self._key("verdict", self._times - 1))

    def _key(self, what: int | str, times: int | None = None) -> str:
        return f"{self._times if times is None else times}/{what}"


def launchers_store(timeout: timedelta) -> PrefixStore:
    """The launcher's key-value store, without what was there before it started all ranks again."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timeout)
    return PrefixStore(f"evorl/attempt{restarts()}", store)


@contextmanager
def _at_most(seconds: float, lost: str) -> Iterator[None]:
    """Ends the process if what is inside takes longer.

    Where a cable was cut, nothing comes back from the store, not even an error: torch waits on.
    """

    def end() -> None:
        sys.stderr.write(f"error: {lost}, which has not answered for {seconds:g} s; {ADVICE}\n")
        sys.stderr.flush()
        os._exit(2)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
