"""Values and streams without sockets: what is lost, repeated or late on a simulated line."""

import random

import pytest
import torch
import zmq

from evorl.bus.delivery import MAX_CREDIT, MAX_NAMES, Delivery
from evorl.bus.wire import Kind, decode, encode


class Line:
    """Two processes and what is under way between them, oldest first."""

    def __init__(self, star=False):
        self.chance = random.Random(0)
        self.ends = {0: Delivery(0, 100, star), 1: Delivery(1, 101, star)}
        self.under_way = {0: [], 1: []}  # by receiver
        self.connect()

    def connect(self):
        for rank, other in ((0, 1), (1, 0)):
            self.ends[rank].link(other, self.ends[other].session)

    def cut(self):
        """What is under way is lost, as when a cable is cut."""
        for rank, end in self.ends.items():
            end.unlink(1 - rank)
            end.outbox.clear()
            self.under_way[rank].clear()

    def step(self, receiver):
        """Carry one message to a process; whether there was one."""
        sender = self.ends[1 - receiver]
        leaving = sender.leaving(all_of_it=self.chance.random() < 0.3)
        self.under_way[receiver] += [message.frames() for _, message in leaving]
        if not self.under_way[receiver]:
            return False
        self.ends[receiver].arrived(1 - receiver, decode(self.under_way[receiver].pop(0)))
        return True

    def settle(self):
        for _ in range(30):  # some of what can wait leaves
            while self.step(0) or self.step(1):
                pass


def fields(number):
    return encode({"number": number}, "test")


def taken(end, kind=Kind.MESSAGE, name="queue"):
    message = end.take(kind, name)
    return message and message.payload.plain["number"]


def test_of_many_values_at_most_two_travel():
    line = Line()
    for version in range(1000):
        line.ends[0].publish("w", fields(version), version)
    line.settle()
    assert line.ends[1].find("w", 0, -1).version == 999
    assert line.ends[1].counts["stale"] == 0
    assert line.ends[0].is_settled()
    # The first one, and the newest when that had been seen; each is acknowledged.
    assert line.ends[1].find("w", 0, -1).arrival == 2


def test_an_older_value_is_stale():
    line = Line()
    line.ends[0].publish("w", fields(5), 5)
    old = line.ends[0].outbox[0][1]
    line.settle()
    line.ends[0].publish("w", fields(6), 6)
    line.settle()
    line.ends[1].arrived(0, old)
    assert line.ends[1].find("w", 0, -1).version == 6
    assert line.ends[1].counts["stale"] == 1


def test_messages_are_kept_until_they_are_taken():
    line = Line()
    sender, receiver = line.ends.values()
    for number in range(3):
        sender.post(1, Kind.MESSAGE, "queue", fields(number))
    line.settle()
    assert not sender.has_credit(1, Kind.MESSAGE, "queue", 3)
    assert taken(receiver) == 0
    line.settle()
    assert sender.has_credit(1, Kind.MESSAGE, "queue", 3)
    assert not sender.has_credit(1, Kind.MESSAGE, "queue", 2)
    assert [taken(receiver), taken(receiver), taken(receiver)] == [1, 2, None]


def test_a_replayed_message_is_dropped_and_counted():
    line = Line()
    sender, receiver = line.ends.values()
    sender.post(1, Kind.MESSAGE, "queue", fields(1))
    again = sender.outbox[0][1]
    line.settle()
    assert taken(receiver) == 1
    for count in range(1, 4):
        receiver.arrived(0, again)
        assert taken(receiver) is None
        assert receiver.counts["replayed"] == count
    line.settle()


def test_a_gap_is_refused():
    line = Line()
    sender, receiver = line.ends.values()
    for number in range(2):
        sender.post(1, Kind.MESSAGE, "queue", fields(number))
    first, second = (message for _, message in sender.outbox)
    receiver.arrived(0, second)
    assert taken(receiver) is None
    assert receiver.counts["out_of_order"] == 1
    receiver.arrived(0, first)
    assert taken(receiver) == 0


def test_who_ignores_credit_is_refused():
    line = Line()
    sender, receiver = line.ends.values()
    for number in range(MAX_CREDIT + 10):
        sender.post(1, Kind.MESSAGE, "queue", fields(number))
    line.settle()
    assert receiver.counts["out_of_order"] == 10


def test_names_are_bounded():
    line = Line()
    sender, receiver = line.ends.values()
    for number in range(MAX_NAMES + 5):
        sender.publish(f"{number}", fields(number), 0)
        sender.post(1, Kind.MESSAGE, f"{number}", fields(number))
    line.settle()
    assert receiver.counts["too_many"] == 10
    assert len(receiver.values) == MAX_NAMES


def test_nobody_speaks_for_somebody_else():
    line = Line()
    receiver = line.ends[1]
    for changed in ({"origin": 2}, {"session": 5}, {"origin": 1}):
        for kind in Kind:
            receiver.arrived(0, forged(kind, **changed))
    assert receiver.counts["misdirected"] == 3 * len(Kind)
    assert receiver.values == {}


def forged(kind, **changed):
    line = Line()
    line.ends[0].publish("w", fields(1), 1)
    return line.ends[0].outbox[0][1]._replace(kind=kind, **changed)


