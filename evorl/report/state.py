"""How a run is going: finished, running, or stopped."""

from typing import Literal

from evorl.run_directory import CONFIG, LINEAGE, METRICS, SUMMARY, RunDirectory

State = Literal["finished", "running", "stopped"]


def state_of(directory: RunDirectory) -> State:
    """Running is what a process holds the lock of, on this machine or a shared disk."""
    if directory.finished:
        return "finished"
    return "running" if directory.running else "stopped"


def updated(directory: RunDirectory) -> float:
    """When the run last wrote something, in seconds since 1970."""
    times = [0.0]
    for name in (CONFIG, METRICS, LINEAGE, SUMMARY):
        try:
            times.append((directory.path / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)
