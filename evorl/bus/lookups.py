"""Asking the store without waiting for it: behind a cut cable it may not answer for minutes."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from queue import SimpleQueue
from typing import Any

from torch.distributed import DistNetworkError

Ask = Callable[[], Any]
Then = Callable[[Any], object]


class Lookups:
    """Questions to the store, asked in a thread of their own and answered in the sockets'."""

    def __init__(self, counts: Counter[str], wake: Callable[[], None]) -> None:
        self._counts, self._wake = counts, wake  # the thread of the sockets: there is an answer
        self._questions: SimpleQueue[tuple[Hashable, Ask, Then]] = SimpleQueue()
        self._answers: deque[tuple[Hashable, Any, Then]] = deque()
        self._open: set[Hashable] = set()
        self._is_gone = False  # the store, for good
        self._thread: threading.Thread | None = None  # while nobody asks there is none
        self._starting = threading.Lock()  # who closes may come while the sockets' thread asks

    def ask(self, what: Hashable, ask: Ask, then: Then) -> None:
        """Have `then` called with what the store says; None if it says nothing. Once at a time."""
        if what not in self._open:
            self._open.add(what)
            self._put(what, ask, then)

    def take_answers(self) -> None:
        """In the thread of the sockets."""
        while self._answers:
            what, answer, then = self._answers.popleft()
            self._open.discard(what)
            then(answer)

    def close(self, last: Ask, seconds: float) -> None:
        """Ask one more thing, and end the thread, unless the store keeps it for longer."""
        self._put(None, last, bool).join(seconds)

    def _put(self, what: Hashable, ask: Ask, then: Then) -> threading.Thread:
        self._questions.put((what, ask, then))
        with self._starting:
            if self._thread is None:
                own = threading.Thread(target=self._run, name="evorl-bus-store", daemon=True)
                own.start()
                self._thread = own
            return self._thread

    def _run(self) -> None:
        what: Hashable = True
        while what is not None:  # as that of the last question is
            what, ask, then = self._questions.get()
            self._answers.append((what, self._answer(ask), then))
            self._wake()

    def _answer(self, ask: Ask) -> Any:
        if self._is_gone:
            return None
        try:
            return ask()
        except (RuntimeError, ValueError, TypeError) as error:  # or what it says makes no sense
            self._counts["store_errors"] += 1
            self._is_gone = isinstance(error, DistNetworkError)  # a store never comes back
            return None
