"""A function on several processes that can talk to each other at any time.

    def main():
        with Task() as task: ...

    Parallel.runner(n_parallel_workers=2, topology="star")(main)

Under `accelerate launch` or torchrun the ranks are the processes, on one machine or on several.
Without a launcher the processes are forked here, under torch's own.
"""

import logging
import os
import signal
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import count
from multiprocessing.synchronize import Barrier
from typing import Any, Literal

import evorl
from evorl.bus import Bus
from evorl.distributed.labels import labels_of
from evorl.distributed.launcher import (
    choose_host,
    end_with_launcher,
    launched_ranks,
    launcher_store,
    rank,
)
from evorl.distributed.meeting_place import VARIABLE, leave, make_place
from evorl.errors import ConfigError, RunError

Topology = Literal["star", "mesh"]
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # by torch's launcher


class Session:
    """This process among several, while `main` runs."""

    def __init__(self, bus: Bus, topology: Topology) -> None:
        self.bus, self._topology = bus, topology
        self._tasks = count()

    def next_task(self) -> int:
        """A number for each task, the same on every process: all make theirs in one order."""
        return next(self._tasks)

    def wait_for_others(self) -> None:
        """The centre of a star leaves last: the others talk through it."""
        others = set(range(self.bus.size)) - {self.bus.rank}
        if self._topology == "star" and self.bus.rank == 0:
            self.bus.wait(lambda: others <= self.bus.gone.keys(), timeout=float("inf"))


_session: Session | None = None


def current_session() -> Session | None:
    """This process among several; None outside of `Parallel.runner`, and with one process."""
    return _session


class Parallel:
    """Runs a function on several processes."""

    @staticmethod
    def bus() -> Bus:
        """How this process reaches the others, in what the runner runs."""
        if _session is None:
            raise RunError("Parallel.bus: there is none outside of Parallel.runner(n)(main)")
        return _session.bus

    @staticmethod
    def runner(
        n_parallel_workers: int, topology: Topology = "star", timeout: float = 600.0
    ) -> Callable[..., Any]:
        """What calls a function, with its arguments, on every process.

        Args:
            n_parallel_workers: How many there are; under a launcher as many as it started.
            topology: star links all to the first one, which passes on what they share; mesh links
                every pair.
            timeout: Seconds that processes wait for each other.

        Returns what the function returns; None where the processes are started here.
        """
        if type(n_parallel_workers) is not int or n_parallel_workers < 1:
            raise ConfigError(
                f"n_parallel_workers: expected a whole number from 1 on, got {n_parallel_workers!r}"
            )
        if topology not in ("star", "mesh"):
            raise ConfigError(f"topology: expected star or mesh, got {topology!r}")

        def run(main: Callable[..., Any], *args: Any, **options: Any) -> Any:
            call = partial(main, *args, **options)
            labels_of(rank(), n_parallel_workers)  # a mistake in them is told before any work
            if _session is not None:
                raise ConfigError("Parallel.runner: called by what it runs; call it once")
            if "WORLD_SIZE" not in os.environ and n_parallel_workers > 1:
                return _launch(call, n_parallel_workers, topology, timeout)
            ranks = launched_ranks()
            if ranks != n_parallel_workers:
                raise ConfigError(
                    f"n_parallel_workers: {n_parallel_workers}, but {ranks} were launched; start as"
                    " many, or none: then they are started here"
                )
            return _run(call, ranks, topology, timeout)

        return run


def _run(call: Callable[[], Any], ranks: int, topology: Topology, timeout: float) -> Any:
    """In one of the processes."""
    global _session
    if ranks == 1:
        return call()
    end_with_launcher()
    store = launcher_store(timedelta(seconds=timeout))
    with (
        _exit_on_sigterm(),
        Bus.join(
            store,
            rank(),
            ranks,
            topology=topology,
            timeout=timeout,
            host=choose_host(ranks),
            schema=evorl.__version__,
        ) as bus,
    ):
        # The main process says so if all is over already; and without it there is no star.
        bus.wait(lambda: bus.rank == 0 or 0 in bus.peers or 0 in bus.gone, what="rank 0 to come")
        _session = Session(bus, topology)
        try:
            result = call()
            _session.wait_for_others()
        finally:
            _session = None
    return result


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """A launcher ends all processes in this way when one has failed: they are to clean up."""
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _launch(call: Callable[[], Any], ranks: int, topology: Topology, timeout: float) -> None:
    """Start the processes with torch's launcher, on this machine, and wait for them.

    They are forked: so `main` may be a closure, and a script need not be written for it.
    """
    import multiprocessing

    import torch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ConfigError(
            "Parallel.runner: the GPU is in use already, and cannot be used by processes that are"
            " started from here; start with accelerate launch"
        )
    place = make_place()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",  # in a file: no port is open
        rdzv_endpoint=str(place / "launcher"),
        rdzv_configs={"store_type": "file"},
        max_restarts=0,
        start_method="fork",
    )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or each process would print it again
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    log = logging.getLogger("torch.distributed.elastic")
    level = log.level
    log.setLevel(logging.CRITICAL)  # what a process raised is printed, and said below
    ours = {VARIABLE: str(place), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    os.environ |= ours
    forked = multiprocessing.get_context("fork").Barrier(ranks, timeout=timeout)
    try:
        elastic_launch(config, _child)(forked, call, ranks, topology, timeout)
    except ChildFailedError as error:
        failed, failure = error.get_first_failure()
        raise RunError(
            f"Parallel.runner: rank {failed} failed with exit code {failure.exitcode}; look for its"
            " error above"
        ) from None
    finally:
        log.setLevel(level)
        for name in ours:
            del os.environ[name]
        leave(place)
        for number, handler in handlers.items():
            with suppress(ValueError):  # not the main thread: torch has left them alone
                signal.signal(number, handler)


def _child(
    forked: Barrier, call: Callable[[], Any], ranks: int, topology: Topology, timeout: float
) -> None:
    """In a process that was forked."""
    import torch

    # The launcher's store looks up the name of whoever connects, with a lock of the C library held:
    # what is forked in that moment could never look up a name. So none connects until all are here.
    forked.wait()
    # As torchrun does. More threads than one would hang if the parent has computed with several:
    # OpenMP's do not survive a fork.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _run(call, ranks, topology, timeout)
    except SystemExit as ended:
        if ended.code:
            raise  # else it has ended well, which torch's launcher takes from a return alone
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        raise SystemExit(1) from None
