"""Processes that talk at any time: newest values, bounded queues, requests. No collectives.

    bus = Bus.join(store, rank, size)  # a c10d Store; returns at once, peers may come later
    bus.publish("weights", {"theta": theta, "step": 7})  # to all, never waits
    newest = bus.latest("weights", peer=0, newer_than=3)  # or None
    bus.wait(lambda: bus.latest("weights", peer=0), what="the first weights")
    bus.send(0, "experience", {"obs": obs})  # waits for credit
    value = bus.receive("experience")
    bus.serve("double", lambda value: {"x": 2 * value.fields["x"]})
    bus.request(0, "double", {"x": 2}).fields["x"]
    bus.close()

Tensors and arrays travel as raw bytes, everything else as JSON; nothing that arrives can execute.
What waits gives up after its time-out with a RunError that names the peer.
"""

import atexit
import os
import secrets
import time
from collections.abc import Callable, Mapping
from threading import Thread, current_thread
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from evorl.bus.delivery import MAX_CREDIT, MAX_NAMES, MIN_CREDIT, Delivery, Value
from evorl.bus.network import Network
from evorl.bus.rendezvous import Rendezvous
from evorl.bus.sockets import LINGER
from evorl.bus.waiting import Changed, Deadline, Timeout
from evorl.bus.wire import EMPTY, MAX_RANK, Kind, Message, Payload, check_name, encode
from evorl.errors import RunError, raised

T = TypeVar("T")
KEPT = 2**16  # bytes of a process's values that the store keeps when it has left
ADVICE = "look for an error above, or give it more time"


