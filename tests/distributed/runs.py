"""Whole training runs as a user starts them: in one process, or on ranks."""

import contextlib
import json
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

from evorl.distributed.meeting_place import PREFIX
from tests.processes import SAY_WHERE, Command, Forked

from .launching import CONFIGS, MARK, WORLDS, Launch

BIN = Path(sys.executable).parent
HALVES = (".new", ".old")  # of what is written aside
START, GENERATION = 0.6, 0.2  # about the seconds that they take in a forked process
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
    """A command that trains, with all processes that it starts.

    They are forked from one that has imported everything; `real` ones begin as a user's do.
    """

    def __init__(
        self,
        folder,
        *words,
        ranks=1,
        restarts=0,
        mixed_precision="no",
        script=None,
        environment=None,
        real=False,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.output = folder / f"output-{self.mark}"
        self.temporary = Path(tempfile.mkdtemp())  # not in the folder: sockets need short names
        weakref.finalize(self, shutil.rmtree, self.temporary, ignore_errors=True)
        own = {**(environment or {}), MARK: self.mark, "TMPDIR": str(self.temporary)}
        what = ["-m", "evorl"] if script is None else [script]
        command = Command(
            [str(word) for word in (*what, *words)],
            folder,
            self.output,
            os.environ | own,
            ranks,
            restarts,
            mixed_precision,
        )
        self.launcher = _started(command) if real else Forked(command)

    def processes(self):
        """All that are alive, the launcher included."""
        found = []
        for process in psutil.process_iter():
            try:
                if self._is_one(process) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, ProcessLookupError):  # gone meanwhile, or another user's
                pass
        return found

    def _is_one(self, process):
        """Forked processes have the environment of another, but are all of one session."""
        if os.getsid(process.pid) == self.launcher.pid:
            return True
        return process.environ().get(MARK) == self.mark

    def ranks(self):
        """The processes that train."""
        if isinstance(self.launcher, Forked):
            try:
                return psutil.Process(self.launcher.pid).children()
            except psutil.Error:
                return []
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if "RANK" in process.environ():
                    found.append(process)
        return found

    def kill(self, processes=None):
        if processes is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.launcher.pid, signal.SIGKILL)  # at once
            processes = self.processes()
        for process in processes:
            with contextlib.suppress(psutil.Error):  # gone meanwhile
                process.send_signal(signal.SIGKILL)

    def wait(self, limit=180):
        """Its exit code and what it said; nothing may be left of it."""
        try:
            code = self.launcher.wait(limit)
        except subprocess.TimeoutExpired:
            self.say_where()
            self.kill()
            raise AssertionError(f"not done after {limit} s:\n{self.said()}") from None
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.kill(left)
        assert not left, f"left behind {left}:\n{self.said()}"
        files = [path for path in self.temporary.iterdir() if path.name[:5] != "torch"]
        if code:  # where the launcher has killed some, whoever starts next removes their folder
            files = [path for path in files if not path.name.startswith(PREFIX)]
        assert not files, f"left behind {files}:\n{self.said()}"  # but for torch's own
        return code, self.said()

    def say_where(self):
        """Forked processes print where they are; a real one would end."""
        if isinstance(self.launcher, Forked):
            for process in self.processes():
                with contextlib.suppress(psutil.Error):
                    process.send_signal(SAY_WHERE)
                time.sleep(0.2)  # one after another

    def said(self):
        return self.output.read_text()


def _started(command):
    """As a user starts it: python, or accelerate launch."""
    words = [BIN / "python"]
    if command.ranks > 1:
        words = [BIN / "accelerate", "launch", "--config_file", CONFIGS / "cpu.yaml"]
        words += ["--num_processes", command.ranks, "--main_process_port", 0]
        words += ["--max_restarts", command.restarts]
        words += ["--mixed_precision", command.mixed_precision]
    with command.output.open("w") as output:
        return subprocess.Popen(
            [str(word) for word in (*words, *command.words)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=command.folder,
            env=command.environment,
            start_new_session=True,
        )


def launch_world(folder, case, ranks=2, limit=90):
    """Run one case of worlds.py in all ranks, which are forked."""
    begun = time.monotonic()
    run = Run(folder, case, folder, ranks=ranks, script=WORLDS)
    code, said = run.wait(limit)
    return Launch(code, said, time.monotonic() - begun, folder)


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


def same_but_mesh(one, two):
    """Checkpoints that differ in nothing but the ranks that wrote them."""
    (name, files), (other_name, others) = newest(one), newest(two)
    assert name == other_name
    assert files.keys() == others.keys()
    for file in files.keys() - {"manifest.json"}:
        assert files[file] == others[file], file
    manifests = [json.loads(own["manifest.json"]) for own in (files, others)]
    for manifest in manifests:
        manifest.pop("sha256")
        manifest["state"].pop("mesh")
    assert manifests[0] == manifests[1]


def wait_for(condition, limit=60):
    """Until it is true."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit} s in vain"
        time.sleep(0.02)


def generation_of(directory):
    """The newest checkpoint's number, -1 if there is none."""
    found = (directory / "checkpoints").glob("generation-*")
    return max((int(path.name[11:17]) for path in found), default=-1)


def any_moment(random_state: random.Random, directory, generation):
    """Wait until a run is in a generation, and for a random moment within it or its saving."""
    wait_for(lambda: generation_of(directory) >= generation)
    time.sleep(random_state.random() * GENERATION)


def some_time(random_state: random.Random, run, directory):
    """Wait for a random moment of a run that has just begun; False if it ends before.

    Mostly it gets one generation further, so that a run that is killed again and again moves on.
    """
    further = generation_of(directory) + random_state.choice([1, 1, 2])
    starting = random_state.random() < 0.2
    deadline = time.monotonic() + (random_state.random() * START if starting else 60)
    while (
        run.launcher.poll() is None
        and generation_of(directory) < further
        and time.monotonic() < deadline
    ):
        time.sleep(0.005)
    if not starting:
        time.sleep(random_state.random() * GENERATION)
    return run.launcher.poll() is None
