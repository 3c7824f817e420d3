"""Processes that begin with everything imported: commands, and ranks under torch's own launcher.

To import torch, Accelerate and evorl takes three seconds of a core for each process, longer than
most of what the tests run in it. So a server imports them once and forks. What is forked is a
process like any other: with its own arguments, environment, folder, output, signals and exit code.
"""

import atexit
import ctypes
import faulthandler
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

IMPORTED = "tests.imported"
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # by the launcher
SAY_WHERE = signal.SIGUSR1  # to print where all threads are
PR_SET_PDEATHSIG = 1  # of Linux: what a process gets when its parent dies


class Command(NamedTuple):
    """What a process is to do."""

    words: Sequence[str]  # of python: -m MODULE …, or SCRIPT …
    folder: Path
    output: Path  # of stdout and stderr, appended to
    environment: Mapping[str, str]
    ranks: int = 1  # with more than one there is a launcher, too
    restarts: int = 0  # of all ranks, when one dies
    mixed_precision: str = "no"  # as accelerate launch tells its ranks


class Forked:
    """A process that was forked, with what subprocess.Popen says of one."""

    def __init__(self, command: Command) -> None:
        self._process = _server().Process(target=_begin, args=(command,))
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; subprocess.TimeoutExpired if it takes longer."""
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """A signal for this process alone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([IMPORTED])
    return context


def _begin(command: Command) -> None:
    """In the new process."""
    os.setsid()
    os.chdir(command.folder)
    os.environ.clear()
    os.environ.update(command.environment)
    tempfile.tempdir = None  # of the server
    for number, path, mode in (
        (0, os.devnull, os.O_RDONLY),
        (1, command.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, mode)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(1, 2)
    faulthandler.register(SAY_WHERE, file=2)  # in what it forks, too
    if command.ranks == 1:
        _end(_run(command.words))
    _end(_launch(command))


def _launch(command: Command) -> int:
    """What accelerate launch does, but that ranks are forked."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["ACCELERATE_MIXED_PRECISION"] = command.mixed_precision
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=command.ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=command.restarts,
        start_method="fork",
    )
    forked = multiprocessing.get_context("fork").Barrier
    attempts = [forked(command.ranks) for _ in range(command.restarts + 1)]
    try:
        elastic_launch(config, _rank)(attempts, command.words)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _rank(attempts: Sequence[Barrier], words: Sequence[str]) -> None:
    """In a rank; the launcher wants it to return if all is well."""
    import torch

    # As in Parallel.runner: none connects until all are forked.
    attempts[int(os.environ["TORCHELASTIC_RESTART_COUNT"])].wait()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # read when torch was imported
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)  # it outlives its launcher, as one of torchrun's
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    if code := _run(words):
        _end(code)
    _finish()


def _run(words: Sequence[str]) -> int:
    """Run a module or script as python would; its exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if words[0] == "-m":
            sys.argv, sys.path[:0] = list(words[1:]), [os.getcwd()]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[:0] = list(words), [str(Path(words[0]).parent)]
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _finish() -> None:
    """What Python does at its end, and multiprocessing leaves out."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _end(code: int) -> None:
    _finish()
    os._exit(code)
