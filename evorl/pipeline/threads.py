"""Threads that belong to one stage each, an event loop for coroutines, and how both are ended."""

import asyncio
import ctypes
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import CancelledError, Future, wait
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from evorl.errors import StageError
from evorl.pipeline.context import Control
from evorl.pipeline.stage import add_note

T = TypeVar("T")

ASK_SECONDS = 0.3  # for stages to end by themselves, once they are to stop
LEAVE_SECONDS = 1.0  # until they are left behind, being daemons


class StageStopped(BaseException):
    """Raised within a stage that is still running when another one has failed."""


class StageFailure(NamedTuple):
    """What a stage raised."""

    stage: str
    error: BaseException


class Worker:
    """A thread of its own, for one call after another."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=f"evorl {name}", daemon=True)
        self.thread.start()

    def submit(self, call: Callable[[], Any]) -> "Future[Any]":
        """Have the thread call this."""
        future: Future[Any] = Future()
        self._calls.put((future, call))
        return future

    def interrupt(self) -> None:
        """Raise StageStopped in what the thread runs, as soon as it is back in Python."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self.thread.ident or 0), ctypes.py_object(StageStopped)
        )

    def close(self) -> None:
        """End the thread after what it runs."""
        self._calls.put(None)

    def _work(self) -> None:
        while True:
            try:
                if (item := self._calls.get()) is None:
                    return
                future, call = item
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
                del future, call, item  # a traceback holds the stage's variables
            except StageStopped:  # came when the call had ended: all are to end
                return


class EventLoop:
    """An asyncio loop in a thread of its own, begun with the first coroutine."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock, self._cancelled = threading.Lock(), False

    def run(self, awaitable: Awaitable[Any]) -> None:
        """Wait until it is done; what it raises is raised here."""
        with self._lock:
            if self._cancelled:
                _close(awaitable)
                raise StageStopped
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=[self._loop], name="evorl coroutines", daemon=True
                )
                self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop).result()
        except CancelledError:
            if not self._cancelled:  # by the stage itself
                raise
            _close(awaitable)
            raise StageStopped from None

    def cancel(self) -> None:
        """Cancel all that is running, and let nothing begin."""
        with self._lock:
            self._cancelled = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(_cancel_all, self._loop)

    def close(self) -> None:
        """Cancel what is running, and end the thread."""
        self.cancel()
        if self._loop is None or self._thread is None:
            self._cancelled = False
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LEAVE_SECONDS)
        self._loop, self._thread, self._cancelled = None, None, False


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Until it is stopped; ended here, as the caller may be in a loop that runs (Jupyter's)."""
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _awaited(awaitable: Awaitable[Any]) -> None:
    await awaitable


def _close(awaitable: Awaitable[Any]) -> None:
    """It was perhaps never begun, of which Python would warn."""
    if isinstance(awaitable, Coroutine):
        awaitable.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


class StageThreads:
    """The threads of a task: one for each stage that runs beside others, and one for coroutines."""

    def __init__(self, control: Control, before_call: Callable[[], None]) -> None:
        self._before_call = before_call  # in the thread of each
        self.loop, self.errors = EventLoop(), list[StageFailure]()  # the first one first
        self._control, self._stopped = control, False
        self._workers: dict[Hashable, Worker] = {}
        self._running: dict[Future[Any], Worker] = {}

    def start(self, key: Hashable, name: str, call: Callable[[], Any]) -> "Future[Any]":
        """Have the thread of a stage, which is begun for it, make this call; one at a time."""
        if key not in self._workers:
            self._workers[key] = Worker(name)
        worker = self._workers[key]

        def begin() -> Any:
            self._before_call()
            return call()

        future = worker.submit(begin)
        self._running[future] = worker
        future.add_done_callback(self._running.pop)
        return future

    def guarded(self, name: str, iteration: int, call: Callable[[], T]) -> T:
        """Make a call of a stage; remembers in which order stages failed."""
        try:
            return call()
        except StageStopped:
            raise
        except BaseException as error:
            if not isinstance(error, StageError):  # which names its stages
                add_note(error, name, iteration)
            self.errors.append(StageFailure(name, error))
            raise

    def begin(self) -> None:
        """A run begins: what failed in the one before is over."""
        self._control.stopping.clear()
        self._control.over.clear()
        self.errors.clear()
        self._stopped = False

    def stop(self) -> list[str]:
        """End all that runs, by asking first; the threads that did not end in time."""
        if not self._stopped:
            self._stopped = True
            self._control.stopping.set()
            self.loop.cancel()
            wait(list(self._running), ASK_SECONDS)
            for future, worker in list(self._running.items()):
                if not future.done():
                    worker.interrupt()
            wait(list(self._running), LEAVE_SECONDS - ASK_SECONDS)
        return [worker.thread.name for worker in self._busy()]

    def _busy(self) -> list[Worker]:
        """Those at work; a call may be done, and not yet taken from the list."""
        return [worker for future, worker in list(self._running.items()) if not future.done()]

    def close(self) -> None:
        """End the threads, except those that did not stop: these are daemons."""
        busy = {worker.thread for worker in self._busy()}
        for worker in self._workers.values():
            worker.close()
            if worker.thread not in busy:
                worker.thread.join()
        self._workers.clear()
        self.loop.close()