class Bus:
    """This process and its peers. Every method may be called from any thread.

    Attributes:
        rank: The number of this process.
        size: How many processes are expected; more may join.
        timeout: Seconds that a call waits where it gives no time-out of its own.
    """

    @classmethod
    def join(
        cls,
        store: Any,
        rank: int,
        size: int,
        *,
        topology: Literal["star", "mesh"] = "mesh",
        timeout: float = 60.0,
        host: str | tuple[str, str] | None = None,
        schema: str = "",
        credit: int = 2,
    ) -> "Bus":
        """Meet the processes that share a store; returns at once, the others may come later.

        Args:
            store: A torch.distributed Store, with a prefix of its own for each restart of all
                ranks; unused, and may be None, where size is 1.
            rank: Number of this process.
            size: Number of processes that are expected.
            topology: mesh links every pair; star links each to rank 0, which passes on what the
                others publish. In a star only rank 0 and another one can send and request.
            timeout: Seconds that a call waits unless it says otherwise.
            host: The address to listen on by tcp with CURVE keys, and the one to tell the others
                if that is another; None takes ipc, for processes of one machine.
            schema: What the processes must agree on, such as a version; others are refused.
            credit: Messages of a queue that may be under way to one peer.
        """
        if topology not in ("star", "mesh"):
            raise RunError(f"bus: topology must be star or mesh, got {topology!r}")
        if not 0 <= rank <= MAX_RANK or size < 1:
            raise RunError(f"bus: expected a rank from 0 to {MAX_RANK}, got {rank} of {size}")
        if not MIN_CREDIT <= credit <= MAX_CREDIT:
            raise RunError(f"bus: credit must be {MIN_CREDIT} to {MAX_CREDIT}, got {credit}")
        bus = cls(rank, size, topology == "star", timeout, credit)
        if size > 1:
            bus._network = Network(
                bus._delivery,
                bus._changed,
                Rendezvous(store),
                dials=range(min(rank, 1) if topology == "star" else rank),
                expected=size,
                listens=topology == "mesh" or rank == 0,
                host=(host, host) if isinstance(host, str) else host,
                schema=schema,
            )
            atexit.register(bus.close)
        return bus

    def __init__(self, rank: int, size: int, star: bool, timeout: float, credit: int) -> None:
        self.rank, self.size, self.timeout, self.credit = rank, size, timeout, credit
        self._star, self._closed, self._process = star, False, os.getpid()
        self._changed = Changed()
        self._delivery = Delivery(rank, secrets.randbits(63) | 1, star)
        self._network: Network | None = None
        self._functions: dict[str, Callable[[Value], Mapping[str, Any]]] = {}
        self._server: Thread | None = None

    @property
    def is_active(self) -> bool:
        """Whether there is somebody to talk to: several processes, and not closed."""
        return self._network is not None and not self._closed

    @property
    def peers(self) -> tuple[int, ...]:
        """The other processes that are there now: they said hello, and are not gone."""
        with self._changed:
            return tuple(sorted(self._delivery.present))

    @property
    def gone(self) -> Mapping[int, str]:
        """Those that were there and are not: why, by rank. Who comes back is no longer in it."""
        with self._changed:
            return dict(sorted(self._delivery.gone.items()))

    @property
    def counts(self) -> Mapping[str, int]:
        """Messages sent, received, and refused, by reason: malformed, replayed, unknown, …"""
        return MappingProxyType(self._delivery.counts)

    def meet(self, timeout: float | None = None) -> None:
        """Wait until all `size` processes are there; a RunError names those that are missing."""
        others = set(range(self.size)) - {self.rank}

        def missing() -> str:
            absent = sorted(others - set(self.peers))
            return f"rank {absent[0]}" if len(absent) == 1 else f"ranks {absent}"

        self._wait(
            lambda: others <= set(self.peers),
            self._deadline(timeout),
            lambda: f"meet: {missing()} did not come",
        )

    def publish(
        self, name: str, fields: Mapping[str, Any], version: int | None = None, what: str = ""
    ) -> int:
        """Give all peers, also later ones, the newest value of a name; its version.

        Never waits. Tensors are copied before it returns. At most one value is under way to a
        peer; of those published meanwhile only the newest follows. A version (one more than the
        last by default) that is not newer is a RunError. `what` is how errors call it.
        """
        what = what or f"publish {name!r}"
        check_name(name, what)
        payload = encode(fields, what)
        self._check_open(what)
        with self._changed:
            last = self._delivery.version(name)
            if last < 0 and self._delivery.names_of(self.rank) >= MAX_NAMES:
                raise RunError(f"{what}: at most {MAX_NAMES:,} names; use fields of one name")
            version = last + 1 if version is None else version
            if version <= last:
                raise RunError(f"{what}: version {version} is not newer than {last}")
            self._delivery.publish(name, payload, version)
            self._leave()
            self._changed.announce()
        return version

    def latest(self, name: str, peer: int | None = None, newer_than: int = -1) -> Value | None:
        """The newest value of a peer; of anybody else, the one that arrived last, with None.

        None if there is none, or none with a version above `newer_than`. Values outlive their
        peer. All who ask for the same one share its tensors: copy before you write.
        """
        with self._changed:
            found = self._delivery.find(name, peer, newer_than)
            if found is None or found.value:
                return found.value if found else None
            payload = found.payload
        # without the lock: large ones take milliseconds
        value = Value(found.peer, found.version, payload.fields(), found.arrival)
        with self._changed:
            if found.value is None:
                found.value = value
                if not self._delivery.relays and found.peer != self.rank:
                    found.payload = EMPTY
            return found.value

    def wait(
        self,
        condition: Callable[[], T | None],
        timeout: float | None = None,
        what: str = "",
        peer: int | None = None,
    ) -> T:
        """What `condition` gives once it is true; it is asked again when something arrives.

        A RunError names `what` after the time-out, and at once if `peer` is given and is gone.
        """
        what = f"wait for {what or 'a condition'}"
        why = "it was not met" if peer is None else f"rank {peer} did not bring it"
        return self._wait(condition, self._deadline(timeout), lambda: f"{what}: {why}", peer, what)

    def wake(self) -> None:
        """Have every wait ask its condition again: something changed that is not on the bus."""
        with self._changed:
            self._changed.announce()

    def pause(self, seconds: float) -> None:
        """Wait until something arrives, or the time is over."""
        with self._changed:
            self._changed.wait(seconds)

    def send(
        self, peer: int, queue: str, fields: Mapping[str, Any], timeout: Timeout = None
    ) -> None:
        """Put a message into a queue of a peer; waits while `credit` of them are not taken."""
        what = f"send to {queue!r}"
        payload = encode(fields, f"send to {check_name(queue, what)!r}")
        self._post(peer, Kind.MESSAGE, queue, payload, self._deadline(timeout), what)

    def receive(self, queue: str, timeout: float | None = None) -> Value:
        """The oldest message that any peer sent to a queue; its sender gets credit for another."""
        what = f"receive from {queue!r}"
        self._check_open(f"receive from {check_name(queue, what)!r}")
        return self.poll(queue) or self._wait(
            lambda: self.poll(queue), self._deadline(timeout), lambda: f"{what}: nothing arrived"
        )

    def poll(self, queue: str) -> Value | None:
        """The same, if there is a message; it never waits."""
        message = self._take(Kind.MESSAGE, queue)
        return message and Value(message.origin, message.sequence, message.payload.fields())

    def waiting(self, queue: str) -> int:
        """How many messages of a queue are here and not taken."""
        return self._delivery.count(Kind.MESSAGE, queue)

    def request(
        self, peer: int, name: str, fields: Mapping[str, Any], timeout: float | None = None
    ) -> Value:
        """Ask a peer, and wait for what its function answers; RunError if that raised."""
        what = f"request {name!r}"
        payload = encode(fields, f"request {check_name(name, what)!r}")
        deadline = self._deadline(timeout)
        number, session = self._post(peer, Kind.REQUEST, name, payload, deadline, what)
        asked, replies = (peer, name, number), self._delivery.replies

        def answered() -> Message | None:
            if self._delivery.present.get(peer, session) != session:
                raise RunError(f"{what}: another process took the place of rank {peer}; ask again")
            return replies[asked]

        try:
            reply = self._wait(
                answered, deadline, lambda: f"{what}: rank {peer} did not answer", peer, what
            )
        finally:
            with self._changed:
                del replies[asked]
        if reply.failed:
            error = reply.payload.plain.get("error")
            raise RunError(f"{what}: rank {peer} could not answer: {error}")
        return Value(peer, reply.version, reply.payload.fields())

    def serve(self, name: str, function: Callable[[Value], Mapping[str, Any]]) -> None:
        """Answer requests from now on, one after another in a thread of the bus.

        Requests that come before there is a function wait for it. What it raises is the
        requester's RunError.
        """
        self._check_open(f"serve {name!r}")
        with self._changed:
            self._functions[check_name(name, "serve")] = function
            if self._server is None:
                self._server = Thread(target=self._serve, name="evorl-bus-serve", daemon=True)
                self._server.start()
            self._changed.announce_request()

    def close(self) -> None:
        """Say goodbye and leave nothing behind; values under way get a second to arrive."""
        if os.getpid() != self._process:
            return  # it was forked: the bus is its parent's
        with self._changed:
            if self._closed:
                return
            deadline = time.monotonic() + LINGER
            while self._network and not self._network.failure and not self._delivery.is_settled():
                if not self._changed.acknowledged.wait(deadline - time.monotonic()):
                    break
            self._closed = True
            self._changed.announce_end()
            small = self._delivery.small_values(KEPT)  # who comes later may look for one
        if self._network:
            self._network.stop(leaves=small)
            atexit.unregister(self.close)
        if self._server not in (None, current_thread()):
            self._server.join(LINGER)

    def __enter__(self) -> "Bus":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wait(
        self,
        condition: Callable[[], T | None],
        deadline: Deadline,
        complaint: Callable[[], str],
        peer: int | None = None,
        what: str = "",
        for_credit: bool = False,
    ) -> T:
        """What the condition gives; a RunError with the complaint after the deadline."""

        def check() -> None:
            self._check_open(what)
            if peer is not None and (why := self.gone.get(peer)):
                raise RunError(f"{what}: rank {peer} is gone ({why}); {ADVICE}")

        self._check_open(what)
        result = self._changed.until(condition, deadline, check, for_credit)
        if result is None:
            gone = [f"; rank {rank} is gone ({why})" for rank, why in self.gone.items()]
            raise RunError(f"{complaint()} within {deadline.seconds:g} s{''.join(gone)}; {ADVICE}")
        return result

    def _deadline(self, timeout: Timeout) -> Deadline:
        return Deadline.after(self.timeout if timeout is None else timeout)

    def _check_open(self, what: str) -> None:
        if os.getpid() != self._process:
            raise RunError(f"{what}: a bus does not survive a fork; join in the new process")
        if self._closed:
            raise RunError(f"{what}: the bus is closed")
        if self._network and (failure := self._network.failure):
            raise RunError(f"{what}: the bus has failed ({raised(failure)})") from failure

    def _leave(self) -> None:
        """Send what is in the outbox; with the lock held."""
        if self._network and self._delivery.outbox:
            self._network.send()

    def _post(
        self, peer: int, kind: Kind, name: str, payload: Payload, deadline: Deadline, what: str
    ) -> tuple[int, int]:
        """Put a message into a stream when there is credit; its number, and the peer's session."""
        here = self._delivery
        if self._network is None or peer == self.rank:
            raise RunError(f"{what}: there is no other process of rank {peer}")
        if self._star and 0 not in (peer, self.rank):
            raise RunError(
                f"{what}: in a star rank {self.rank} reaches rank 0 only, not rank {peer};"
                " use a mesh"
            )

        def post() -> tuple[int, int] | None:
            with self._changed:
                if peer not in here.present or not here.has_credit(peer, kind, name, self.credit):
                    return None
                number = here.post(peer, kind, name, payload)
                if kind == Kind.REQUEST:
                    here.replies[peer, name, number] = None
                self._leave()
                return number, here.present[peer]

        def complaint() -> str:
            if peer not in here.present:
                return f"{what}: rank {peer} did not come"
            return f"{what}: rank {peer} did not take the {self.credit} before"

        self._check_open(what)
        return post() or self._wait(post, deadline, complaint, peer, what, for_credit=True)

    def _take(self, kind: Kind, name: str) -> Message | None:
        with self._changed:
            if message := self._delivery.take(kind, name):
                self._leave()
            return message

    def _serve(self) -> None:
        """In a thread of its own: answers one request after another."""
        while request := self._next_request():
            what = f"answer to {request.name!r}"
            value = Value(request.origin, request.sequence, request.payload.fields())
            try:
                answer, failed = encode(self._functions[request.name](value), what), False
            except Exception as error:  # it is the requester's
                answer, failed = encode({"error": raised(error)[:1000]}, what), True
            with self._changed:
                self._delivery.answer(request, answer, failed)
                self._leave()

    def _next_request(self) -> Message | None:
        with self._changed:
            while not self._closed:
                for name in self._delivery.waiting(Kind.REQUEST):
                    if name in self._functions:
                        return self._take(Kind.REQUEST, name)
                self._changed.requested.wait()
            return None
