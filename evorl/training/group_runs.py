"""Runs of a group side by side, each in a process of its own.

They are forked, so that torch is imported once: nothing here may compute with it. What they would
print is in a file beside their folder.
"""

import multiprocessing
import os
import sys
from multiprocessing import connection
from pathlib import Path

from evorl.config import RunConfig, dump_config, parse_text
from evorl.errors import EvorlError
from evorl.machine import end_with_parent, share_cores
from evorl.reporting import Console, GroupView, own_lock, show_warnings_on
from evorl.runs import Group, RunDirectory, run_error
from evorl.training.signals import ending_on_signals
from evorl.training.trainer import train

LEAVE = 60.0  # seconds that a run may take to end when it is asked to
LOOKS = 0.5  # seconds between two looks at what the runs have written


def train_group(group: Group, console: Console) -> dict[str, str]:
    """Train all runs that are not finished, some at a time; those that have failed, and why."""
    with RunDirectory(group.path).locked():
        waiting, running = group.unfinished(), dict[int, _RunProcess]()
        slots, failed = min(group.jobs, len(waiting)), dict[str, str]()
        view = GroupView(console, group, [config.budget.env_steps for config in group.configs()])
        try:
            while waiting or running:
                for slot in range(slots):
                    if waiting and slot not in running:
                        running[slot] = _RunProcess(group, waiting.pop(0), slot, slots)
                connection.wait([own.sentinel for own in running.values()], LOOKS)
                view.update()
                for slot in [slot for slot, own in running.items() if own.exitcode is not None]:
                    ended = running.pop(slot)
                    if ended.exitcode:
                        failed[ended.name] = ended.problem()
                    view.ended(ended.name, failed.get(ended.name))
        finally:
            console.close()
            for own in running.values():
                own.terminate()
            for own in running.values():
                own.join()
    return failed


class _RunProcess:
    """One of the runs, while it trains."""

    def __init__(self, group: Group, config: RunConfig, slot: int, slots: int) -> None:
        self.name, self.log = config.name, group.log(config.name)
        if self.log.is_symlink():  # what is written there would go elsewhere
            raise run_error(self.log, "is a link; remove it")
        self._start = self.log.stat().st_size if self.log.exists() else 0  # of what it adds
        given = (dump_config(config), self.log, slot, slots, os.getpid())
        self._process = multiprocessing.get_context("fork").Process(target=_train, args=given)
        self._process.start()
        self.sentinel, self.terminate = self._process.sentinel, self._process.terminate

    @property
    def exitcode(self) -> int | None:
        """None while it runs."""
        return self._process.exitcode

    def join(self) -> None:
        """Wait until it has left, but not for ever."""
        self._process.join(LEAVE)
        self._process.kill()
        self._process.join()

    def problem(self) -> str:
        """Why it has ended, as its output has it."""
        with self.log.open("rb") as file:
            file.seek(self._start)
            lines = file.read().decode(errors="replace").splitlines()
        said = [line for line in lines if line.startswith("error: ")]
        if said:
            return said[-1].removeprefix("error: ")
        return f"its process ended with code {self.exitcode}; see {self.log}"


def _train(config: str, log: Path, slot: int, slots: int, parent: int) -> None:
    """In the new process: train, or resume what is there."""
    end_with_parent(parent)
    sys.stdout = sys.stderr = log.open("a", buffering=1, encoding="utf-8")
    for number in (1, 2):
        os.dup2(sys.stdout.fileno(), number)
    own_lock()
    share_cores(slot, slots)
    console = Console()
    show_warnings_on(console)
    try:
        with ending_on_signals():
            train(parse_text(config, "the group's configuration"), console=console, resume="auto")
    except EvorlError as error:
        print(*getattr(error, "__notes__", ()), f"error: {error}", sep="\n")
        sys.exit(2)
    except KeyboardInterrupt as error:
        print("error: interrupted")
        sys.exit(getattr(error, "exit_code", 130))
