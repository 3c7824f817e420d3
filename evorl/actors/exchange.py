"""The exchange between a learner and its actors: experience or gradients up, weights down.

    exchange.publish(weights, generation)  # the learner, before every iteration
    messages = exchange.take()  # one, or in lock-step one of every actor, by slot

    weights = end.newest()  # an actor, on another process
    end.send(actor.play())  # waits while two are not taken

On the bus the learner is rank 0 of a star, and the actor in slot s rank s + 1. An actor has at most
two messages under way. Between generations the learner takes none, so that actors wait; what was
under way belongs to the generation before, and is refused. In one process (`InlineExchange`) there
is no transport, and the learner has each actor play when it asks for its message.
"""

import math
import os
import secrets
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from evorl.actors.attendance import Attendance
from evorl.actors.child_processes import ChildProcesses
from evorl.actors.inbox import ActorMessage, Inbox
from evorl.actors.tally import Tally
from evorl.bus import Bus, Deadline, Value, open_door
from evorl.errors import RunError, one_line

T = TypeVar("T")
QUEUE, WEIGHTS, STOP, HELLO = "messages", "weights", "stop", "hello"
LEARNER = 0  # its rank on the bus
REFUSED_BY_BUS = (  # what it counts of messages that nobody gets to see, and of strangers
    *("malformed", "other_format", "too_large", "too_many", "misdirected", "out_of_order"),
    *("unknown", "denied", "strangers"),
)


class LearnerGone(RunError):
    """The learner has ended without a word, or cannot be reached."""


class Plays(Protocol):
    """An actor: it plays with the weights that it has."""

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Take newer weights."""

    def play(self) -> dict[str, Any]:
        """The fields of one message."""


class Exchange(ABC):
    """The learner's end."""

    def __init__(self, inbox: Inbox, lockstep: bool) -> None:
        self.inbox, self.lockstep = inbox, lockstep
        self._lags: list[int] = []
        self._queued: list[int] = []  # messages that still waited when some were taken

    def publish(self, weights: Mapping[str, Any], generation: int) -> None:
        """Give actors the newest weights."""
        self.inbox.begin(self.inbox.version + 1, generation)
        self._publish(weights, self.inbox.version)

    def take(self) -> list[ActorMessage]:
        """The next message; in lock-step one of every actor, in the order of their slots."""
        found = self._take()
        self._lags += [message.lag for message in found]
        self._queued.append(self.waiting)
        return found

    def report(self) -> dict[str, Any]:
        """What happened since the last report: counts by what, lags [messages], queues [takes]."""
        counts = dict(self.inbox.counts) | {"wasted_steps": self.inbox.wasted}
        self.inbox.counts.clear()
        self.inbox.wasted = 0
        lags, self._lags = self._lags, []
        queued, self._queued = self._queued, []
        return {"alive": self.alive, "counts": counts, "lags": lags, "queued": queued}

    @property
    @abstractmethod
    def alive(self) -> int:
        """Actors that are there."""

    @property
    def waiting(self) -> int:
        """Messages that are here and not taken; without a transport there are none."""
        return 0

    @abstractmethod
    def _publish(self, weights: Mapping[str, Any], version: int) -> None: ...

    @abstractmethod
    def _take(self) -> list[ActorMessage]: ...

    @abstractmethod
    def close(self) -> None:
        """Tell actors that it is over."""


class InlineExchange(Exchange):
    """Actors within the learner's process, in lock-step."""

    def __init__(self, inbox: Inbox, actors: Sequence[Plays]) -> None:
        super().__init__(inbox, lockstep=True)
        self.actors = list(actors)
        self._sequence = 0

    @property
    def alive(self) -> int:
        """All of them."""
        return len(self.actors)

    def _publish(self, weights: Mapping[str, Any], version: int) -> None:
        for actor in self.actors:
            actor.load(weights, version)

    def _take(self) -> list[ActorMessage]:
        self._sequence += 1
        found = []
        for slot, actor in enumerate(self.actors):
            fields = actor.play() | {"slot": slot, "session": 0, "sequence": self._sequence}
            self.inbox.counts["sent"] += 1
            message = self.inbox.accept(fields)
            if message is None:
                raise RunError(f"actor {slot}: its message was refused, and lock-step needs it")
            found.append(message)
        return found

    def close(self) -> None:
        """They go with this process."""


