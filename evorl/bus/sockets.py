"""The zmq sockets of one bus, with the options that they all have, and who reads them."""

import hmac
import select
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import zmq
from zmq.utils import z85

from evorl.bus.wire import MAX_BYTES, MAX_FRAMES
from evorl.errors import RunError

SILENCE = 20.0  # seconds without a sign of life after which zmq closes a connection
LINGER = 1.0  # seconds that what was sent has to arrive when a process leaves
AT_ONCE = 16  # messages of one socket that are read before those of others
UNREAD = 256  # messages of a peer that wait here until its own process holds them back

NOW, NOW_AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)  # an enum's | is slow

Socket = zmq.Socket[bytes]


class Sockets:
    """Sockets of one context; with keys all that they send is encrypted (CURVE).

    Only who holds `mutex` may touch them. zmq tells but once that a socket can be read, and any use
    of it may swallow that: after a `put` it is looked at again.
    """

    def __init__(self, keys: tuple[str, str] | None) -> None:
        self.keys = keys  # public and secret
        self.mutex = threading.Lock()
        self._context: zmq.Context[Socket] = zmq.Context()
        self._poll = select.poll()
        self._numbers = count()
        self._readers: dict[int, tuple[Any, Callable[[], object]]] = {}  # by file number
        self._used: set[int] = set()  # numbers of sockets to look at again

    def open(self, kind: int) -> Socket:
        """A socket to talk to other processes."""
        sock = self._context.socket(kind)
        sock.linger = 0  # or the process might hang at its end
        sock.sndhwm = 0  # the Delivery bounds what is under way
        sock.rcvhwm = UNREAD
        sock.maxmsgsize = MAX_BYTES
        sock.heartbeat_ivl = int(SILENCE * 1000 / 10)
        sock.heartbeat_timeout = int(SILENCE * 1000)
        if self.keys:
            sock.curve_publickey, sock.curve_secretkey = (key.encode() for key in self.keys)
            sock.ipv6 = True
        return sock

    def open_entrance(self) -> Socket:
        """Where zmq asks whom to let in (ZAP); without it everybody is."""
        sock = self._context.socket(zmq.REP)
        sock.bind("inproc://zeromq.zap.01")
        return sock

    def monitor(self, sock: Socket, events: int) -> Socket:
        """Where zmq tells what happens to the connections of a socket."""
        # Not the default address, of its file number: a socket that is being closed may have it.
        return sock.get_monitor_socket(events, f"inproc://monitor-{next(self._numbers)}")

    def watch(self, source: Any, read: Callable[[], object]) -> None:
        """Call `read` when there is something to read from a socket or file."""
        number = source if isinstance(source, int) else source.fd
        self._poll.register(number, select.POLLIN)
        self._readers[number] = (source, read)
        if number != source:
            self._used.add(number)

    def unwatch(self, source: Any) -> None:
        """No longer."""
        for number in [number for number, own in self._readers.items() if own[0] is source]:
            del self._readers[number]
            self._poll.unregister(number)

    def wait(self, seconds: float) -> list[int]:
        """Where there may be something to read, once there is, or the time is over."""
        return [number for number, _ in self._poll.poll(0 if self._used else int(seconds * 1000))]

    def read(self, numbers: Sequence[int]) -> None:
        """Read some messages of each; what is left is read when this is called the next time."""
        looked, self._used = {*numbers, *self._used}, set()
        for number in looked:
            if (own := self._readers.get(number)) is None:  # it was closed meanwhile
                continue
            source, read = own
            if isinstance(source, int):
                if number in numbers:
                    read()
            else:
                for _ in range(AT_ONCE):
                    if not source.get(zmq.EVENTS) & zmq.POLLIN:
                        break
                    with suppress(zmq.Again):  # or somebody else has read it
                        read()
                    if source.closed:
                        break
                else:
                    self._used.add(number)

    def put(self, sock: Socket, frames: Sequence[zmq.Frame | bytes]) -> None:
        """Send a message; as send_multipart does, but that takes twice as long."""
        self._used.add(int(sock.fd))
        for frame in frames[:-1]:
            sock.send(frame, NOW_AND_MORE, copy=False)
        sock.send(frames[-1], NOW, copy=False)

    def look_again(self) -> bool:
        """Whether a socket that was used has something to read."""
        sources = [(number, self._readers.get(number)) for number in self._used]
        self._used = {
            number for number, own in sources if own and own[0].get(zmq.EVENTS) & zmq.POLLIN
        }
        return bool(self._used)

    def close(self) -> None:
        """Close all of them; what has not left by now never will."""
        self._context.destroy(linger=0)


def next_message(sock: Socket) -> list[zmq.Frame]:
    """The next message of a socket; of one with too many frames only as many as show it."""
    frames: list[zmq.Frame] = []
    while True:
        frame = sock.recv(NOW, copy=False)
        if len(frames) <= MAX_FRAMES + 2:
            frames.append(frame)
        if not frame.more:
            return frames


def new_keys() -> tuple[str, str]:
    """Of this process alone: public and secret."""
    _check_curve()
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def keys_of(token: str, whose: str) -> tuple[str, str]:
    """Those that everybody makes who has a token: public and secret."""
    _check_curve()
    secret = z85.encode(hmac.digest(token.encode(), f"evorl {whose}".encode(), "sha256"))
    return zmq.curve_public(secret).decode(), secret.decode()


def _check_curve() -> None:
    if not zmq.has("curve"):
        raise RunError(
            "bus: tcp needs CURVE keys, and this build of pyzmq has none; install its wheel"
        )
