"""Start ranks as a user does, with a time limit, and see that none is left behind."""

import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import psutil

ROOT = Path(__file__).parent.parent.parent
CONFIGS = ROOT / "configs" / "accelerate"
WORLDS = Path(__file__).parent / "worlds.py"
MARK = "EVORL_TEST_LAUNCH"  # torchrun's ranks are sessions of their own: this is how to find them


class Launch(NamedTuple):
    """A launch that has ended."""

    code: int
    output: str  # of all ranks and of the launcher
    seconds: float
    results: Path  # what the ranks wrote, as <name>.<rank>

    def said(self, name):
        """What each rank wrote under a name, by rank."""
        files = self.results.glob(f"{name}.*")
        return {int(file.suffix[1:]): file.read_text() for file in sorted(files)}


def launch(folder, case, *options, config="cpu", limit=90, **environment):
    """Run one case of worlds.py in all ranks; `options` are accelerate's."""
    return launch_machines(folder, case, [options], config, limit, **environment)[0]


def launch_machines(folder, case, machines, config, limit=90, **environment):
    """A launcher for each element of `machines`, which has its options."""
    mark = uuid.uuid4().hex
    started = time.monotonic()
    launchers, outputs = [], []
    for number, options in enumerate(machines):
        outputs.append(folder / f"machine{number}")
        command = [
            *(Path(sys.executable).parent / "accelerate", "launch"),
            *("--config_file", CONFIGS / f"{config}.yaml", *options),
            *(WORLDS, case, folder),
        ]
        with outputs[-1].open("w") as output:
            launchers.append(
                subprocess.Popen(
                    [str(part) for part in command],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=os.environ | environment | {MARK: mark},
                    start_new_session=True,
                )
            )
    in_time = True
    try:
        for launcher in launchers:
            launcher.wait(max(0.1, started + limit - time.monotonic()))
    except subprocess.TimeoutExpired:
        in_time = False
    seconds = time.monotonic() - started
    left = _end(mark)
    said = "\n".join(output.read_text() for output in outputs)
    assert in_time, f"not done after {limit} s:\n{said}"
    assert not left, f"left behind {left}:\n{said}"
    return [
        Launch(launcher.returncode, output.read_text(), seconds, folder)
        for launcher, output in zip(launchers, outputs, strict=True)
    ]


def free_port():
    """A port that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _end(mark):
    """Kill what is left of a launch, and say what that was."""
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                left.append(process.cmdline())
                process.kill()
        except psutil.Error:  # gone meanwhile, or another user's
            pass
    return left