class BusExchange(Exchange):
    """Actors in processes of their own."""

    def __init__(
        self,
        inbox: Inbox,
        bus: Bus,
        *,
        lockstep: bool,
        timeout: float,
        greeting: Mapping[str, Any],
        children: ChildProcesses | None = None,
        own: int | None = None,
    ) -> None:
        """`greeting` is what an actor is told when it comes; `children` start those that do.

        `own` are the actors that the learner has without those that join; by default all.
        """
        super().__init__(inbox, lockstep)
        self.bus, self.timeout, self.children = bus, timeout, children
        self.attendance = Attendance(bus, inbox.slots if own is None else own, lockstep, children)
        self._greeting = dict(greeting)
        self._greet_guest: Callable[[int], Mapping[str, Any]] = lambda slot: {}
        self._say: Callable[[str], None] = lambda line: None
        self._refused_before: Counter[str] = Counter()  # by the bus
        self._waiting: dict[int, ActorMessage] = {}  # in lock-step, by slot
        self._ahead: list[ActorMessage] | None = None  # taken next, if it is there already
        bus.serve(HELLO, self._hello)

    def open_door(
        self,
        where: tuple[str, int],
        token: str,
        schema: str,
        greeting: Callable[[int], Mapping[str, Any]],
        say: Callable[[str], None],
    ) -> str:
        """Let others join who have the token, from now on; the address.

        `greeting` is what one is told beside what all are, by its slot; `say` tells who has come.
        """
        self._greet_guest, self._say, self.attendance.open = greeting, say, True
        ranks = range(1 + self.attendance.own, 1 + self.inbox.slots)
        return open_door(self.bus, where, token, ranks, schema)

    @property
    def alive(self) -> int:
        """Those that are on the bus."""
        return len(self.bus.peers)

    @property
    def waiting(self) -> int:
        """Those that have arrived."""
        return self.bus.waiting(QUEUE)

    def _hello(self, value: Value) -> dict[str, Any]:
        slot = value.peer - 1
        told = self._greeting | {"incarnation": self.attendance.came(slot, value.fields)}
        return told if slot < self.attendance.own else {**told, **self._greet_guest(slot)}

    def report(self) -> dict[str, Any]:
        """The same, with what became of all messages, and what the bus has refused."""
        found = super().report()
        found["counts"] |= self.attendance.report()
        refused = Counter({name: self.bus.counts[name] for name in REFUSED_BY_BUS})
        new, self._refused_before = refused - self._refused_before, refused
        found["counts"] |= {f"refused_{name}": count for name, count in new.items()}
        return found

    def _publish(self, weights: Mapping[str, Any], version: int) -> None:
        self.bus.publish(WEIGHTS, weights, version)

    def ready(self) -> bool:
        """Whether the next message is there."""
        self._ahead = self._ahead or self._next()
        return self._ahead is not None

    def _take(self) -> list[ActorMessage]:
        what = "a message of every actor" if self.lockstep else "a message of an actor"
        if self.attendance.open and not self.bus.peers:
            what = "an actor to join"
        found, self._ahead = self._ahead or self.bus.wait(self._next, self.timeout, what), None
        newest = self.inbox.version
        return [own._replace(lag=newest - own.fields["version"]) for own in found]

    def _next(self) -> list[ActorMessage] | None:
        """What is to be taken now, if it is there."""
        for line in self.attendance.look():
            self._say(line)
        while value := self.bus.poll(QUEUE):
            slot = value.peer - 1
            self.attendance.heard(slot, value.fields.get("session"))
            message = self.inbox.accept(value.fields, slot)
            if message is None:
                self._refuse_to_wait(slot)
                continue
            if self.children is not None:
                self.children.contributed(slot)
            if not self.lockstep:
                return [message]
            self._waiting[slot] = message
            if len(self._waiting) == self.inbox.slots:
                found = [self._waiting[one] for one in range(self.inbox.slots)]
                self._waiting.clear()
                return found
        return None

    def _refuse_to_wait(self, slot: int) -> None:
        """In lock-step nobody sends another message in place of one that was refused."""
        refused = self.inbox.refused
        if self.lockstep and refused and refused.reason not in ("generation", "replayed"):
            raise RunError(
                f"{self.attendance.name(slot)}: its message was refused ({one_line(str(refused))}),"
                " and lock-step needs it; look for what is wrong there, and resume the run"
            )

    def close(self) -> None:
        """Tell actors that it is over, and wait for those that were started here.

        The bus stays open for whoever opened it.
        """
        if self.bus.is_active:
            self.bus.publish(STOP, {})
        if self.children is not None:
            self.children.close()


