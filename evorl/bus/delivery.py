"""What a process has to say and has heard, and what is under way: the bus without its sockets.

Values: of each name the newest counts. To each peer one is under way until it is seen; then the
newest follows, if there is a newer one. Queues, requests and replies are streams: numbered
messages that are kept until the peer has taken them, sent again if it was lost in between, and
recognised if they come twice. Nothing here is safe for threads: the bus holds a lock.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from evorl.bus.wire import MAX_RANK, Kind, Message, Payload, encode

LEFT = "it left"  # why a process is gone that closed its bus
MIN_CREDIT = 2  # with less a sender would wait for acknowledgements that can wait
PEERS = "$peers"  # the value in which the centre of a star says who is there
MAX_CREDIT = 64  # messages of one stream that a peer may have under way
MAX_NAMES = 1024  # of values, and of streams, that a peer may use
STREAMS = (Kind.MESSAGE, Kind.REQUEST, Kind.REPLY)


class Value(NamedTuple):
    """What a peer published or sent."""

    peer: int  # the rank that published or sent it, also where rank 0 passed it on
    version: int  # of a published value; the sequence number of a message
    fields: dict[str, Any]  # shared by all who ask for the same value: copy before you write
    arrival: int = 0  # of a published value: which one this process got to know later is higher


@dataclass(eq=False)
class Published:
    """The newest value of a name that a process published."""

    peer: int
    session: int
    version: int
    arrival: int  # counted here
    payload: Payload
    value: Value | None = None  # once somebody asked for it

    def message(self, name: str) -> Message:
        """What its process sent."""
        return Message(
            Kind.VALUE, self.peer, self.session, name, self.version, payload=self.payload
        )


@dataclass
class Outgoing:
    """A stream to a peer."""

    last: int = 0  # sequence number that was given out
    untaken: deque[Message] = field(default_factory=deque)


@dataclass
class Incoming:
    """A stream from a peer: sequence numbers that came, were taken, and said to be taken."""

    last: int = 0
    taken: int = 0
    said: int = 0


ValueKey = tuple[int, str]  # origin, name
StreamKey = tuple[int, Kind, str]  # peer, kind, name


class Delivery:
    """Values and streams of one process."""

    def __init__(self, rank: int, session: int, star: bool) -> None:
        self.rank, self.session, self.star = rank, session, star
        self.relays = star and rank == 0
        self.values: dict[ValueKey, Published] = {}
        self.present: dict[int, int] = {}  # the sessions of those who are there, by rank
        self.gone: dict[int, str] = {}  # why, by rank
        self.linked: set[int] = set()  # those who can be sent to right now
        self.outbox: deque[tuple[int, Message]] = deque()  # what leaves, to whom
        self.counts: Counter[str] = Counter()
        self.replies: dict[tuple[int, str, int], Message | None] = {}  # by peer, name, number
        self._inbox: dict[tuple[Kind, str], deque[Message]] = {}
        self._unseen: dict[int, dict[ValueKey, tuple[int, int]]] = {}  # under way, by peer
        self._out: dict[StreamKey, Outgoing] = {}
        self._in: dict[StreamKey, Incoming] = {}
        self._unsaid: set[StreamKey] = set()  # streams of which something taken is not said to be
        self._sessions: dict[int, int] = {}  # to which the streams belong, by rank
        self._arrivals = 0

    # Peers

    def link(self, peer: int, session: int) -> None:
        """A peer has said hello, perhaps again: it gets all that it may have missed."""
        if self._sessions.get(peer) != session:
            self._end_streams(peer)  # another process took this rank
        self.present[peer] = self._sessions[peer] = session
        self.gone.pop(peer, None)
        self.linked.add(peer)
        self._unseen[peer] = {}
        for key in list(self.values):
            self._offer(peer, key)
        for (target, _, _), stream in self._out.items():
            if target == peer:
                self.outbox.extend((peer, message) for message in stream.untaken)
        self._announce()

    def unlink(self, peer: int) -> None:
        """The connection to a peer is closed; it may come back."""
        self.linked.discard(peer)
        self._unseen.pop(peer, None)

    def lose(self, peer: int, why: str) -> None:
        """A peer is gone; unless it left, it may come back."""
        self.unlink(peer)
        self.present.pop(peer, None)
        self.gone[peer] = why
        if why == LEFT:
            self._end_streams(peer)
        self._announce()

    def belongs(self, peer: int, session: int) -> bool:
        """Whether a rank is this process's: it is there, or may come back."""
        return self._sessions.get(peer) == session

    def _end_streams(self, peer: int) -> None:
        self._sessions.pop(peer, None)
        self._unsaid = {key for key in self._unsaid if key[0] != peer}
        for streams in (self._out, self._in):
            for key in [key for key in streams if key[0] == peer]:
                if isinstance(stream := streams.pop(key), Outgoing):
                    self.counts["dropped"] += len(stream.untaken)

    def _announce(self) -> None:
        """In a star the centre tells who is there."""
        if self.relays:
            gone = {str(peer): why for peer, why in self.gone.items()}
            payload = encode({"present": sorted(self.present), "gone": gone}, "peers")
            self.publish(PEERS, payload, self.version(PEERS) + 1)

    def _take_announcement(self, announced: Mapping[str, Any]) -> None:
        others = {rank for rank in announced["present"] if rank not in (0, self.rank)}
        for rank in [rank for rank in self.present if rank != 0 and rank not in others]:
            del self.present[rank]
        self.present |= dict.fromkeys(others, 0)
        gone = {int(rank): str(why) for rank, why in announced["gone"].items()}
        self.gone = {r: why for r, why in gone.items() if r not in self.present and r != self.rank}

    # Values

    def version(self, name: str) -> int:
        """The version that this process published last; -1 if none."""
        found = self.values.get((self.rank, name))
        return found.version if found else -1

    def names_of(self, peer: int) -> int:
        """How many values a process has published."""
        return sum(origin == peer and name != PEERS for origin, name in self.values)

    def publish(self, name: str, payload: Payload, version: int) -> None:
        """Make this the newest value, and offer it to all who are linked."""
        self._store((self.rank, name), self.session, version, payload)

    def find(self, name: str, peer: int | None, newer_than: int) -> Published | None:
        """The newest value of a peer, or of the one whose value arrived last."""
        if peer is not None:
            found = self.values.get((peer, name))
            return found if found and found.version > newer_than else None
        candidates = [
            value
            for (origin, its), value in self.values.items()
            if its == name and origin != self.rank and value.version > newer_than
        ]
        return max(candidates, key=lambda value: value.arrival, default=None)

    def _store(self, key: ValueKey, session: int, version: int, payload: Payload) -> None:
        self._arrivals += 1
        self.values[key] = Published(key[0], session, version, self._arrivals, payload)
        for peer in self.linked:
            self._offer(peer, key)

    def _offer(self, peer: int, key: ValueKey) -> None:
        """Send a value if it is for this peer, and none of its name is under way."""
        value, unseen = self.values[key], self._unseen[peer]
        wanted = key[0] == self.rank or (self.relays and key[0] != peer)
        if not wanted or key in unseen:
            return
        unseen[key] = (value.session, value.version)
        self._put(peer, value.message(key[1]))

    def inherit(self, peer: int, message: Message) -> None:
        """Take over a value that a process left when it went."""
        key = (peer, message.name)
        if message.kind == Kind.VALUE and message.origin == peer and key not in self.values:
            self._store(key, message.session, message.version, message.payload)

    def small_values(self, limit: int) -> list[list[bytes]]:
        """The frames of this process's smallest values, up to this many bytes in all."""
        own = [(name, value) for (peer, name), value in self.values.items() if peer == self.rank]
        found = [value.message(name).frames() for name, value in own if name != PEERS]
        found.sort(key=lambda frames: sum(map(len, frames)))
        totals = accumulate(sum(map(len, frames)) for frames in found)
        kept = [frames for total, frames in zip(totals, found, strict=True) if total <= limit]
        return [[frame.bytes for frame in frames] for frames in kept]

    def is_settled(self) -> bool:
        """Whether everybody who is linked has seen all values."""
        return not any(self._unseen.values())

    # Streams

    def has_credit(self, peer: int, kind: Kind, name: str, credit: int) -> bool:
        """Whether less than this many messages are untaken."""
        stream = self._out.get((peer, kind, name))
        return stream is None or len(stream.untaken) < credit

    def post(
        self,
        peer: int,
        kind: Kind,
        name: str,
        payload: Payload,
        version: int = 0,
        failed: bool = False,
    ) -> int:
        """Put a message into a stream; its sequence number."""
        stream = self._out.setdefault((peer, kind, name), Outgoing())
        stream.last += 1
        message = Message(
            kind, self.rank, self.session, name, version, stream.last, failed, payload
        )
        stream.untaken.append(message)
        self._put(peer, message)
        return stream.last

    def answer(self, request: Message, payload: Payload, failed: bool) -> None:
        """Reply to a request, unless its process is gone or takes no replies."""
        peer, name = request.origin, request.name
        same = self.present.get(peer) == request.session
        if same and self.has_credit(peer, Kind.REPLY, name, MAX_CREDIT):
            self.post(peer, Kind.REPLY, name, payload, request.sequence, failed)
        else:
            self.counts["dropped"] += 1

    def take(self, kind: Kind, name: str) -> Message | None:
        """The oldest message of all streams of this name, if there is one."""
        waiting = self._inbox.get((kind, name))
        if not waiting:
            return None
        message = waiting.popleft()
        self._taken(message)
        return message

    def count(self, kind: Kind, name: str) -> int:
        """Messages of a name that are here and not taken."""
        return len(self._inbox.get((kind, name), ()))

    def waiting(self, kind: Kind) -> Iterator[str]:
        """The names whose streams have messages."""
        return (name for (its, name), waiting in self._inbox.items() if its == kind and waiting)

    def _taken(self, message: Message) -> None:
        """Acknowledge a message, unless its process was replaced or left."""
        if self._sessions.get(message.origin) == message.session:
            key = (message.origin, message.kind, message.name)
            stream = self._in[key]
            stream.taken = message.sequence
            if stream.last - stream.said > 1:
                self._acknowledge(key)
            else:  # its sender still has credit: this can go along with something else
                self._unsaid.add(key)

    def _acknowledge(self, key: StreamKey) -> None:
        peer, kind, name = key
        stream = self._in[key]
        stream.said = stream.taken
        self._unsaid.discard(key)
        self._put(peer, Message(Kind.TAKEN, self.rank, self.session, name, kind, stream.taken))

    def leaving(self, all_of_it: bool) -> list[tuple[int, Message]]:
        """What is to be sent; acknowledgements that can wait only with others, or with all."""
        if self.outbox or all_of_it:
            for key in list(self._unsaid):
                self._acknowledge(key)
        leaving = list(self.outbox)
        self.outbox.clear()
        return leaving

    # What arrives

    def arrived(self, peer: int, message: Message) -> None:
        """A message from a peer that is linked. What is wrong about it is counted."""
        own = message.origin == peer and message.session == self.present[peer]
        relayed = message.kind == Kind.VALUE and self.star and peer == 0
        if not own and not (relayed and message.origin != self.rank):
            self.counts["misdirected"] += 1
        elif message.kind == Kind.VALUE:
            self._value(peer, message)
        elif message.kind == Kind.SEEN:
            self._value_seen(peer, message)
        elif message.kind == Kind.TAKEN:
            self._stream_taken(peer, message)
        elif message.kind in STREAMS:
            self._stream(message)
        else:
            self.counts["unexpected"] += 1

    def _value(self, peer: int, message: Message) -> None:
        key = (message.origin, message.name)
        known = self.values.get(key)
        if known and known.session == message.session and message.version <= known.version:
            self.counts["stale"] += 1
        elif known is None and self.names_of(message.origin) >= MAX_NAMES:
            self.counts["too_many"] += 1
            return
        elif message.name != PEERS or (self.star and _is_announcement(peer, message)):
            self._store(key, message.session, message.version, message.payload)
            if message.name == PEERS:
                self._take_announcement(message.payload.plain)
        else:
            self.counts["malformed"] += 1
            return
        here = (self.rank, self.session)
        seen = Message(Kind.SEEN, *here, message.name, message.version, message.origin)
        self._put(peer, seen)

    def _value_seen(self, peer: int, message: Message) -> None:
        key = (message.sequence, message.name)
        under_way = self._unseen[peer].get(key)
        if under_way is None or under_way[1] != message.version:
            self.counts["unexpected"] += 1
            return
        del self._unseen[peer][key]
        newest = self.values[key]
        if (newest.session, newest.version) != under_way:
            self._offer(peer, key)

    def _stream(self, message: Message) -> None:
        key = (message.origin, message.kind, message.name)
        if key not in self._in and self._streams_of(message.origin) >= MAX_NAMES:
            self.counts["too_many"] += 1
            return
        stream = self._in.setdefault(key, Incoming())
        if message.sequence <= stream.last:
            self.counts["replayed"] += 1
            self._acknowledge(key)  # it may not know
        elif message.sequence > stream.last + 1 or stream.last - stream.taken >= MAX_CREDIT:
            self.counts["out_of_order"] += 1
        else:
            stream.last = message.sequence
            self._accept(message)

    def _streams_of(self, peer: int) -> int:
        return sum(key[0] == peer for key in self._in)

    def _accept(self, message: Message) -> None:
        if message.kind != Kind.REPLY:
            self._inbox.setdefault((message.kind, message.name), deque()).append(message)
            return
        request = (message.origin, message.name, message.version)
        if request in self.replies:
            self.replies[request] = message
        else:
            self.counts["late"] += 1  # nobody waits for it any more
        self._taken(message)

    def _stream_taken(self, peer: int, message: Message) -> None:
        if message.version not in STREAMS:
            self.counts["unexpected"] += 1
            return
        stream = self._out.get((peer, Kind(message.version), message.name))
        if stream is None or message.sequence > stream.last:
            self.counts["unexpected"] += 1
            return
        while stream.untaken and stream.untaken[0].sequence <= message.sequence:
            stream.untaken.popleft()

    def _put(self, peer: int, message: Message) -> None:
        """Send, if the peer is linked."""
        if peer in self.linked:
            self.outbox.append((peer, message))


def _is_announcement(peer: int, message: Message) -> bool:
    """Whether the centre of a star says who is there, in the form that it should have."""
    plain = message.payload.plain
    present, gone = plain.get("present"), plain.get("gone")
    return (
        peer == message.origin == 0
        and isinstance(present, list)
        and all(type(rank) is int and 0 <= rank <= MAX_RANK for rank in present)
        and isinstance(gone, dict)
        and all(rank.isascii() and rank.isdigit() and len(rank) < 6 for rank in gone)
    )
