"""Who is there, what is told of those who are not, and that every message is accounted for."""

import random
import warnings
from collections import Counter

import numpy as np
import pytest
import torch

from evorl.actors import attendance
from evorl.actors.attendance import Attendance
from evorl.actors.tally import Tally
from evorl.errors import RunError


class FakeBus:
    """Who is on a bus."""

    def __init__(self, *slots):
        self.peers, self.gone = [1 + slot for slot in slots], {}

    def leave(self, slot, why="its connection closed"):
        self.peers.remove(1 + slot)
        self.gone[1 + slot] = why

    def come(self, slot):
        self.gone.pop(1 + slot, None)
        self.peers.append(1 + slot)


class FakeChildren:
    """Who starts actors."""

    def __init__(self, tally):
        self.tally, self.ended, self.deaths = tally, Counter(), 0

    def check(self):
        deaths, self.deaths = self.deaths, 0
        return deaths

    def die(self, slot):
        self.ended[slot] += 1
        self.deaths += 1


def told(attendance):
    """What a look warns of, and who it says has come."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        came = attendance.look()
    return [str(one.message) for one in caught], came


def test_who_comes_by_itself_is_named_when_it_is_gone_and_when_it_is_back():
    bus = FakeBus(0, 1, 2)
    own = Attendance(bus, 2, False, None)
    own.open = True
    for slot in range(3):
        assert own.came(slot, {"host": "a\nb", "process": slot + 70}) == 0
    assert told(own) == ([], ["actor 2 (a\\nb, process 72) has joined"])
    bus.leave(1)
    assert told(own)[0] == [
        "actor 1 (a\\nb, process 71) is gone (its connection closed); the others play on"
    ]
    assert told(own) == ([], [])
    bus.come(1)
    assert told(own)[0] == ["actor 1 (a\\nb, process 71) is back"]
    bus.leave(2, "it left")
    assert len(told(own)[0]) == 1
    assert own.came(2, {"host": "c", "process": 1}) == 1  # another one in its place
    bus.come(2)
    assert told(own) == ([], ["actor 2 (c, process 1) has joined"])
    assert own.report()["gone"] == 2
    for slot in range(3):
        bus.leave(slot)
    lines = told(own)[0]
    assert lines[-1] == "nobody plays: waiting for actors to join"
    assert len(lines) == 4
    assert told(own) == ([], [])


def test_all_are_gone_and_nobody_may_join():
    bus = FakeBus(0, 1)
    own = Attendance(bus, 2, False, None)
    bus.leave(0)
    assert len(told(own)[0]) == 1
    bus.leave(1)
    with (
        pytest.warns(UserWarning, match="actor 1 is gone"),
        pytest.raises(RunError, match="all actors are gone; look for their errors"),
    ):
        own.look()


def test_in_lock_step_nobody_can_be_missed():
    bus = FakeBus(0)
    own = Attendance(bus, 1, True, None)
    bus.leave(0)
    with pytest.raises(RunError, match=r"^actor 0 is gone \(its connection closed\); in lock-step"):
        own.look()


def test_a_child_that_is_stopped_is_named_and_one_that_died_is_not(tmp_path, monkeypatch):
    """Who started it says that it died, and replaces it."""
    bus, children = FakeBus(0, 1), FakeChildren(Tally(tmp_path / "tally", 2))
    own = Attendance(bus, 2, False, children)
    for slot in range(2):
        own.came(slot, {})
    bus.leave(0)
    bus.leave(1)
    assert told(own) == ([], [])
    children.die(1)
    monkeypatch.setattr(attendance, "STOPPED", 0.0)
    (line,) = told(own)[0]
    assert line.startswith("actor 0 gives no sign of life, though it has not ended: is it stopped?")
    assert told(own) == ([], [])
    bus.come(0)
    assert own.came(1, {}) == 1
    bus.come(1)
    assert told(own)[0] == ["actor 0 is back"]
    assert own.report()["gone"] == 2


def test_who_is_slow_is_named_once():
    bus = FakeBus(0, 1, 2)
    own = Attendance(bus, 3, False, None)
    for slot in range(3):
        own.came(slot, {})

    def generation(*counts):
        for slot, count in enumerate(counts):
            for _ in range(count):
                own.heard(slot, 2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            own.report()
        return [str(one.message) for one in caught]

    assert generation(50, 0, 3) == []  # who knows when they came
    line = "is slow: 3 messages in a generation, in which actor 0 sent 50"
    assert generation(50, 10, 3) == [f"actor 2 {line}"]
    assert generation(50, 10, 3) == []
    assert generation(50, 10, 30) == []
    assert generation(19, 0, 0) == []  # too few to tell
    own.came(2, {})  # another one, in the middle
    assert generation(50, 10, 3) == []
    assert generation(50, 10, 3) == [f"actor 2 {line}"]


def test_a_session_that_is_none_is_heard_without_an_error(tmp_path):
    """Nothing has checked a message at this point."""
    tally = Tally(tmp_path / "tally", 1)
    own = Attendance(FakeBus(0), 1, False, FakeChildren(tally))
    own.came(0, {"session": 7})
    for session in (torch.zeros(3), np.zeros(2), None, [7], True, 7.0):
        tally.add(0)
        own.heard(0, session)
    assert own.report() == {"sent": 6, "under_way": 0}


def test_every_message_is_accounted_for_whoever_dies(tmp_path):
    """Against actors that know what they sent, over random deaths."""
    random_state, tally = random.Random(5), Tally(tmp_path / "tally", 2)
    own = Attendance(FakeBus(0, 1), 2, False, FakeChildren(Tally(tmp_path / "tally", 2)))
    waiting, sessions, lost, sent, arrived = ([], []), [0, 1], 0, 0, 0
    total = Counter()
    for slot in range(2):
        own.came(slot, {"session": sessions[slot]})
    for _ in range(3000):
        slot, what = random_state.randrange(2), random_state.random()
        if what < 0.5 and waiting[slot].count(sessions[slot]) < 2:
            tally.add(slot)
            sent += 1
            waiting[slot].append(sessions[slot])
        elif what < 0.95 and waiting[slot]:
            own.heard(slot, waiting[slot].pop(0))
            arrived += 1
        elif what > 0.99:  # it dies, and some of what it sent does not arrive
            under_way = waiting[slot].count(sessions[slot])
            gone = random_state.randrange(under_way + 1)
            lost += gone
            del waiting[slot][len(waiting[slot]) - gone :]
            sessions[slot] += 2
            own.came(slot, {"session": sessions[slot]})  # what others sent may still be waiting
        elif what > 0.98:
            report = own.report()
            total.update(report)
            assert total["sent"] == sent
            assert sent == arrived + total["lost"] + report["under_way"]
            assert total["lost"] <= lost
    for slot in range(2):  # what was lost is known when the newest one is heard
        tally.add(slot)
        for session in [*waiting[slot], sessions[slot]]:
            own.heard(slot, session)
            arrived += 1
    total.update(own.report())
    assert total["lost"] == lost > 5
    assert total["sent"] == sent + 2
