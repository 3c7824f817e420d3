"""A replay that is divided among actors: each keeps what it has played, the learner draws from all.

Legend: A agents, D draws.

An actor answers about its shard while it plays, one request after another: `draw`, `update` and
`inherit` are those of `Shard`. Each carries the generation for which it is meant, and each answer
how much the shard holds by then, as messages do. A shard of another generation has nothing to draw.
It enters the next one when it is told who inherits from whom; whoever was not told in time, and so
finds other agents in the learner's weights, forgets all that it had.

What an answer says is checked before it is used. A shard whose actor is gone, late, or answers
nonsense is empty until a message of its actor says what it holds.
"""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.actors.inbox import ActorMessage, Inbox
from evorl.actors.messages import (
    SHARD,
    Expected,
    Limits,
    Refused,
    check_exactly,
    expected_status,
    experience_fields,
)
from evorl.bus import Bus
from evorl.errors import RunError, one_line
from evorl.experience import STAMPS, LocalShard, Shard, Transitions, no_items

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # Refused if there is no answer
Windows = tuple[
    Transitions, npt.NDArray[np.int64], npt.NDArray[np.float32] | None
]  # what LocalShard.insert takes
REPLAY = "replay"  # the name of requests
PATIENCE = 2.0  # seconds after which a shard is late, and the others do without
GONE, LATE, FAILED = "gone", "late", "failed"  # why there is no answer


class OwnShard:
    """The actor's side: what it plays goes in, and the learner's requests are answered."""

    def __init__(self, shard: LocalShard) -> None:
        self.shard, self.generation = shard, -1
        self._cut: list[Windows] = []
        self._lock = RLock()  # what is played and what is asked come from different threads

    def begin(self, generation: int) -> None:
        """Agents of this generation are going to play."""
        with self._lock:
            if generation > self.generation:
                self._forget(generation)

    def insert(self, generation: int, windows: Windows, cut: bool = False) -> None:
        """Take in what agents of a generation have played, unless there are others by now.

        What was `cut` at the generation's end comes in when the generation is over.
        """
        with self._lock:
            if generation != self.generation:
                return
            if cut:
                self._cut.append(windows)
            else:
                self.shard.insert(*windows)

    def status(self) -> dict[str, Tensor]:
        """How much it holds, as fields of a message."""
        return {f"{SHARD}{name}": own for name, own in self.shard.status().items()}

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Tensor]:
        """What the learner wants to know, or to be done."""
        what, generation = asked["what"], asked["generation"]
        with self._lock:
            if what == "inherit":
                self._inherit(generation, asked["parents"])
            elif what == "draw" and generation == self.generation:
                return dict(self.shard.draw(asked))
            elif what == "draw":
                return dict(no_items(asked, len(self.shard.status()["sizes"])))
            elif generation == self.generation:
                self.shard.update(asked)
            return dict(self.shard.status())

    def serve(self, bus: Bus) -> None:
        """Answer on the bus from now on."""
        bus.serve(REPLAY, lambda value: self.answer(value.fields))

    def _inherit(self, generation: int, parents: Tensor) -> None:
        if generation == self.generation + 1:
            for windows in self._cut:
                self.shard.insert(*windows)
            self._cut = []
            self.shard.inherit({"parents": parents})
            self.generation = generation
        elif generation > self.generation:
            self._forget(generation)

    def _forget(self, generation: int) -> None:
        self.shard.clear()
        self._cut, self.generation = [], generation


