"""How a run is going: finished, running, or stopped."""

from typing import Literal

from evorl.run_directory import RunDirectory

State = Literal["finished", "running", "stopped"]


def state_of(directory: RunDirectory) -> State:
    """Running is what a process holds the lock of, on this machine or a shared disk."""
    if directory.finished:
        return "finished"
    return "running" if directory.running else "stopped"
