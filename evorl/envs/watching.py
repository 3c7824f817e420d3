"""Where this process hangs: a step that takes too long here can be ended by the user alone."""

import sys
import threading
import time
import warnings
from pathlib import Path
from weakref import WeakSet

SHORTEST, LONGEST = 0.02, 5.0  # seconds between two looks


class Watch:
    """`with watch:` around what environments do; a warning says where it takes too long."""

    def __init__(self, env_id: str, seconds: float) -> None:
        self.env_id, self.seconds, self.since = env_id, seconds, 0.0
        self.thread = 0
        _look_after(self)

    def __enter__(self) -> None:
        self.thread, self.since = threading.get_ident(), time.monotonic()

    def __exit__(self, *raised: object) -> None:
        self.since = 0.0

    def look(self) -> None:
        """In another thread: say so, once, if it has been too long."""
        since = self.since
        if not since or time.monotonic() - since < self.seconds:
            return
        frame = sys._current_frames().get(self.thread)
        if frame is None or self.since != since:
            return
        code = frame.f_code
        where = f"{Path(code.co_filename).name}, line {frame.f_lineno}, in {code.co_name}"
        del frame
        self.since = 0.0  # it is said
        warnings.warn(
            f"{self.env_id!r} hangs: a step or reset takes longer than env.timeout={self.seconds:g}"
            f" seconds ({where}); Ctrl-C ends the run, and with env.backend: async it is replaced",
            stacklevel=2,
        )


_watches: WeakSet[Watch] = WeakSet()
_thread: threading.Thread | None = None


def _look_after(watch: Watch) -> None:
    """Have one thread look at all watches; a process that was forked needs its own."""
    global _thread
    _watches.add(watch)
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_look, name="evorl-watch", daemon=True)
        _thread.start()


def _look() -> None:
    while True:
        time.sleep(_look_at_all())


def _look_at_all() -> float:
    """How many seconds nobody need look again."""
    try:
        watches = list(_watches)
    except RuntimeError:  # another thread has added one
        return SHORTEST
    for watch in watches:
        watch.look()
    shortest = min((own.seconds for own in watches), default=LONGEST) / 4
    return min(max(shortest, SHORTEST), LONGEST)
