"""What faults.py starts: a learner that writes down what it sees, and who joins it.

    python benchmarks/faulty.py learn CONFIG.json FOLDER SECONDS   # so long it needs for a message
    python benchmarks/faulty.py join ADDRESS TOKEN_FILE FOLDER

Its environment is CartPole, and counts the steps of each process in FOLDER/steps.
"""

import json
import mmap
import os
import struct
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

FOLDER = "FAULTS_FOLDER"
STEPS = struct.Struct("<q")
LOOK = 0.25  # seconds between two lines on messages taken


@cache
def counter(process: int) -> mmap.mmap:
    """The steps of this process, in a file that outlives it."""
    folder = Path(os.environ[FOLDER]) / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / str(process)).open("a+b") as file:
        file.truncate(STEPS.size)
        return mmap.mmap(file.fileno(), STEPS.size)


class Counted(CartPoleEnv):
    """CartPole that counts its steps."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.counter = counter(os.getpid())

    def step(self, action: Any) -> Any:
        """One more."""
        STEPS.pack_into(self.counter, 0, STEPS.unpack_from(self.counter)[0] + 1)
        return super().step(action)


gymnasium.register("Counted-v0", Counted, max_episode_steps=500)


def learn(config: str, folder: str, seconds: str) -> None:
    """Train until there is a file FOLDER/stop."""
    import evorl
    from evorl.actors import BusExchange, Inbox
    from evorl.pipeline import Receive

    notes, slow = Path(folder), float(seconds)
    accept, call, begin = Inbox.accept, Receive.__call__, BusExchange.__init__
    known: set[Any] = set()
    heard: dict[int, list[int]] = {}  # of each slot, how many were refused and were taken
    buses: list[Any] = []
    due = 0.0

    def logged(self: Any, fields: Any, peer: Any = None) -> Any:
        nonlocal due
        message, now = accept(self, fields, peer), time.time()
        heard.setdefault(peer, [0, 0])[message is not None] += 1
        if message is not None and (who := (peer, fields["session"])) not in known:
            known.add(who)
            write(notes / "first", {"slot": peer, "at": now})
        if now >= due:
            due = now + LOOK
            write(notes / "heard", {"at": now, "slots": heard, "bus": dict(buses[0].counts)})
        return message

    def slowly(self: Any, context: Any) -> None:
        time.sleep(slow)
        call(self, context)

    def begun(self: Any, inbox: Any, bus: Any, **options: Any) -> None:
        buses.append(bus)
        begin(self, inbox, bus, **options)

    class UntilTold(evorl.Callback):
        def on_evaluated(self, event: evorl.Event) -> None:
            if (notes / "stop").exists():
                event.stop()

    Inbox.accept, BusExchange.__init__ = logged, begun  # type: ignore[method-assign]
    if slow:
        Receive.__call__ = slowly  # type: ignore[method-assign]
    from evorl.reporting import Console, show_warnings_on

    console = Console()
    show_warnings_on(console)
    evorl.train(json.loads(Path(config).read_text()), callbacks=[UntilTold()], console=console)


def join(address: str, token_file: str, folder: str) -> None:
    """Join, as `evorl actor` does, and say when all was imported."""
    import torch

    from evorl.actors import Inbox  # noqa: F401
    from evorl.cli import one_line_errors
    from evorl.training import joining
    from evorl.training.trainer import train  # noqa: F401

    torch.zeros(1)
    token = joining.read_token(Path(token_file))
    write(Path(folder) / "imported", {"at": time.time(), "process": os.getpid()})
    with one_line_errors():
        joining.join(address, token, 5.0, print)


def write(path: Path, line: dict[str, Any]) -> None:
    """Append a line."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    {"learn": learn, "join": join}[sys.argv[1]](*sys.argv[2:])
