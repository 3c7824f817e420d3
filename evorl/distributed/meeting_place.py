"""Where the ranks of one machine meet: a store in a folder that only their user can enter.

The launcher's own store listens on all interfaces and asks nobody who he is. It names the folder,
and nothing else that it says is believed.
"""

import atexit
import fcntl
import os
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evorl.bus import remove_if_left, remove_left_folders, short_folder
from evorl.errors import RunError

VARIABLE = "EVORL_MEETING_PLACE"  # for ranks that we have launched ourselves
PREFIX = "evorl-bus-ranks-"  # as the bus's, which are removed when nobody is there any more
INTERFACE = "GLOO_SOCKET_IFNAME"
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

_locks: dict[Path, int] = {}  # of folders in which this process is
_met: dict[int, Path] = {}  # that of this launch, by the launcher's attempts


def make_place() -> Path:
    """A new folder; it is gone when all who have entered it are."""
    remove_left_folders()
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=short_folder()))  # for this user alone
    lock = os.open(path / "new", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    (path / "new").rename(path / "lock")  # only now others look at it
    return _stay(path, lock)


def enter_place(path: Path) -> Path:
    """Stay in a folder that another rank has made; RunError for any other folder."""
    try:
        found = path.lstat()
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        if not (private and found.st_uid == os.getuid() and path.name.startswith(PREFIX)):
            raise PermissionError
        lock = os.open(path / "lock", os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        what = f"start: {str(path)!r:.80} is no folder in which ranks of this user meet"
        raise RunError(f"{what}; start all ranks again") from None
    fcntl.flock(lock, fcntl.LOCK_SH)
    return _stay(path, lock)


def _stay(path: Path, lock: int) -> Path:
    _locks[path] = lock
    atexit.register(leave, path)
    return path


def leave(path: Path) -> None:
    """Whoever is the last one removes it."""
    if path in _locks:
        os.close(_locks.pop(path))
        remove_if_left(path)


def meet(connect: Callable[[], Any], attempt: int, first: bool) -> Path:
    """The folder of this launch: the first rank makes it, and says where in the launcher's store.

    `connect` gives that store, which has what was said since the launcher's last attempt.
    """
    if attempt not in _met:
        if VARIABLE in os.environ:
            _met[attempt] = enter_place(Path(os.environ[VARIABLE]))
        elif first:
            _met[attempt] = make_place()
            connect().set("place", str(_met[attempt]))
        else:
            _met[attempt] = enter_place(Path(connect().get("place").decode()))
    return _met[attempt]


@contextmanager
def on_loopback(alone: bool) -> Iterator[None]:
    """While groups are made: if all ranks are on this machine (`alone`), no other reaches them."""
    there = LOOPBACK in (name for _, name in socket.if_nameindex())
    if not alone or not there or INTERFACE in os.environ:
        yield
        return
    os.environ[INTERFACE] = LOOPBACK
    try:
        yield
    finally:
        del os.environ[INTERFACE]
