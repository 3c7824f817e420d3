"""Where other processes dial in: a ROUTER, and who is let in.

By ipc the socket is in a folder that only this user can enter. By tcp everything is encrypted, and
only keys that the store knows are let in. A Door is a port for guests: they have the token of a
run, from which both sides make their keys, and get a rank here.
"""

import hmac
from collections import Counter
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from evorl.bus.delivery import LEFT
from evorl.bus.links import GUEST, HUNG_UP, Members, drain
from evorl.bus.rendezvous import Contact, Folder
from evorl.bus.sockets import Socket, Sockets, next_message
from evorl.bus.wire import Kind, Message
from evorl.errors import RunError

Answer = Callable[[Any], None]  # with the user id of who is let in, or None
Guard = Callable[[bytes, Answer], None]  # is told a public key, and answers, perhaps later


class Entrance:
    """Where zmq asks whom to let in (ZeroMQ RFC 27); every listener guards its own domain."""

    def __init__(self, sockets: Sockets, counts: Counter[str]) -> None:
        self._sockets, self._counts = sockets, counts
        self._socket = sockets.open_entrance()
        self.guards: dict[bytes, Guard] = {}  # by domain
        sockets.watch(self._socket, self._ask)

    def _ask(self) -> None:
        version, request, domain, *_, key = self._socket.recv_multipart(zmq.NOBLOCK)

        def answer(user: Any) -> None:
            if user is None:
                self._counts["strangers"] += 1
                said = [b"400", b"unknown key", b"", b""]
            else:
                said = [b"200", b"", str(user).encode(), b""]
            self._socket.send_multipart([version, request, *said])
            self._sockets.watch(self._socket, self._ask)

        self._sockets.unwatch(self._socket)  # the next one is asked when this one is answered
        self.guards[domain](key, answer)


class Listener:
    """One socket that others dial."""

    def __init__(self, members: Members, sockets: Sockets, schema: str) -> None:
        self._members, self._sockets, self._schema = members, sockets, schema
        self._routes: dict[int, bytes] = {}  # routing ids by rank
        self._ranks: dict[bytes, int] = {}  # and the other way round
        self._router = router = sockets.open(zmq.ROUTER)
        router.router_mandatory = True  # sending to nobody is an error
        self.contact = self._bind(router)
        self._monitor = sockets.monitor(router, HUNG_UP)
        sockets.watch(self._monitor, self._someone_hung_up)
        sockets.watch(router, self._read)

    def send(self, peer: int, message: Message) -> bool:
        """Send to a peer that dialled in; whether it did, or now knows that it is gone."""
        if (route := self._routes.get(peer)) is None:
            return False
        if not self._put(route, message):
            drain(self._read)  # it may have said goodbye, or hello again
            if self._routes.get(peer) == route:
                self._forget(peer)
                self._members.unlink(peer)
        return True

    def try_to_send(self, peer: int, message: Message) -> bool:
        """The same, and nothing else happens."""
        route = self._routes.get(peer)
        return route is not None and self._put(route, message)

    def ping(self) -> None:
        """Find out who has hung up: to them nothing can be sent."""
        for peer in list(self._routes):
            self.send(peer, self._members.message(Kind.PING))

    def hang_up(self) -> None:
        """Close the socket, and first what watches it."""
        for sock in (self._monitor, self._router):
            self._sockets.unwatch(sock)
        self._router.disable_monitor()
        self._router.close(0)
        self._monitor.close(0)

    def close(self) -> None:
        """After the sockets are closed."""

    def _bind(self, router: Socket) -> Contact:
        raise NotImplementedError

    def _stranger(self, message: Message, frame: zmq.Frame) -> str | None:
        """Why who says hello is none of those who may, or cannot have this rank."""
        members = self._members
        token = str(message.payload.plain.get("token")).encode()
        if not hmac.compare_digest(token, members.rendezvous.token.encode()):
            return "it brought no token of this run"
        taken = message.origin == members.delivery.rank
        return f"rank {message.origin} is taken" if taken else None

    def _rank_for(self, message: Message) -> int:
        return message.origin

    def _put(self, route: bytes, message: Message) -> bool:
        try:
            self._sockets.put(self._router, [route, *message.frames()])
        except zmq.ZMQError:
            return False
        return True

    def _someone_hung_up(self) -> None:
        drain(lambda: recv_monitor_message(self._monitor, zmq.NOBLOCK))
        drain(self._read)
        self.ping()

    def _read(self) -> None:
        route, *frames = next_message(self._router)
        if message := self._members.decode(frames):
            self._handle(route.bytes, message, frames[0])

    def _handle(self, route: bytes, message: Message, frame: zmq.Frame) -> None:
        peer = self._ranks.get(route)
        if message.kind == Kind.HELLO:
            self._answer(route, message, frame)
        elif peer is None:
            self._members.counts["unknown"] += 1
            self._put(route, self._members.message(Kind.REFUSED, why="hello"))
        elif message.kind == Kind.BYE:
            self._forget(peer)
            self._put(route, self._members.message(Kind.BYE))  # all that it said has arrived
            self._members.lose(peer, LEFT)
        else:
            self._members.deliver(peer, message)

    def _answer(self, route: bytes, message: Message, frame: zmq.Frame) -> None:
        """Welcome who may join, or say why not."""
        members = self._members
        if why := self._objection(message, frame):
            members.counts["denied"] += 1
            self._put(route, members.message(Kind.REFUSED, why=why))
            return
        peer = self._rank_for(message)
        if (known := self._ranks.get(route, peer)) != peer:
            self._forget(known)
            members.unlink(known)
        if (old := self._routes.get(peer)) is not None:
            self._forget(peer)
            if members.delivery.present.get(peer) != message.session:
                why = f"another process came as rank {peer}"
                self._put(old, members.message(Kind.REFUSED, why=why))
        self._routes[peer], self._ranks[route] = route, peer
        self._put(route, members.message(Kind.WELCOME, rank=peer))
        members.link(peer, message.session)

    def _objection(self, message: Message, frame: zmq.Frame) -> str | None:
        """Why not to let somebody in."""
        members, said = self._members, message.payload.plain
        if members.closing:
            return LEFT
        if why := self._stranger(message, frame):
            return why
        if said.get("star") != members.delivery.star:
            return "one of them joined a star and the other one a mesh"
        if said.get("schema") != self._schema:
            return f"schema {str(said.get('schema'))[:80]!r} instead of {self._schema!r}"
        return None

    def _forget(self, peer: int) -> None:
        del self._ranks[self._routes.pop(peer)]