class ActorEnd:
    """An actor's end."""

    def __init__(self, bus: Bus, timeout: float, tally: Tally | None = None) -> None:
        """`timeout` are the seconds that the learner has to come; a tally counts what is sent."""
        self.bus, self.slot, self.sent, self._tally = bus, bus.rank - 1, 0, tally
        self.session = secrets.randbits(62)
        who = {"host": socket.gethostname(), "process": os.getpid(), "session": self.session}
        said = self._unless_over(lambda: bus.request(LEARNER, HELLO, who, timeout))
        self.greeting = {} if said is None else said.fields  # nothing: it is over already

    @property
    def over(self) -> bool:
        """Whether the learner has said that it is."""
        return self.bus.latest(STOP, LEARNER) is not None

    def newest(self, newer_than: int = -1) -> Value | None:
        """The learner's newest weights, perhaps when they come; None: it is over."""

        def come() -> Value | None:
            stop = self.bus.latest(STOP, LEARNER)
            return stop or self.bus.latest(WEIGHTS, LEARNER, newer_than)

        found = self._unless_over(
            lambda: self.bus.wait(come, math.inf, "the learner's weights", LEARNER)
        )
        return None if self.over else found

    def send(self, fields: Mapping[str, Any]) -> bool:
        """Send a message, once the last but one is taken; False: it is over."""
        own = {"slot": self.slot, "session": self.session, "sequence": self.sent + 1}

        def send() -> bool:
            self.bus.send(LEARNER, QUEUE, {**fields, **own}, Deadline.unless(lambda: self.over))
            return True

        if self.over:
            return False
        if self._tally:
            self._tally.add(self.slot)  # before: what nobody knows of cannot be lost
        if not self._unless_over(send):
            return False
        self.sent += 1
        return not self.over

    def _unless_over(self, call: Callable[[], T]) -> T | None:
        """What a call gives; None if it was in vain because it is over."""
        try:
            return call()
        except RunError as error:
            if self.over:
                return None
            who = f"actor {self.slot}"
            if why := self.bus.gone.get(LEARNER):
                line = f"{who}: the learner is gone ({why}); resume the run"
                raise LearnerGone(line) from error
            raise RunError(f"{who}: {error}; resume the run") from error


def run_actor(end: ActorEnd, actor: Plays, weights: Value, lockstep: bool) -> None:
    """Play until it is over, from these weights on: with each once in lock-step, else always."""
    newest, loaded = end.newest() or weights, -1
    while not end.over:
        if newest.version != loaded:
            actor.load(newest.fields, newest.version)
            loaded = newest.version
        if not end.send(actor.play()):
            return
        newest = end.newest(loaded if lockstep else -1) or newest
