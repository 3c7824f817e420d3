"""Whole training runs as a user starts them: in one process, or on ranks."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from pathlib import Path

import psutil

from .launching import CONFIGS, MARK

BIN = Path(sys.executable).parent
HALVES = (".new", ".old")  # of what is written aside
SMALL = """
name: run
seed: 3
env: {id: CartPole-v1, num_envs: 2, backend: sync}
algorithm: {learning_starts: 20, batch_size: 16, n_step: 2}
network: {hidden: [16, 16]}
replay: {share: agent, capacity: 300}
population: {size: 4}
evaluation: {every: 60, episodes: 2, confirm_episodes: 2, final_episodes: 2, max_steps: 100}
evolution: {selection: {min_gap: 0}, mutation: {architecture: 0.5}}
budget: {env_steps: 2880}
compile: false
"""  # six generations of 480 steps


class Run:
    """A command that trains, with all processes that it starts."""

    def __init__(self, folder, *words, ranks=1, options=(), script=None, environment=None):
        self.folder, self.mark = folder, uuid.uuid4().hex
        folder.mkdir(parents=True, exist_ok=True)
        what = ["-m", "evorl"] if script is None else [script]
        command = [BIN / "python"]
        if ranks > 1:
            command = [BIN / "accelerate", "launch", "--config_file", CONFIGS / "cpu.yaml"]
            command += ["--num_processes", ranks, "--main_process_port", 0, *options]
        self.output = folder / f"output-{self.mark}"
        self.temporary = Path(tempfile.mkdtemp())  # not in the folder: sockets need short names
        weakref.finalize(self, shutil.rmtree, self.temporary, ignore_errors=True)
        with self.output.open("w") as output:
            self.launcher = subprocess.Popen(
                [str(word) for word in (*command, *what, *words)],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={
                    **os.environ,
                    **(environment or {}),
                    **{MARK: self.mark, "TMPDIR": str(self.temporary)},
                },
                start_new_session=True,
            )

    def processes(self):
        """All that are alive, the launcher included."""
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get(MARK) == self.mark
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
            except psutil.Error:
                pass
        return found

    def ranks(self):
        """The processes that train."""
        found = []
        for process in self.processes():
            try:
                if "RANK" in process.environ():
                    found.append(process)
            except psutil.Error:
                pass
        return found

    def kill(self, processes=None):
        for process in self.processes() if processes is None else processes:
            with contextlib.suppress(psutil.Error):  # gone meanwhile
                process.send_signal(signal.SIGKILL)

    def wait(self, limit=180):
        """Its exit code and what it said; nothing may be left of it."""
        try:
            code = self.launcher.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"not done after {limit} s:\n{self.said()}") from None
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.kill(left)
        assert not left, f"left behind {left}:\n{self.said()}"
        files = [path for path in self.temporary.iterdir() if path.name[:5] != "torch"]
        assert not files, f"left behind {files}:\n{self.said()}"  # but for torch's own
        return code, self.said()

    def said(self):
        return self.output.read_text()


def configured(folder):
    """The file of SMALL."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "small.yaml"
    path.write_text(SMALL)
    return path


def train(folder, *overrides, **options):
    """A whole run; the run's directory."""
    code, said = Run(folder, "train", configured(folder), *overrides, **options).wait()
    assert code == 0, said
    return folder / "runs" / "run"


def newest(directory):
    """Every file of the newest checkpoint, by name."""
    folder = sorted((directory / "checkpoints").glob("generation-*"))[-1]
    return folder.name, {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def deterministic(directory):
    """All of a run that does not depend on time: lineage, best agent and newest checkpoint.

    Nothing else may be left in its folder: no lock, no token, no half of a file.
    """
    left = [path for path in directory.rglob("*") if path.name[0] == "." or path.suffix in HALVES]
    assert not left
    files = {name: (directory / name).read_bytes() for name in ("lineage.jsonl",)}
    files |= {f"best/{path.name}": path.read_bytes() for path in (directory / "best").iterdir()}
    return files, newest(directory)


def wait_for(condition, limit=60):
    """Until it is true."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit} s in vain"
        time.sleep(0.02)


def any_moment(random_state: random.Random, directory, generation):
    """Wait until a run is in a generation, and for a random moment within it or its saving."""

    def reached():
        found = (directory / "checkpoints").glob("generation-*")
        return any(int(path.name[11:17]) >= generation for path in found)

    wait_for(reached)
    time.sleep(random_state.random() * 0.6)


def some_time(random_state: random.Random, run, directory):
    """Wait for a random moment of a run that has just begun; False if it ends before.

    Mostly it gets one generation further, so that a run that is killed again and again moves on.
    """

    def generation():
        found = (directory / "checkpoints").glob("generation-*")
        return max((int(path.name[11:17]) for path in found), default=-1)

    further = generation() + random_state.choice([1, 1, 2])
    patience = random_state.choice([10.0, 60.0, 60.0])  # or a moment of starting up
    deadline = time.monotonic() + random_state.random() * patience
    while run.launcher.poll() is None and generation() < further and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(random_state.random() * 0.5)
    return run.launcher.poll() is None