class LocalListener(Listener):
    """For processes of this machine that share a store."""

    def _bind(self, router: Socket) -> Contact:
        self._folder = Folder()
        router.bind(self._folder.address)
        return Contact(self._folder.address, None)

    def close(self) -> None:
        """The folder goes, too."""
        self._folder.remove()


class TcpListener(Listener):
    """For processes of any machine that share a store, and have their keys in it."""

    DOMAIN = b"evorl"

    def __init__(
        self,
        members: Members,
        sockets: Sockets,
        schema: str,
        entrance: Entrance,
        host: tuple[str, str],
    ) -> None:
        """`host` is where to listen, and how others call it."""
        self._host = host
        self._keys: dict[bytes, int] = {}  # ranks by public key, of those who were let in
        entrance.guards[self.DOMAIN] = self._ask_for_entry  # before anybody can come
        super().__init__(members, sockets, schema)

    def _bind(self, router: Socket) -> Contact:
        assert self._sockets.keys
        port = listen(router, self.DOMAIN, self._host[0])
        return Contact(f"tcp://{in_address(self._host[1])}:{port}", self._sockets.keys[0])

    def _ask_for_entry(self, key: bytes, answer: Answer) -> None:
        """Let in whose public key is in the store, and no one else."""

        def remember(rank: int | None) -> None:
            if rank is not None:
                self._keys[key] = rank
            answer(rank)

        if key in self._keys or len(key) != 32:
            answer(self._keys.get(key))
        else:
            known, text = self._members.rendezvous, z85.encode(key).decode()
            self._members.lookups.ask(text, lambda: known.rank_of(text), remember)

    def _stranger(self, message: Message, frame: zmq.Frame) -> str | None:
        if why := super()._stranger(message, frame):
            return why
        own = frame.get("User-Id") == str(message.origin)
        return None if own else f"its key is not that of rank {message.origin}"


class Door(Listener):
    """For guests: who has the token may join from anywhere and at any time, and gets a rank."""

    DOMAIN = b"evorl-guests"

    def __init__(
        self,
        members: Members,
        sockets: Sockets,
        schema: str,
        entrance: Entrance,
        *,
        where: tuple[str, int],
        ranks: range,
        keys: tuple[str, str],
        guest: str,
    ) -> None:
        """`where` is the host and port, `guest` the public key that every guest has."""
        self._where, self._places, self._own_keys = where, ranks, keys
        entrance.guards[self.DOMAIN] = lambda key, answer: answer(
            "guest" if hmac.compare_digest(key, z85.decode(guest)) else None
        )
        super().__init__(members, sockets, schema)

    def _bind(self, router: Socket) -> Contact:
        router.ipv6 = True
        router.curve_publickey, router.curve_secretkey = (key.encode() for key in self._own_keys)
        host, port = self._where
        port = listen(router, self.DOMAIN, host, port)
        return Contact(f"tcp://{in_address(host)}:{port}", self._own_keys[0])

    def _stranger(self, message: Message, frame: zmq.Frame) -> str | None:
        if self._place_of(message) is not None:
            return None
        if message.origin != GUEST:
            return "its place is another's by now"
        return f"all {len(self._places)} places are taken; end another guest, or allow more"

    def _rank_for(self, message: Message) -> int:
        place = self._place_of(message)
        assert place is not None  # or there was an objection
        return place

    def _place_of(self, message: Message) -> int | None:
        """The rank of a guest that was here before, else the first that is free."""
        delivery = self._members.delivery
        for rank in self._places:
            if delivery.belongs(rank, message.session):
                return rank
        if message.origin != GUEST:
            return None
        return next((rank for rank in self._places if rank not in delivery.present), None)


def listen(router: Socket, domain: bytes, host: str, port: int | None = None) -> int:
    """Listen with CURVE keys on a port, by default on any that is free; which one it is."""
    router.curve_server, router.zap_domain = True, domain
    try:
        router.bind(f"tcp://{in_address(host)}:{port or '*'}")
    except zmq.ZMQError as error:
        where = f"host {host}" if port is None else f"{in_address(host)}:{port}"
        raise RunError(f"bus: cannot listen on {where}: {error.strerror}") from error
    endpoint = bytes(router.getsockopt(zmq.LAST_ENDPOINT)).decode().strip("\0")
    return int(endpoint.rpartition(":")[2])


def in_address(host: str) -> str:
    """As it is written in front of a port."""
    return f"[{host}]" if ":" in host else host
