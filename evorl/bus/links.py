"""Connections between processes: one listens (a ROUTER), the other one dials (a DEALER).

Who dials says hello, with the run's token; it is welcomed or refused. A connection that breaks is
dialled again, and begins with a hello again. A guest has no rank before it is welcomed.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from evorl.bus.delivery import LEFT, Delivery
from evorl.bus.lookups import Lookups
from evorl.bus.rendezvous import Contact, Meeting
from evorl.bus.sockets import LINGER, Socket, Sockets, next_message
from evorl.bus.waiting import Changed
from evorl.bus.wire import MAX_RANK, Kind, Message, Refused, decode, encode

TICK = 0.25  # seconds between looks at what is missing
BEAT = 1.0  # seconds between pings, and between looks for the address of who is down
GRACE = 1.0  # seconds that a broken connection has to come back
AT_ONCE = 1000  # messages that are read when a connection ends
HUNG_UP, LOCKED_OUT = zmq.EVENT_DISCONNECTED, zmq.EVENT_HANDSHAKE_FAILED_AUTH
NOT_HEARD = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
GUEST = MAX_RANK  # of who joins with a token, until it is welcomed


class Members:
    """Who is linked, for both ends of a connection; all in the thread of the sockets."""

    def __init__(
        self,
        delivery: Delivery,
        changed: Changed,
        rendezvous: Meeting,
        lookups: Lookups,
        schema: str,
    ) -> None:
        self.delivery, self.changed = delivery, changed
        self.rendezvous, self.lookups, self.schema = rendezvous, lookups, schema
        self.counts = delivery.counts
        self.broken: dict[int, float] = {}  # when connections broke, by rank
        self.closing = False  # this process leaves: nobody new is let in

    def link(self, peer: int, session: int, rank: Any = None) -> None:
        """A peer said hello, or welcome; to a guest it says which rank it has from now on."""
        self.broken.pop(peer, None)
        with self.changed:
            if self.delivery.rank == GUEST and type(rank) is int and 0 < rank < GUEST:
                self.delivery.rank = rank
            self.delivery.link(peer, session)
            self.changed.announce()

    def unlink(self, peer: int) -> None:
        """A connection is closed; if it does not come back in time, the peer is gone."""
        if peer in self.delivery.linked:
            self.broken[peer] = time.monotonic()
            with self.changed:
                self.delivery.unlink(peer)

    def lose(self, peer: int, why: str) -> None:
        """A peer is gone; where this process leaves, they all are."""
        self.broken.pop(peer, None)
        with self.changed:
            if self.closing:
                self.delivery.unlink(peer)
            else:
                self.delivery.lose(peer, why)
                self.changed.announce()

    def lose_broken(self) -> None:
        """Those whose connections did not come back are gone."""
        late = time.monotonic() - GRACE
        for peer in [peer for peer, since in self.broken.items() if since <= late]:
            self.lose(peer, "its connection closed")

    def deliver(self, peer: int, message: Message) -> None:
        """A message of a peer that is linked."""
        with self.changed:
            self.delivery.arrived(peer, message)
            if message.kind in (Kind.SEEN, Kind.TAKEN):
                self.changed.announce_credit()
            elif message.kind == Kind.REQUEST:
                self.changed.announce_request()
            else:
                self.changed.announce()

    def decode(self, frames: list[zmq.Frame]) -> Message | None:
        """The message in these frames; None, and counted, if it is not one."""
        self.counts["received"] += 1
        try:
            return decode(frames)
        except Refused as refused:
            self.counts[refused.reason] += 1
            return None

    def message(self, kind: Kind, **fields: Any) -> Message:
        """A message of this process."""
        here = self.delivery
        return Message(kind, here.rank, here.session, payload=encode(fields, kind.name))


class Dialler:
    """The connection to a process that this one dials."""

    def __init__(self, members: Members, sockets: Sockets, peer: int) -> None:
        self._members, self._sockets, self.peer = members, sockets, peer
        self._contact: Contact | None = None
        self._socket: Socket | None = None
        self._monitor: Socket | None = None
        self._given_up = False  # unless another process takes its place
        self._look_at = 0.0  # when to look for its address

    def send(self, message: Message) -> bool:
        """Send to the peer; whether it did."""
        if self._socket is None:
            return False
        try:
            self._sockets.put(self._socket, message.frames())
        except zmq.ZMQError:  # its connection is being ended: after a new one it says hello
            return False
        return True

    def look(self) -> None:
        """Dial if there is no connection, and look whether there is another address by now."""
        now = time.monotonic()
        if now >= self._look_at and self.peer not in self._members.delivery.linked:
            self._look_at = now + (BEAT if self._contact else TICK)
            if self._contact and self._socket is None and not self._given_up:
                self._dial(self._contact)
            known = self._members.rendezvous
            self._members.lookups.ask(self.peer, lambda: known.find(self.peer), self._found)

    def _found(self, contact: Contact | None) -> None:
        """Another address is that of another process, which may want what the last one did not."""
        if contact is None or contact == self._contact:
            return
        left_before = self._contact is None and self._given_up
        self._contact = contact
        if self.peer not in self._members.delivery.linked and not left_before:
            self.hang_up()
            self._given_up = False
            self._dial(contact)

    def give_up(self, why: str, linger: float = 0.0) -> None:
        """The peer is gone, or wants nothing of this process."""
        self.hang_up(linger)
        self._given_up = True
        self._members.lose(self.peer, why)

    def hang_up(self, linger: float = 0.0) -> None:
        """Close the connection; what was sent has some seconds to leave."""
        for sock in (self._monitor, self._socket):
            self._sockets.unwatch(sock)
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(int(linger * 1000))
        if self._monitor is not None:
            self._monitor.close(0)
        self._socket = self._monitor = None

    def _dial(self, contact: Contact) -> None:
        members = self._members
        if not contact.address or (contact.key is None) != (self._sockets.keys is None):
            where = contact.address or "no address"
            self.give_up(f"it listens on {where}: it joined with another host or topology")
            return
        sock = self._socket = self._sockets.open(zmq.DEALER)
        self._monitor = self._sockets.monitor(sock, HUNG_UP | LOCKED_OUT | NOT_HEARD)
        self._sockets.watch(self._monitor, self._read_event)
        self._sockets.watch(sock, self._read)
        try:
            if contact.key:
                sock.curve_serverkey = contact.key.encode()
            sock.connect(contact.address)
        except zmq.ZMQError as error:
            self.give_up(f"its address {contact.address} cannot be dialled: {error.strerror}")
            return
        star, token = members.delivery.star, members.rendezvous.token
        self.send(members.message(Kind.HELLO, token=token, star=star, schema=members.schema))

    def _dial_again(self, after: float) -> None:
        self.hang_up()
        self._look_at = time.monotonic() + after
        self._members.unlink(self.peer)

    def _read_event(self) -> None:
        assert self._monitor
        event = recv_monitor_message(self._monitor)["event"]
        drain(self._read)  # it may have said goodbye
        if event == LOCKED_OUT:
            self.give_up("it does not know the key of this process")
        elif event & NOT_HEARD:  # hanging up follows
            if self._members.delivery.rank == GUEST:
                self.give_up("it has another token, or is no learner")
        elif self._socket is not None:
            self._dial_again(TICK)

    def _read(self) -> None:
        if self._socket is None:
            raise zmq.Again
        if message := self._members.decode(next_message(self._socket)):
            self._handle(message)

    def _handle(self, message: Message) -> None:
        members, kind = self._members, message.kind
        if kind in (Kind.PING, Kind.WELCOME, Kind.BYE, Kind.REFUSED):
            if message.origin != self.peer:
                members.counts["misdirected"] += 1
            elif kind == Kind.WELCOME:
                members.link(self.peer, message.session, message.payload.plain.get("rank"))
            elif kind == Kind.BYE:
                self.send(members.message(Kind.BYE))
                self.give_up(LEFT, linger=LINGER)
            elif kind == Kind.REFUSED:
                self._refused(str(message.payload.plain.get("why"))[:200])
        elif self.peer in members.delivery.linked:
            members.deliver(self.peer, message)
        else:
            members.counts["unknown"] += 1

    def _refused(self, why: str) -> None:
        if why == "hello":  # it has forgotten this process
            self._dial_again(0.0)
        else:
            self.give_up(why if why == LEFT else f"it refused this process: {why}")


def drain(read: Callable[[], object]) -> None:
    """Read all that has arrived, but not for ever."""
    with suppress(zmq.Again):
        for _ in range(AT_ONCE):
            read()
