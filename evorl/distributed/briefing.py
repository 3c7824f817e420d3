"""What ranks must know before they can meet: the main rank reads it, the launcher's store tells it.

A run's folder may be on the main rank's disk only, and how many ranks share which agents is written
down in it.
"""

from collections.abc import Callable
from datetime import timedelta

from evorl.distributed.barrier import launchers_store
from evorl.distributed.failure import telling
from evorl.distributed.launch import is_main_process_of_launch, launched_ranks

PATIENCE = timedelta(minutes=5)  # the main rank has only a file to read
KEY = "briefing"


def briefed(read: Callable[[], str]) -> str:
    """What `read` gives on the main rank, on every rank; once in a process."""
    if launched_ranks() == 1:
        return read()
    with telling("start: the main rank said nothing"):
        store = launchers_store(PATIENCE)
        if not is_main_process_of_launch():
            return str(store.get(KEY).decode())
    text = read()
    store.set(KEY, text)
    return text