def on_bus(bus: Bus, slot: int, patience: float) -> Ask:
    """Asks the actor in a slot, who has so many seconds to answer."""

    def ask(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        began = time.monotonic()
        try:
            return bus.request(slot + 1, REPLAY, fields, patience).fields
        except RunError as error:
            if not bus.is_active:
                raise
            late = time.monotonic() - began >= patience
            if slot + 1 in bus.gone:
                raise Refused(GONE) from None
            if late:
                raise Refused(LATE, f"no answer within {patience:g} s") from None
            raise Refused(FAILED, str(error)) from None

    return ask


class RemoteShard:
    """The learner's side of one actor's shard; its status is what was heard last."""

    def __init__(self, slot: int, ask: Ask, inbox: Inbox, lockstep: bool) -> None:
        self.slot, self._ask, self._inbox, self._lockstep = slot, ask, inbox, lockstep
        self.limits, self._expected = inbox.limits, expected_status(inbox.limits)
        self.counts: Counter[str] = Counter()  # of no answers by reason, and of dropped updates
        self.news: dict[str, str] = {}  # the latest details, by reason
        self._generation = self._late = -1  # late: with which weights it had to play when it was
        self._family = self._stay = np.arange(self.limits.agents)
        self._dropped = 0
        self.empty()

    def status(self) -> Mapping[str, Tensor]:
        """As last heard."""
        return self._status

    def empty(self) -> None:
        """Nothing is known of it, until a message of its actor comes."""
        self._heard, nothing = False, {"agents": torch.empty(0)}
        self._status = _status_of(no_items(nothing, self.limits.agents))

    def hear(self, message: ActorMessage) -> None:
        """A message says how much there is; not if it was played before it was late."""
        if message.fields["version"] > self._late:
            own = {name.removeprefix(SHARD): value for name, value in message.fields.items()}
            self._take(own)

    def draw(self, wanted: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Items by priority; none if there is no good answer."""
        reply = self._call("draw", wanted, lambda said: self._check_draw(said, wanted["agents"]))
        if reply is None:
            return no_items(wanted, self.limits.agents)
        self._dropped = int(reply["dropped"])
        return reply

    def update(self, learned: Mapping[str, Tensor]) -> None:
        """Tell it of TD errors."""
        if (said := self._call("update", learned)) is not None:
            new = int(said["dropped"]) - self._dropped
            self.counts["dropped"] += max(new, 0)  # less than before: of another process

    def inherit(self, family: Mapping[str, Tensor]) -> None:
        """Remember it for when the next generation begins."""
        parents = family["parents"].numpy()
        self._family = np.where(parents < 0, -1, self._family[parents])

    def begin(self, generation: int) -> None:
        """Another generation begins: it is told who inherits from whom."""
        parents, self._family = self._family, self._stay
        self._generation = generation
        if self._heard:
            self._call("inherit", {"parents": torch.from_numpy(parents)})

    def _call(
        self,
        what: str,
        fields: Mapping[str, Tensor],
        check: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Mapping[str, Any] | None:
        try:
            said = self._ask({"what": what, "generation": self._generation, **fields})
            (check or self._check)(said)
        except Refused as refused:
            self._lose(refused)
            return None
        self._take(said)
        return said

    def _check(self, said: Mapping[str, Any]) -> None:
        check_exactly(said, self._expected)

    def _check_draw(self, said: Mapping[str, Any], agents: Tensor) -> None:
        """An item for each draw, or none at all; and as likely as can be."""
        items = expected_draw(self.limits, len(agents), with_items="obs" in said)
        check_exactly(said, self._expected | items)
        drawn = said["stamps"] >= 0
        if "obs" not in said and bool(drawn.any()):
            raise Refused("fields", "items are missing")
        if not bool(((said["shares"] > 0) & (said["sizes"][agents] > 0))[drawn].all()):
            raise Refused("range", "items were drawn that nobody has")

    def _take(self, said: Mapping[str, Any]) -> None:
        self._status, self._heard = _status_of(said), True

    def _lose(self, refused: Refused) -> None:
        if self._lockstep:
            raise RunError(
                f"actor {self.slot}: its replay cannot be used ({one_line(str(refused))[:300]}); in"
                " lock-step nobody can take its place: resume the run"
            )
        self.counts[refused.reason] += 1
        self.news[refused.reason] = one_line(str(refused))[:300]
        if refused.reason == LATE:
            self._late = self._inbox.version
        self.empty()


class ActorShards:
    """The learner's side of all of them, by slot."""

    def __init__(
        self, asks: Sequence[Ask], inbox: Inbox, lockstep: bool, bus: Bus | None = None
    ) -> None:
        """Where actors are on a bus, they answer at the same time."""
        each = [RemoteShard(slot, ask, inbox, lockstep) for slot, ask in enumerate(asks)]
        self._each, self._bus, self._told = each, bus, set[tuple[int, str]]()
        self.limits = inbox.limits
        self.shards: list[Shard] = list(each)
        self.map: Callable[..., Iterable[Any]] = map
        self._pool: ThreadPoolExecutor | None = None
        if bus is not None and len(each) > 1:
            self._pool = ThreadPoolExecutor(len(each), "evorl-replay")
            self.map = self._pool.map

    def begin(self, generation: int) -> None:
        """Tell all of them that another generation begins, and who inherits from whom."""
        for _ in self.map(lambda shard: shard.begin(generation), self._each):
            pass

    def hear(self, messages: Sequence[ActorMessage]) -> None:
        """What messages say of them, and which have gone with their actors."""
        gone = () if self._bus is None else self._bus.gone
        for shard in self._each:
            if shard.slot + 1 in gone:
                shard.empty()
        for message in messages:
            self._each[message.slot].hear(message)
        for shard in self._each:
            for reason, detail in shard.news.items():
                self._tell(shard.slot, reason, detail)
            shard.news.clear()

    def report(self) -> dict[str, int]:
        """Since the last one: how often there was no answer, by reason, and dropped updates."""
        total = Counter(dropped=0)
        for shard in self._each:
            total.update(shard.counts)
            shard.counts.clear()
        return dict(sorted(total.items()))

    def close(self) -> None:
        """Nobody is asked any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _tell(self, slot: int, reason: str, detail: str) -> None:
        """Once of each actor and reason; whoever is gone is told of where messages are taken."""
        if reason != GONE and (slot, reason) not in self._told:
            self._told.add((slot, reason))
            warnings.warn(
                f"actor {slot}: its part of the replay is left out until it sends again ({detail});"
                " the next times are only counted",
                stacklevel=2,
            )


def expected_draw(limits: Limits, count: int, with_items: bool) -> dict[str, Expected]:
    """What a shard gives for so many draws, beside its status."""
    floats, numbers = torch.float64, torch.int64
    found = {
        "shares": Expected(floats, (count,), 0, 1),
        "stamps": Expected(numbers, (count,), -1, STAMPS - 1),
    }
    if with_items:
        steps = experience_fields(limits.observation, limits.action, (count,))
        found |= {name: steps[name] for name in ("obs", "action", "next_obs")}
        found["rewards"] = steps["reward"]._replace(shape=(count, limits.n_step))
        found["bootstrap"] = Expected(torch.uint8, (count,), 0, limits.n_step)
    return found


def _status_of(said: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: said[name] for name in ("totals", "sizes", "dropped")}
