"""Actors as processes that a learner starts, begins again when they die, and leaves none of.

A learner has threads, locks and perhaps a GPU, which do not survive a fork. So one process is
forked before all that, does nothing but fork actors when it is asked to, and tells what became of
them. It ends with the learner: when the socket between them closes, or the learner is gone, actors
have some seconds to leave by themselves.
"""

import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from evorl.actors.tally import Tally
from evorl.errors import EvorlError, RunError
from evorl.machine import end_with_parent

Body = Callable[[int, Mapping[str, Any]], None]  # of an actor: its slot, and what it was told
TALLY = "tally"  # its file
LOOK = 0.05  # seconds between two looks at what children do
LEAVE = 8.0  # seconds that actors have to leave when it is over
MOST_DEATHS = 3  # of a slot, one after another, without a single message


class ChildProcesses:
    """The learner's side."""

    def __init__(self, body: Body, slots: int, respawns: bool = True) -> None:
        """`body` is what an actor does in each of the slots; make this before there are threads."""
        self.slots = slots
        self.respawns = respawns
        self.started = 0  # processes, those that replaced others included
        self._changed: Callable[[], None] = lambda: None
        self._told: dict[str, Any] = {}
        self._deaths: dict[int, int] = {}
        self._news: list[str] = []
        self._failure: RunError | None = None
        self._closing, self._lock = False, threading.Lock()
        # where they find each other: for this user alone, and gone with the last of them
        self.folder = Path(tempfile.mkdtemp(prefix="evorl-actors-"))
        self.tally = Tally(self.folder / TALLY, slots)  # of what they have sent
        self.ended: Counter[int] = Counter()  # processes that died, by slot
        self._socket, theirs = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or each process would print it again
        learner = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            self._socket.close()
            nursery = Nursery(theirs, body, learner, self.folder)
            _never_return(nursery.run, "actors")
        theirs.close()

    def start(self, told: Mapping[str, Any], changed: Callable[[], None]) -> None:
        """Start an actor for each slot; `changed` is called when one has ended."""
        self._told, self._changed = dict(told), changed
        threading.Thread(target=self._listen, name="evorl-actors", daemon=True).start()
        for slot in range(self.slots):
            self._start(slot)

    def contributed(self, slot: int) -> None:
        """An actor has done something: if it dies, another one may do so, too."""
        self._deaths[slot] = 0

    def check(self) -> int:
        """Warn of those that died since the last time: how many; RunError if it cannot go on."""
        with self._lock:
            news, self._news = self._news, []
        for line in news:
            warnings.warn(line, stacklevel=3)
        if self._failure is not None:
            raise self._failure
        return len(news)

    def close(self) -> None:
        """It is over: wait until all are gone."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)  # it does not wait for long
        self._socket.close()

    def _start(self, slot: int) -> None:
        self.started += 1
        with suppress(OSError):  # it is over
            self._socket.sendall(json.dumps({"slot": slot, **self._told}).encode() + b"\n")

    def _listen(self) -> None:
        """In a thread: what became of actors."""
        with suppress(OSError):
            for line in _lines(self._socket):
                self._ended(**json.loads(line))
        with self._lock:
            if not self._closing:
                self._failure = RunError("the process that starts actors is gone; resume the run")
        self._changed()

    def _ended(self, slot: int, process: int, code: int) -> None:
        with self._lock:
            if self._closing or code == 0:
                return
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            line = f"actor {slot} (process {process}) ended {how}"
            self.ended[slot] += 1
            deaths = self._deaths[slot] = self._deaths.get(slot, 0) + 1
            if not self.respawns:
                what = "in lock-step nobody can take its place"
            elif deaths >= MOST_DEATHS:
                what = f"{deaths} times before it had sent anything"
            else:
                self._news.append(f"{line}; another one takes its place")
                self._start(slot)
                what = ""
            if what:
                advice = "look for its error above, and resume the run"
                self._failure = RunError(f"{line}, and {what}; {advice}")
        self._changed()


class Nursery:
    """The process between: it forks actors, and tells which have ended."""

    def __init__(self, learner: socket.socket, body: Body, parent: int, folder: Path) -> None:
        """`folder` is removed when all have left."""
        self.learner, self.body, self.parent, self.folder = learner, body, parent, folder
        self._slots: dict[int, int] = {}  # by process

    def run(self) -> None:
        """Until the learner is gone, or says that it is over."""
        for number in (signal.SIGINT, signal.SIGTERM):  # the learner decides
            signal.signal(number, signal.SIG_IGN)
        waiting = b""
        while os.getppid() == self.parent:
            if select.select([self.learner], [], [], LOOK)[0]:
                data = _heard(self.learner)
                if not data:
                    break
                *lines, waiting = (waiting + data).split(b"\n")
                for line in lines:
                    told = json.loads(line)
                    self._fork(told.pop("slot"), told)
            self._reap()
        end = time.monotonic() + LEAVE
        while self._slots and time.monotonic() < end:
            time.sleep(LOOK)
            self._reap()
        for process in self._slots:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _fork(self, slot: int, told: Mapping[str, Any]) -> None:
        process = os.fork()
        if not process:
            self.learner.close()
            _never_return(lambda: _be_actor(self.body, slot, told), f"actor {slot}")
        self._slots[process] = slot

    def _reap(self) -> None:
        while self._slots:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            slot = self._slots.pop(process, None)
            if slot is not None:
                code = os.waitstatus_to_exitcode(status)
                said = {"slot": slot, "process": process, "code": code}
                with suppress(OSError):  # the learner is gone
                    self.learner.sendall(json.dumps(said).encode() + b"\n")


def _be_actor(body: Body, slot: int, told: Mapping[str, Any]) -> None:
    end_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    body(slot, told)


def _never_return(call: Callable[[], None], who: str) -> None:
    """In a process that was forked: its end is that of the call."""
    code = 1
    try:
        call()
        code = 0
    except EvorlError as error:
        code = 2
        line = str(error).removeprefix(f"{who}: ")
        print(*getattr(error, "__notes__", ()), f"error: {who}: {line}", sep="\n", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _heard(sock: socket.socket) -> bytes:
    """What has come; nothing if the other end is gone, perhaps before it had read all."""
    try:
        return sock.recv(65536)
    except ConnectionError:
        return b""


def _lines(sock: socket.socket) -> Iterator[bytes]:
    waiting = b""
    while data := _heard(sock):
        *lines, waiting = (waiting + data).split(b"\n")
        yield from lines
