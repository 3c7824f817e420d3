"""Plain environments, each in a process of its own, which is replaced if it dies or hangs.

Observations come through shared memory, all else through pipes.
Legend: M slots, K of them.
"""

import ctypes
import multiprocessing
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper, clear_mpi_env_vars

from evorl.envs.entrance import Bools, Entrance
from evorl.envs.make import EnvSpec, close, find
from evorl.envs.rebuilding import ATTEMPTS, RESET, TRACES, Before, Slot, make_slot, step_slots
from evorl.envs.spaces import Array
from evorl.envs.vector import Actions, Rows, SlotVectorEnv, Step, inspect
from evorl.errors import EvorlError

LOOK = 5.0  # seconds after which a worker that has nothing to do looks for its parent
PATIENCE = 5.0  # seconds to close an environment, and to learn what a process died of
FAILED = 0.0, False, True  # reward, terminated, truncated of a step that is none


class AsyncVectorEnv(SlotVectorEnv):
    """Environments in worker processes, which step at once."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        super().__init__(spec, "async", num_envs, *inspect(spec))
        context, obs = multiprocessing.get_context(), self.observation
        size = num_envs * int(np.prod(obs.shape, dtype=np.int64)) * obs.dtype.itemsize
        memory = context.RawArray(ctypes.c_byte, size)
        self._obs = _as_array(memory, obs.shape, obs.dtype)
        make = partial(
            make_slot, spec, find(spec.id), self.observation.mask > 0, Entrance(self.spaces)
        )
        self._workers: list[Worker] = []
        for slot in range(num_envs):
            place = memory, obs.shape, obs.dtype, slot
            self._workers.append(Worker(context, make, place, spec.timeout))

    def reset(self, seeds: Sequence[int]) -> Array:
        """Starts an episode in every slot, each with its own seed."""
        return self.restart(np.arange(self.num_envs), seeds)

    def restart(self, rows: Rows, seeds: Sequence[int] | None = None) -> Array:
        """Resets these environments."""
        slots = rows.tolist()
        given: Sequence[int | None] = seeds or [None] * len(slots)
        for slot, seed in zip(slots, given, strict=True):
            self._workers[slot].reset(seed)
        for slot in slots:
            self.failures.add(slot, self._workers[slot].wait_for_reset())
        return np.array(self._obs[rows])

    def play(self, actions: Actions, rows: Rows | None = None) -> Step:
        """Steps these environments, all at once; the others rest."""
        slots = list(range(self.num_envs)) if rows is None else rows.tolist()
        for slot, action in zip(slots, self.spaces.actions(actions), strict=True):
            self._workers[slot].step(action)
        found = [self._workers[slot].wait_for_step() for slot in slots]
        rewards, terminated, truncated, traces = zip(*found, strict=True)
        failed: Bools | None = None
        if any(traces):
            failed = np.array([bool(own) for own in traces])
            self._obs[np.array(slots)[failed]] = 0
            for slot, own in zip(slots, traces, strict=True):
                self.failures.add(slot, own)
        obs, ends = self._obs[slots], np.array(terminated, np.bool_)
        reward, cuts = np.array(rewards, np.float32), np.array(truncated, np.bool_)
        return Step(obs, reward, ends, cuts, obs, failed=failed)

    def close(self) -> None:
        """Closes the environments, and ends workers that will not close by themselves."""
        for worker in self._workers:
            worker.ask_to_close()
        deadline = time.monotonic() + PATIENCE
        for worker in self._workers:
            worker.end(deadline)


class Worker:
    """An environment in a process of its own, and what is known of it here."""

    def __init__(
        self, context: Any, make: Callable[..., Slot], place: tuple[Any, ...], timeout: float
    ) -> None:
        self._context, self._make, self._place, self._timeout = context, make, place, timeout
        self._seed, self._failures = 0, 0  # the last one given, and how often it failed since then
        self._steps = 0  # of this episode
        self._start(broken=False)

    def reset(self, seed: int | None) -> None:
        """Have an episode begin."""
        if seed is not None:
            self._seed, self._failures = seed, 0
        self._steps = 0
        self._send("reset", seed)

    def step(self, action: Any) -> None:
        """Have it take an action."""
        self._steps += 1
        self._send("step", action)

    def wait_for_reset(self) -> list[str]:
        """What was wrong; the process is replaced as often as an environment is."""
        traces: list[str] = []
        while True:
            reply = self._receive(RESET)
            if not isinstance(reply, str):
                self._failures += len(reply)
                return traces + list(reply)
            traces.append(reply)
            if len(traces) == ATTEMPTS:
                return traces
            self._replace()
            self._failures += 1
            self._send("reset", None)

    def wait_for_step(self) -> tuple[float, bool, bool, Sequence[str]]:
        """Reward, whether the episode terminated or was truncated, and what was wrong."""
        reply = self._receive(f"in step {self._steps} of an episode")
        if isinstance(reply, str):
            self._replace()
            reply = *FAILED, (reply,)
        self._failures += len(reply[3])
        return reply

    def ask_to_close(self) -> None:
        """Have it close its environment."""
        self._send("close", None)

    def end(self, deadline: float) -> None:
        """It is gone from here on, whether it has closed by then or not; also twice."""
        self._process.join(max(deadline - time.monotonic(), 0))
        self._kill()

    def _start(self, broken: bool) -> None:
        self._connection, other = self._context.Pipe()
        make = partial(self._make, before=Before(self._seed, self._failures, broken))
        given = CloudpickleWrapper(make), other, self._connection, *self._place
        self._process = self._context.Process(target=_work, args=given, daemon=True)
        with clear_mpi_env_vars():
            self._process.start()
        other.close()
        self._poll = _poll_of(self._connection)

    def _replace(self) -> None:
        """By a process with a new environment, which goes on from what is known of the old one."""
        self._kill()
        self._start(broken=True)

    def _kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _send(self, command: str, value: Any) -> None:
        self._deadline = time.monotonic() + self._timeout
        with suppress(OSError):  # who is dead is found out when its answer is waited for
            self._connection.send((command, value))

    def _receive(self, when: str) -> tuple[Any, ...] | str:
        """Its answer, or what is wrong with it: then it must be replaced."""
        try:
            if not self._poll.poll(1000 * max(self._deadline - time.monotonic(), 0)):
                return f"took longer than env.timeout={self._timeout:g} seconds {when}"
            reply: Any = self._connection.recv()
        except (EOFError, OSError):
            return f"lost its worker process {when} ({self._cause()})"
        if isinstance(reply, EvorlError):
            raise reply
        return reply  # type: ignore[no-any-return]

    def _cause(self) -> str:
        """What its process died of."""
        self._process.join(PATIENCE)
        code = self._process.exitcode
        if code is None or code >= 0:
            return f"exit code {code}"
        name = signal.Signals(-code).name
        return f"{name}; is there enough memory?" if name == "SIGKILL" else name


def _work(
    make: Callable[[], Slot],
    connection: Connection,
    parents: Connection,
    memory: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    index: int,
) -> None:
    """In the process: does what it is asked to, and answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parents.close()
    parent, obs = os.getppid(), _as_array(memory, shape, dtype)[index : index + 1]
    try:
        slot = make()
    except BaseException:
        connection.send(traceback.format_exc())
        return
    poll = _poll_of(connection)
    with suppress(EOFError, OSError):  # nobody is there any more
        while True:
            while not poll.poll(1000 * LOOK):
                if os.getppid() != parent:
                    return
            command, value = connection.recv()
            if command == "close":
                close(slot)
                return
            try:
                connection.send(_answer(slot, command, value, obs))
            except EvorlError as error:
                connection.send(error)
            except Exception:
                connection.send(traceback.format_exc())


def _answer(slot: Slot, command: str, value: Any, obs: Array) -> Any:
    entrance = slot.entrance
    assert entrance is not None
    if command == "step":
        taken, traces = step_slots([slot], [value], entrance)
        obs[:] = taken.obs
        ends = taken.terminated[0], taken.truncated[0]
        return float(taken.reward[0]), *map(bool, ends), traces[0]
    raw, info = slot.reset(seed=value)
    traces = info.get(TRACES, ())
    if len(traces) < ATTEMPTS:
        found = entrance.observations([raw])
        assert found is not None  # the slot has looked at it
        obs[:] = found
    return traces


def _poll_of(connection: Connection) -> select.poll:
    """What waits for an answer: a connection's own way makes a selector each time."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return poll


def _as_array(memory: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """What shared memory holds, [M, …]."""
    return np.frombuffer(memory, dtype).reshape(-1, *shape)
