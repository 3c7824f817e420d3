"""Ranks that cannot be reached, in one line; and the launcher's key-value store.

There ranks can talk before there is a World, or after it broke. It outlives a rank, and a rank
that waits there can still be interrupted, unlike in a collective.
"""

import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from evorl.distributed.launch import (
    SPEAKS_AFTER,
    is_main_process_of_launch,
    launched_ranks,
    restarts,
)
from evorl.errors import RunError

ADVICE = "look for an error above, and start the run again"
SHOWN = 160  # characters of torch's own words
PLACE = re.compile(r"^(Gloo \w+ failed with )?\[\S+:\d+\] ")  # a file of gloo's, and its line
START = timedelta(minutes=5)  # for the main rank to read a file
# Seconds in which ranks that live say so after a collective has failed. More than a rank with an
# error of its own takes to print it: the launcher ends all as soon as the first one has left.
PATIENCE = SPEAKS_AFTER + 2.0
PAUSE = 0.05  # seconds between two looks

_numbers = itertools.count()  # roll calls of one process share the store


@contextmanager
def rank_errors(
    what: str, advice: str = ADVICE, silent: Callable[[], list[int]] = list
) -> Iterator[None]:
    """Makes a RunError of what torch.distributed raises: RuntimeErrors, often of many lines.

    `silent` is asked then which ranks don't answer: they are named.
    """
    try:
        yield
    except RuntimeError as error:
        line = (str(error).splitlines() or [""])[0]
        reason = PLACE.sub("", line).split(". ")[0][:SHOWN] or type(error).__name__
        missing = silent()
        ranks, do = ("rank", "does") if len(missing) == 1 else ("ranks", "do")
        whose = f"{ranks} {', '.join(map(str, missing))} {do} not answer; " if missing else ""
        raise RunError(f"{what} ({reason}); {whose}{advice}") from error


def launcher_store(timeout: timedelta) -> PrefixStore:
    """The store, without what was there before the launcher started all ranks again."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timeout)
    return PrefixStore(f"evorl/attempt{restarts()}", store)


def read_on_main_rank(read: Callable[[], str]) -> str:
    """What `read` gives on the main rank, on every rank, before there is a World; only once.

    A run's folder may be on the main rank's disk alone, and says how to lay out the ranks.
    """
    if launched_ranks() == 1:
        return read()
    with rank_errors("start: the main rank said nothing"):
        store = launcher_store(START)
        if not is_main_process_of_launch():
            return str(store.get("config").decode())
    text = read()
    store.set("config", text)
    return text


class RollCall:
    """Finds the ranks that are missing after a collective has failed; made by all, in one order.

    torch's monitored_barrier names them too, but on the main rank alone and in a barrier alone.
    """

    def __init__(self, rank: int, timeout: timedelta) -> None:
        self._rank = rank
        self._store = PrefixStore(f"roll{next(_numbers)}", launcher_store(timeout))

    def silent(self, others: Iterable[int]) -> list[int]:
        """Say that this rank is here, and see which of the others don't say so.

        Nobody, if the store is gone too. It is asked by a thread: it may never reply, and a signal
        still ends the wait at once.
        """
        missing, given_up = set[int](), threading.Event()

        def call() -> None:
            with suppress(RuntimeError):
                self._store.set(str(self._rank), "here")
                left = set(others) - {self._rank}
                while left and not given_up.wait(PAUSE):
                    left = {rank for rank in left if not self._store.check([str(rank)])}
                missing.update(left)

        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        deadline = time.monotonic() + PATIENCE
        while caller.is_alive() and time.monotonic() < deadline:
            # in short waits: one that a signal comes just before would never hear of it
            caller.join(PAUSE)
        given_up.set()
        caller.join(10 * PAUSE)
        return sorted(missing)
