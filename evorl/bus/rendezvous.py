"""How processes find each other: addresses, keys and the run's token, in a store that they share.

bus/token          what all of them know and strangers do not
bus/rank/3         {"address": "tcp://10.0.0.2:40123", "key": public CURVE key or null}
bus/key/<key>      the rank whose public key this is: nobody else is let in
bus/left/3         what is left of a process that has closed its bus: its small values
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from evorl.errors import rank_errors

MAX_PATH = 100  # bytes of an ipc address: the system's limit is 107
FOLDER = "evorl-bus-"
NO_ANSWER = "bus: the store of the ranks did not answer"
LOOKUP = timedelta(seconds=5)  # for the store to answer


class Contact(NamedTuple):
    """How to reach a process."""

    address: str
    key: str | None  # its public CURVE key; None with ipc


class Rendezvous:
    """The store, as the bus uses it: with a connection of its own, so that it waits for nobody."""

    def __init__(self, store: Any) -> None:
        self._original = store  # it may be the one that serves all others
        with rank_errors(NO_ANSWER):
            self._store = store.clone()
            self._store.set_timeout(LOOKUP)
            # Whoever comes first decides.
            found = self._store.compare_set("bus/token", "", secrets.token_hex(16))
        self.token: str = found.decode()

    def register(self, rank: int, contact: Contact, keys: tuple[str, str] | None) -> None:
        """Say how this process is reached, and which key it comes with."""
        with rank_errors(NO_ANSWER):
            self._store.delete_key(f"bus/left/{rank}")
            if keys:
                self._store.set(f"bus/key/{_hex(keys[0])}", str(rank))
            self._store.set(f"bus/rank/{rank}", json.dumps(contact))

    def find(self, rank: int) -> Contact | None:
        """How to reach a process, if it has said so."""
        found = self._get(f"bus/rank/{rank}")
        return Contact(*json.loads(found)) if found else None

    def rank_of(self, key: str) -> int | None:
        """The rank that comes with this key; None for strangers."""
        found = self._get(f"bus/key/{_hex(key)}")
        return int(found) if found else None

    def leave(self, rank: int, values: list[list[bytes]]) -> None:
        """Leave small values to those who come later: the frames of each."""
        listed = [[part.hex() for part in frames] for frames in values]
        self._store.set(f"bus/left/{rank}", json.dumps(listed))

    def left(self, rank: int) -> list[list[bytes]] | None:
        """What a process left when it closed its bus; None if it did not."""
        found = self._get(f"bus/left/{rank}")
        if found is None:
            return None
        return [[bytes.fromhex(part) for part in frames] for frames in json.loads(found)]

    def _get(self, key: str) -> bytes | None:
        return bytes(self._store.get(key)) if self._store.check([key]) else None


class Invitation:
    """Without a store: a guest knows how to reach one process, and who is alone knows nobody."""

    token = ""

    def __init__(self, host: Contact | None = None) -> None:
        self._host = host

    def register(self, rank: int, contact: Contact, keys: tuple[str, str] | None) -> None:
        """Nobody asks."""

    def find(self, rank: int) -> Contact | None:
        """The one that there is."""
        return self._host

    def rank_of(self, key: str) -> int | None:
        """Nobody's."""
        return None

    def leave(self, rank: int, values: list[list[bytes]]) -> None:
        """Nobody comes later."""

    def left(self, rank: int) -> list[list[bytes]] | None:
        """Nobody was here before."""
        return None


Meeting = Rendezvous | Invitation


def _hex(key: str) -> str:
    return key.encode().hex()


class Folder:
    """A folder for an ipc socket that only this user can enter; it is gone after `remove`.

    Its lock is held by this process: the folder of one that was killed is removed by whoever leaves
    its bus, or opens the next one.
    """

    def __init__(self) -> None:
        remove_left_folders()
        self.path = Path(tempfile.mkdtemp(prefix=FOLDER, dir=short_folder()))
        self._lock = os.open(self.path / "new", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.path / "new").rename(self.path / "lock")  # only now others look at it

    @property
    def address(self) -> str:
        """Where to listen."""
        return f"ipc://{self.path}/socket"

    def remove(self) -> None:
        """Remove the folder and what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_left_folders() -> None:
    """Those of processes that were killed."""
    for path in Path(short_folder()).glob(f"{FOLDER}*"):
        remove_if_left(path)


def short_folder() -> str:
    """A folder for temporary files with a short name."""
    own = tempfile.gettempdir()
    return own if len(os.fsencode(own)) < MAX_PATH - 30 else "/tmp"


def remove_if_left(path: Path) -> None:
    """Remove a folder of this user whose process is gone."""
    with contextlib.suppress(OSError):  # it is another user's, in use, or gone meanwhile
        if path.stat().st_uid == os.getuid():
            lock = os.open(path / "lock", os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(lock)
