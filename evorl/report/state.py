"""How a run is going: finished, running, or stopped."""

import fcntl
from typing import Literal

from evorl.run_directory import CONFIG, LINEAGE, LOCK, METRICS, SUMMARY, RunDirectory

State = Literal["finished", "running", "stopped"]


def state_of(directory: RunDirectory) -> State:
    """Running is what a process holds the lock of, on this machine or a shared disk."""
    if directory.finished:
        return "finished"
    return "running" if _is_locked(directory) else "stopped"


def updated(directory: RunDirectory) -> float:
    """When the run last wrote something, in seconds since 1970."""
    times = [0.0]
    for name in (CONFIG, METRICS, LINEAGE, SUMMARY):
        try:
            times.append((directory.path / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)


def _is_locked(directory: RunDirectory) -> bool:
    try:
        with (directory.path / LOCK).open("rb") as file:
            # Shared, and given back at once: RunDirectory.locked waits that long.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