def test_in_a_star_only_the_centre_passes_values_on():
    line = Line(star=True)
    line.settle()
    line.ends[1].arrived(0, forged(Kind.VALUE, origin=2, session=7))
    assert line.ends[1].find("w", 2, -1).version == 1
    line.ends[0].arrived(1, forged(Kind.VALUE, origin=2, session=7))
    assert line.ends[0].find("w", 2, -1) is None
    line.ends[1].arrived(0, forged(Kind.VALUE, origin=1, session=101))  # its own, from elsewhere
    assert line.ends[1].find("w", 1, -1) is None
    assert line.ends[0].counts["misdirected"] == line.ends[1].counts["misdirected"] == 1


@pytest.mark.parametrize(
    "said",
    [
        {"present": 3, "gone": {}},
        {"present": [-1], "gone": {}},
        {"present": [True], "gone": {}},
        {"present": [1.0], "gone": {}},
        {"present": [1], "gone": []},
        {"present": [1], "gone": {"x": "y"}},
        {"present": [1], "gone": {"²": "y"}},
        {},
    ],
    ids=str,
)
def test_who_is_there_is_said_in_one_form_only(said):
    line = Line(star=True)
    line.settle()
    wrong = forged(Kind.VALUE, name="$peers", version=99, payload=encode(said, "test"))
    line.ends[1].arrived(0, wrong)
    assert line.ends[1].counts["malformed"] == 1
    assert set(line.ends[1].present) == {0}


def test_acknowledgements_of_nothing_are_counted():
    line = Line()
    for kind in (Kind.SEEN, Kind.TAKEN):
        for version in (Kind.MESSAGE, 99, -1):
            line.ends[1].arrived(0, forged(kind, version=version))
    assert line.ends[1].counts["unexpected"] == 6


def test_a_reply_that_nobody_waits_for_is_late():
    line = Line()
    line.ends[0].post(1, Kind.REPLY, "ask", fields(1), version=3)
    line.settle()
    assert line.ends[1].counts["late"] == 1
    assert line.ends[0].has_credit(1, Kind.REPLY, "ask", 1)


@pytest.mark.parametrize("seed", range(20))
def test_over_a_line_that_breaks_everything_arrives_once_and_in_order(seed):
    chance = random.Random(seed)
    line = Line()
    sent, got = {0: 0, 1: 0}, {0: [], 1: []}
    for _ in range(2000):
        rank = chance.randrange(2)
        end = line.ends[rank]
        action = chance.random()
        if action < 0.2 and end.has_credit(1 - rank, Kind.MESSAGE, "queue", 2):
            end.post(1 - rank, Kind.MESSAGE, "queue", fields(sent[rank]))
            sent[rank] += 1
        elif action < 0.3:
            end.publish("w", fields(0), end.version("w") + 1)
        elif action < 0.4 and (number := taken(end)) is not None:
            got[rank].append(number)
        elif action < 0.42:
            line.cut()
            if chance.random() < 0.5:
                line.ends[0].lose(1, "gone for a while")
                line.ends[1].lose(0, "gone for a while")
            while chance.random() < 0.5 and (number := taken(end)) is not None:
                got[rank].append(number)  # taken while nobody can be told
            line.connect()
        else:
            line.step(rank)
    for _ in range(4):
        line.settle()
        for rank, end in line.ends.items():
            while (number := taken(end)) is not None:
                got[rank].append(number)
    for rank in (0, 1):
        assert got[rank] == list(range(sent[1 - rank])) != []
        newest = line.ends[1 - rank].version("w")
        assert line.ends[rank].find("w", 1 - rank, -1).version == newest > 10
        assert line.ends[rank].is_settled()
    assert not line.ends[0].counts["out_of_order"] + line.ends[1].counts["out_of_order"]


def test_a_process_that_takes_the_place_of_another_starts_over():
    line = Line()
    for number in range(2):
        line.ends[0].post(1, Kind.MESSAGE, "queue", fields(number))
        line.ends[1].post(0, Kind.MESSAGE, "queue", fields(number))
    line.ends[1].publish("w", fields(5), 5)
    line.settle()
    line.cut()
    line.ends[1] = Delivery(1, 999, False)
    line.connect()
    assert line.ends[0].counts["dropped"] == 2  # they were for the other one
    assert taken(line.ends[0]) == 0  # it had arrived
    line.ends[0].post(1, Kind.MESSAGE, "queue", fields(7))
    line.ends[1].post(0, Kind.MESSAGE, "queue", fields(8))
    line.ends[1].publish("w", fields(0), 0)
    line.settle()
    assert taken(line.ends[1]) == 7
    assert [taken(line.ends[0]), taken(line.ends[0])] == [1, 8]
    assert line.ends[0].find("w", 1, -1).version == 0  # lower, but newer
    assert not line.ends[0].counts["replayed"] + line.ends[0].counts["out_of_order"]


def test_small_values_are_left_and_large_ones_are_not():
    end = Delivery(0, 1, False)
    end.publish("large", encode({"x": torch.ones(2**20)}, "test"), 3)
    end.publish("small", fields(1), 4)
    left = end.small_values(2**16)
    (message,) = [decode_bytes(parts) for parts in left]
    assert (message.name, message.version) == ("small", 4)
    other = Delivery(1, 2, False)
    other.inherit(0, message)
    assert other.find("small", 0, -1).payload.plain == {"number": 1}
    other.inherit(2, message)  # not that one's
    assert other.find("small", 2, -1) is None


def decode_bytes(parts):
    return decode([zmq.Frame(part, copy=True) for part in parts])
