"""Who plays for a learner: who came, who is gone and why, who is slow, and what became of all that
they sent.

What was sent is taken, or refused, or was lost with a process that died, or is still under way. Of
children the learner knows how much they sent, of others only what arrived.
"""

import time
import warnings
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from evorl.actors.child_processes import ChildProcesses
from evorl.actors.tally import Tally
from evorl.bus import Bus
from evorl.errors import RunError, one_line

STOPPED = 2.0  # seconds after which a child that is gone from the bus, and has not ended, is named
SLOW, ENOUGH = 5, 20  # who sends a fifth of what another one does, if that is so many messages


class Attendance:
    """The actors of a learner, by slot: first its own, then those that join."""

    def __init__(self, bus: Bus, own: int, lockstep: bool, children: ChildProcesses | None) -> None:
        """`children` start those that are its own; else they come by themselves."""
        self.bus, self.own, self.lockstep, self.children = bus, own, lockstep, children
        self.open = False  # may others join?
        self.counts: Counter[str] = Counter()
        self._names: dict[int, str] = {}  # of those that the learner did not start
        self._came: dict[int, int] = {}  # how many processes each slot had, but for the first
        self._deaths: dict[int, int] = {}  # of children in a slot, when the one there came
        self._news: deque[str] = deque()
        self._gone: dict[int, str] = {}  # who is known to be gone, and why
        self._missing: dict[int, float] = {}  # children that have not ended: since when
        self._told: dict[int, int] = {}  # who is known to the user to be gone: which process
        self._alone = False  # has the user been told that nobody is there?
        self._arrived: Counter[int] = Counter()  # messages
        # what was sent by the processes before, and whose message tells that no more of it comes
        self._of_the_dead: dict[int, tuple[Any, int]] = {}
        self._sent = 0  # at the last report
        self._there: dict[int, int] = {}  # at the last report: which process
        self._lately: Counter[int] = Counter()  # messages since then
        self._slow: set[int] = set()

    @property
    def tally(self) -> Tally | None:
        """Of what its own have sent."""
        return self.children.tally if self.children else None

    def came(self, slot: int, said: Mapping[str, Any]) -> int:
        """A process says hello, in a thread of the bus: how many were in this slot before."""
        count = self._came[slot] = self._came.get(slot, -1) + 1
        if self.children and slot < self.own:
            self._of_the_dead[slot] = said.get("session"), self.children.tally[slot]
            self._deaths[slot] = self.children.ended[slot]
        elif "host" in said:
            host, process = (one_line(str(said.get(name)))[:64] for name in ("host", "process"))
            self._names[slot] = f"actor {slot} ({host}, process {process})"
        if slot >= self.own:
            self._news.append(f"{self.name(slot)} has joined")
        return count

    def name(self, slot: int) -> str:
        """What the user knows it by."""
        return self._names.get(slot, f"actor {slot}")

    def heard(self, slot: int, session: Any) -> None:
        """A message of a process has arrived."""
        newest, before = self._of_the_dead.get(slot, (None, 0))
        # what others sent would have come first; and nothing of a message is checked yet
        if newest is not None and type(session) is int and session == newest:
            del self._of_the_dead[slot]
            self.counts["lost"] += before - self._arrived[slot]
            self._arrived[slot] = before
        self._arrived[slot] += 1
        self._lately[slot] += 1

    def look(self) -> list[str]:
        """Who has joined; warns of who is gone or back. RunError if there is no use in waiting."""
        if self.children:
            self.counts["gone"] += self.children.check()
        gone = {rank - 1: why for rank, why in self.bus.gone.items()}
        before, self._gone = self._gone, gone
        for slot in sorted(gone):
            newest = self._came.get(slot)  # perhaps another one, which came and went meanwhile
            if slot not in before or self._told.get(slot, newest) != newest:
                self._is_gone(slot, gone[slot])
        for slot in sorted(before.keys() - gone.keys()):
            self._is_back(slot)
        self._look_for_stopped()
        if gone and not self.bus.peers:
            self._nobody_is_there()
        else:
            self._alone = False
        return [self._news.popleft() for _ in range(len(self._news))]

    def report(self) -> dict[str, int]:
        """What became of messages since the last report, and how many are under way now."""
        self._tell_of_slow()
        arrived = self._arrived
        unread = [self.tally[s] - arrived[s] for s in range(self.own)] if self.tally else []
        sent = sum(arrived.values()) + sum(unread)
        found = dict(self.counts) | {"sent": sent - self._sent, "under_way": sum(unread)}
        self._sent = sent
        self.counts.clear()
        return found

    def _is_gone(self, slot: int, why: str) -> None:
        line = f"{self.name(slot)} is gone ({why})"
        if self.lockstep:
            raise RunError(f"{line}; in lock-step nobody can take its place: resume the run")
        if self.children and slot < self.own:  # if it died, its death is told by who started it
            self._missing[slot] = time.monotonic()
        else:
            self._tell(slot, f"{line}; the others play on")

    def _is_back(self, slot: int) -> None:
        self._missing.pop(slot, None)
        if self._told.pop(slot, None) == self._came.get(slot):
            warnings.warn(f"{self.name(slot)} is back", stacklevel=4)

    def _look_for_stopped(self) -> None:
        """Children that say nothing, and have not ended."""
        for slot, since in list(self._missing.items()):
            assert self.children
            died = self.children.ended[slot] > self._deaths.get(slot, 0)
            if not died and time.monotonic() - since < STOPPED:
                continue
            del self._missing[slot]
            if not died:
                what = "gives no sign of life, though it has not ended: is it stopped?"
                self._tell(slot, f"{self.name(slot)} {what} The others play on")

    def _tell(self, slot: int, line: str) -> None:
        self.counts["gone"] += 1
        self._told[slot] = self._came.get(slot, -1)
        warnings.warn(line, stacklevel=4)

    def _nobody_is_there(self) -> None:
        if self.open:
            if not self._alone and self.children is None:
                warnings.warn("nobody plays: waiting for actors to join", stacklevel=3)
            self._alone = True
        elif self.children is None and len(self._gone) >= self.own:
            raise RunError("all actors are gone; look for their errors above, and resume the run")

    def _tell_of_slow(self) -> None:
        """Once of each that was there all the time, and did much less than another one."""
        now = {rank - 1: self._came.get(rank - 1, -1) for rank in self.bus.peers}
        steady = [slot for slot, which in now.items() if self._there.get(slot) == which]
        lately, self._lately, self._there = self._lately, Counter(), now
        best = max(steady, key=lambda slot: lately[slot], default=None)
        if best is None or lately[best] < ENOUGH:
            return
        slow = {slot for slot in steady if lately[slot] * SLOW < lately[best]}
        for slot in sorted(slow - self._slow):
            warnings.warn(
                f"{self.name(slot)} is slow: {lately[slot]} messages in a generation, in which"
                f" {self.name(best)} sent {lately[best]}",
                stacklevel=3,
            )
        self._slow = slow
