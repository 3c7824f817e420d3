"""The learner's end without a transport: each message counts once, and only if all of it is right.

A message of another generation is refused: its agents are no longer there. What cannot be used is
counted by reason, and each actor's first one is told of.
"""

import warnings
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from evorl.actors.messages import (
    UNROLL,
    WINDOW,
    Expected,
    Limits,
    Refused,
    check_fields,
    check_padding,
    expected_fields,
    masks_of,
    whole,
)
from evorl.errors import one_line
from evorl.population import Population

REMEMBERED = 64  # processes that had a slot before


class ActorMessage(NamedTuple):
    """What an actor sent, and all of it is what it should be."""

    slot: int
    lag: int  # versions by which the weights have moved on since those that it played with
    late: bool  # that is more than is allowed
    fields: dict[str, Any]

    @property
    def experience(self) -> dict[str, Tensor]:
        """What was played, by field: unrolls, or n-step transitions."""
        return {
            name.partition(".")[2]: own
            for name, own in self.fields.items()
            if name.startswith((UNROLL, WINDOW))
        }


@dataclass
class Sender:
    """What is known of the process in a slot."""

    session: int = -1
    last: int = 0  # sequence number
    ended: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))  # sessions before

    def take(self, session: int, sequence: int) -> None:
        """A message has come that may be counted."""
        if session != self.session and self.session >= 0:  # another process took the slot
            self.ended.append(self.session)
        self.session, self.last = session, sequence


class Inbox:
    """Takes messages; what is wrong about one never reaches anybody else.

    Attributes:
        counts: Messages taken and refused, by reason, and steps that were played for nothing.
    """

    def __init__(
        self, population: Population, limits: Limits, slots: int, max_lag: int | None = None
    ) -> None:
        """`slots` are the actors that there may be; beyond `max_lag` a message is late."""
        self.population, self.limits, self.slots = population, limits, slots
        self.max_lag = max_lag
        self.version, self.generation = -1, -1  # of the latest weights
        self.counts: Counter[str] = Counter()
        self.wasted = 0  # environment steps of messages that were refused
        self.refused: Refused | None = None  # why the latest message was, if it was
        self._senders: dict[int, Sender] = {}
        self._of: object = None  # the groups that the next two belong to
        self._expected: dict[str, Expected] = {}
        self._masks: list[Any] = []
        self._told: set[tuple[int, str]] = set()

    def begin(self, version: int, generation: int) -> None:
        """These weights are sent."""
        self.version, self.generation = version, generation
        if self._of is not self.population.groups:
            self._of = self.population.groups
            self._expected = expected_fields(self.population, self.limits)
            sends_gradients = self.population.algorithm.sends == "gradients"
            self._masks = masks_of(self.population) if sends_gradients else []

    def accept(self, fields: Mapping[str, Any], peer: int | None = None) -> ActorMessage | None:
        """The message, if it is one; None, and counted, if not.

        `peer` is the slot that it came from, where the transport knows.
        """
        slot, self.refused = -1, None
        try:
            slot = whole(fields, "slot", self.slots - 1)
            if peer is not None and slot != peer:
                slot = peer
                raise Refused("slot", "it is another's")
            sender, session, sequence = self._check_new(slot, fields)
            found = self._checked(slot, fields)
            sender.take(session, sequence)
            return found
        except Refused as refused:
            if refused.reason == "generation":  # it may be right, and is paid for once
                sender.take(session, sequence)
            self.refused = refused
            self.counts[f"refused_{refused.reason}"] += 1
            self._tell(slot if peer is None else peer, refused)
            return None

    def _check_new(self, slot: int, fields: Mapping[str, Any]) -> tuple[Sender, int, int]:
        """Who sent it, its session and sequence number: all that comes once is larger."""
        session, sequence = (whole(fields, name) for name in ("session", "sequence"))
        sender = self._senders.setdefault(slot, Sender())
        if session in sender.ended:
            raise Refused("replayed", "of a process that was replaced")
        if sequence <= (sender.last if session == sender.session else 0):
            raise Refused("replayed")
        return sender, session, sequence

    def _checked(self, slot: int, fields: Mapping[str, Any]) -> ActorMessage:
        version = whole(fields, "version")
        steps = whole(fields, "env_steps", self.limits.agents * self.limits.each)
        try:
            self._check(fields, version)
        except Refused:
            self.wasted += steps  # they were played all the same
            raise
        self.counts["taken"] += 1
        lag = self.version - version
        late = self.max_lag is not None and lag > self.max_lag
        self.counts["refused_lag"] += late
        if late:
            behind = f"of weights {lag} versions ago, and actors.max_lag is {self.max_lag}"
            self._tell(slot, Refused("lag", behind))
        return ActorMessage(slot, lag, late, dict(fields))

    def _check(self, fields: Mapping[str, Any], version: int) -> None:
        if whole(fields, "generation") != self.generation:
            raise Refused("generation")
        if version > self.version:
            raise Refused("range", "version is of weights that are still to come")
        check_fields(fields, self._expected, self.limits)
        if self._masks:
            check_padding(fields, self._masks)

    def _tell(self, slot: int, refused: Refused) -> None:
        """Once of each actor and reason; a generation's end is no mistake of anybody's."""
        if refused.reason != "generation" and (slot, refused.reason) not in self._told:
            self._told.add((slot, refused.reason))
            warnings.warn(
                f"actor {slot}: a message was refused ({one_line(str(refused))[:300]}); others like"
                " it are only counted",
                stacklevel=2,
            )
