"""The sockets of a bus: a thread that reads them, and who has something to send."""

import os
import threading
import time
from collections import deque
from contextlib import suppress

import zmq

from evorl.bus.delivery import LEFT, Delivery
from evorl.bus.links import BEAT, TICK, Dialler, Members
from evorl.bus.listener import Door, Entrance, Listener, LocalListener, TcpListener
from evorl.bus.lookups import Lookups
from evorl.bus.rendezvous import Contact, Meeting, remove_left_folders
from evorl.bus.sockets import LINGER, Sockets, keys_of, new_keys
from evorl.bus.waiting import Changed, Deadline
from evorl.bus.wire import Kind, Message, Refused, decode


class Network:
    """Links to peers; what arrives goes to the Delivery, and what is in its outbox leaves."""

    def __init__(
        self,
        delivery: Delivery,
        changed: Changed,
        rendezvous: Meeting,
        *,
        dials: range,
        expected: int,
        listens: bool = False,
        host: tuple[str, str] | None = None,
        keys: tuple[str, str] | None = None,
        schema: str = "",
    ) -> None:
        """`keys` are what this process comes with; by default, with a host, new ones."""
        self.failure: BaseException | None = None  # of the thread: nothing works after it
        self._sockets = Sockets(keys or (new_keys() if host else None))
        self._delivery, self._changed, self._rendezvous = delivery, changed, rendezvous
        self._expected = [rank for rank in range(expected) if rank != delivery.rank]
        self._lookups = Lookups(delivery.counts, self._take_answers_soon)
        self._members = Members(delivery, changed, rendezvous, self._lookups, schema)
        self._entrance: Entrance | None = None
        self._listeners: list[Listener] = []
        self._diallers = {peer: Dialler(self._members, self._sockets, peer) for peer in dials}
        self._next_tick = self._next_beat = 0.0
        self._woken = self._stopping = self._ended = False
        self._wake_in, self._wake_out = os.pipe()
        try:
            if listens:
                self._listeners.append(self._listen(host, schema))
            contact = self._listeners[0].contact if listens else Contact("", None)
            rendezvous.register(delivery.rank, contact, self._sockets.keys)
        except BaseException:
            self._close()
            raise
        self._sockets.watch(self._wake_in, self._take_wake)
        self._thread = threading.Thread(target=self._run, name="evorl-bus", daemon=True)
        self._thread.start()

    def open_door(self, where: tuple[str, int], token: str, ranks: range, schema: str) -> str:
        """Let guests in from now on; the address."""
        with self._sockets.mutex:
            here = (self._members, self._sockets, schema, self._the_entrance())
            keys, (guest, _) = keys_of(token, "host"), keys_of(token, "guest")
            door = Door(*here, where=where, ranks=ranks, keys=keys, guest=guest)
            self._listeners.append(door)
        with self._changed:
            self.wake()  # to watch it
        return door.contact.address

    def _listen(self, host: tuple[str, str] | None, schema: str) -> Listener:
        here = (self._members, self._sockets, schema)
        return TcpListener(*here, self._the_entrance(), host) if host else LocalListener(*here)

    def _the_entrance(self) -> Entrance:
        """A context has one."""
        if self._entrance is None:
            self._entrance = Entrance(self._sockets, self._delivery.counts)
        return self._entrance

    def send(self) -> None:
        """Send what is in the outbox, or leave it to the thread if that is busy; with the lock."""
        if not self._sockets.mutex.acquire(blocking=False):
            self.wake()
            return
        try:
            if not self._ended:
                leaving = deque(self._delivery.leaving(all_of_it=False))
                while leaving and self._try_to_send(*leaving[0]):
                    leaving.popleft()
                self._delivery.outbox.extendleft(reversed(leaving))
                if leaving or self._sockets.look_again():
                    self.wake()
        finally:
            self._sockets.mutex.release()

    def wake(self) -> None:
        """Have the thread look what there is to do; with the lock held."""
        if not self._woken:
            self._woken = True
            os.write(self._wake_out, b"!")

    def stop(self, leaves: list[list[bytes]]) -> None:
        """Leave values in the store, say goodbye and end the thread; without the lock."""
        rank = self._delivery.rank
        self._lookups.close(lambda: self._rendezvous.leave(rank, leaves), LINGER)
        with self._changed:
            self._stopping = True
            if self.failure is None:
                self.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                ready = self._sockets.wait(max(0.0, self._next_tick - time.monotonic()))
                with self._sockets.mutex:
                    self._sockets.read(ready)
                    if due := time.monotonic() >= self._next_tick:
                        self._tick()
                    self._lookups.take_answers()
                    self._flush(all_of_it=due)
            with self._sockets.mutex:
                self._ended = True  # nobody else sends any more
            self._say_goodbye()
        except BaseException as error:  # it is raised again in whoever uses the bus next
            self.failure = error
        with self._sockets.mutex:
            self._ended = True
        with self._changed:
            self._woken = True  # nobody writes to the pipe any more
            self._changed.announce()
        self._close()

    def _say_goodbye(self) -> None:
        """Who is linked answers when it has read all that was sent before; then nothing is lost."""
        self._members.closing = True
        with self._changed:
            for peer in self._delivery.linked:
                self._delivery.outbox.append((peer, self._members.message(Kind.BYE)))
        self._flush(all_of_it=True)
        deadline = Deadline.after(LINGER)
        while self._delivery.linked and (left := deadline.at - time.monotonic()) > 0:
            self._sockets.read(self._sockets.wait(left))
            self._flush()

    def _close(self) -> None:
        for dialler in self._diallers.values():
            dialler.hang_up()
        for listener in self._listeners:
            listener.hang_up()
        self._sockets.close()
        for listener in self._listeners:
            listener.close()
        if self._sockets.keys is None:
            remove_left_folders()  # whoever listened may have been killed
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _take_wake(self) -> None:
        os.read(self._wake_in, 64)
        with self._changed:
            self._woken = False  # what comes from now on writes again

    def _flush(self, all_of_it: bool = False) -> None:
        with self._changed:
            leaving = self._delivery.leaving(all_of_it)
        for peer, message in leaving:
            dialler = self._diallers.get(peer)
            # Who is not there gets it with the next hello.
            if any(own.send(peer, message) for own in self._listeners) or (
                dialler and dialler.send(message)
            ):
                self._delivery.counts["sent"] += 1

    def _try_to_send(self, peer: int, message: Message) -> bool:
        dialler = self._diallers.get(peer)
        sent = any(own.try_to_send(peer, message) for own in self._listeners) or (
            dialler is not None and dialler.send(message)
        )
        self._delivery.counts["sent"] += sent
        return sent

    def _tick(self) -> None:
        """Look for those who are not there, and notice who no longer is."""
        self._members.lose_broken()
        for peer in filter(self._is_missing, self._expected):
            self._look_for_what_is_left(peer)
        for dialler in self._diallers.values():
            dialler.look()
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + BEAT
            for listener in self._listeners:
                listener.ping()
        self._next_tick = now + TICK

    def _is_missing(self, rank: int) -> bool:
        """Whether a process is expected and was never there."""
        return rank not in self._delivery.present and rank not in self._delivery.gone

    def _look_for_what_is_left(self, peer: int) -> None:
        """The values of a process that left before this one came."""

        def take(left: list[list[bytes]] | None) -> None:
            if left is None or not self._is_missing(peer):
                return
            with self._changed:
                for parts in left:
                    with suppress(Refused):
                        frames = [zmq.Frame(part, copy=True) for part in parts]
                        self._delivery.inherit(peer, decode(frames))
            if dialler := self._diallers.get(peer):
                dialler.give_up(LEFT)
            else:
                self._members.lose(peer, LEFT)

        self._lookups.ask(("left", peer), lambda: self._rendezvous.left(peer), take)

    def _take_answers_soon(self) -> None:
        with self._changed:
            self.wake()
