"""What comes to the bus from outside: strangers, replays, lost parts and garbage."""

import json
import random
import uuid
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.distributed as dist
import zmq
from zmq.utils.monitor import recv_monitor_message

from evorl.bus import Bus
from evorl.bus.rendezvous import Rendezvous
from evorl.bus.wire import HEADER, MAX_FRAMES, Kind, Message, decode, encode
from evorl.errors import RunError

TCP = "127.0.0.1"
RIGHT = object()


class Raw:
    """A bare zmq socket that says to a bus what it likes, in the bus's format or not."""

    def __init__(self, context, store, rank=1, session=77, key=None, secret=None):
        self.known = Rendezvous(store)
        self.rank, self.session = rank, session
        contact = self.known.find(0)
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger, self.socket.rcvtimeo = 0, 20_000
        address = f"inproc://{uuid.uuid4()}"
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_ALL, address)
        self.monitor.rcvtimeo = 20_000
        if key:
            self.socket.curve_publickey, self.socket.curve_secretkey = key, secret
            self.socket.curve_serverkey = contact.key.encode()
        self.socket.connect(contact.address)

    def message(self, kind, fields=None, **header):
        payload = encode(fields or {}, "raw")
        return Message(kind, self.rank, self.session, payload=payload)._replace(**header)

    def say(self, message):
        self.socket.send_multipart([frame.bytes for frame in message.frames()])

    def hear(self):
        return decode(self.socket.recv_multipart(copy=False))

    def hello(self, token=RIGHT, **changed):
        token = self.known.token if token is RIGHT else token
        self.say(self.message(Kind.HELLO, {"token": token, "star": False, "schema": ""}, **changed))
        return self.hear()

    def ask(self, name="double", sequence=1):
        """A request to which the answer shows that all before it has been read."""
        self.say(self.message(Kind.REQUEST, {"x": 4}, name=name, sequence=sequence))
        while (heard := self.hear()).kind != Kind.REPLY:
            pass
        return heard.payload.plain


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@contextmanager
def listening(host=None, size=3):
    """Rank 0 and rank 2 of a bus; rank 1 is what the test makes of it."""
    store = dist.HashStore()
    with (
        Bus.join(store, 0, size, timeout=20.0, host=host) as zero,
        Bus.join(store, 2, size, timeout=20.0, host=host) as two,
    ):
        zero.wait(lambda: zero.peers == (2,))
        zero.serve("double", lambda value: {"x": 2 * value.fields["x"]})
        yield store, zero, two


def works(zero, two):
    """Whether the others can still talk, in every way."""
    assert two.request(0, "double", {"x": 4}).fields == {"x": 8}
    version = two.publish("works", {"x": torch.arange(1000)})
    got = zero.wait(lambda: zero.latest("works", 2, newer_than=version - 1))
    assert got.fields["x"].equal(torch.arange(1000))
    two.send(0, "works", {"x": 1})
    assert zero.receive("works").fields == {"x": 1}


def refused(bus):
    """How many messages were refused."""
    return sum(count for name, count in bus.counts.items() if name not in ("sent", "received"))


def test_who_knows_the_token_is_welcome(context):
    with listening() as (store, zero, _):
        raw = Raw(context, store)
        assert raw.hello().kind == Kind.WELCOME
        assert raw.ask() == {"x": 8}
        assert zero.peers == (1, 2)
        assert refused(zero) == 0


@pytest.mark.parametrize("token", [None, "", "0" * 32, 5, ["a"], "é"])
def test_who_does_not_know_the_token_gets_nowhere(context, token):
    with listening() as (store, zero, two):
        raw = Raw(context, store)
        answer = raw.hello(token)
        assert answer.kind == Kind.REFUSED
        assert answer.payload.plain == {"why": "it brought no token of this run"}
        raw.say(raw.message(Kind.VALUE, {"x": 1}, name="x"))
        assert raw.hear().kind == Kind.REFUSED
        assert zero.counts["denied"] == 1
        assert zero.counts["unknown"] == 1
        assert zero.peers == (2,)
        assert zero.latest("x") is None
        works(zero, two)


def test_who_says_no_hello_gets_nowhere(context):
    with listening() as (store, zero, two):
        raw = Raw(context, store)
        for kind in set(Kind) - {Kind.HELLO}:
            raw.say(raw.message(kind, {"x": 1}, name="double", sequence=1))
            assert raw.hear().kind == Kind.REFUSED
        assert zero.counts["unknown"] == len(Kind) - 1
        assert zero.peers == (2,)
        works(zero, two)


def test_strangers_who_come_and_go_disturb_nobody(context):
    with listening() as (store, zero, two):
        for number in range(60):
            raw = Raw(context, store, session=number)
            raw.hello(*([] if number % 2 else ["no"]))
            raw.say(raw.message(Kind.VALUE, {"x": 1}, name="x", version=number))
            raw.monitor.close()
            raw.socket.close()
            works(zero, two)


def test_nobody_comes_as_the_one_who_listens(context):
    with listening() as (store, zero, two):
        assert Raw(context, store, rank=0).hello().payload.plain == {"why": "rank 0 is taken"}
        works(zero, two)


def keys(store=None, rank=None):
    """A key pair, which the store knows as that of a rank."""
    public, secret = zmq.curve_keypair()
    if store is not None:
        known = Rendezvous(store)
        known.register(rank, known.find(0)._replace(address=""), (public.decode(), ""))
    return public, secret


def events(monitor):
    while True:
        yield recv_monitor_message(monitor)["event"]


def test_by_tcp_who_has_a_key_that_the_store_knows_is_welcome(context):
    with listening(TCP) as (store, zero, _):
        raw = Raw(context, store, 1, 77, *keys(store, 1))
        assert raw.hello().kind == Kind.WELCOME
        assert raw.ask() == {"x": 8}
        assert zero.counts["strangers"] == 0


def test_by_tcp_a_key_is_for_one_rank_only(context):
    with listening(TCP) as (store, zero, two):
        raw = Raw(context, store, 2, 77, *keys(store, 1))
        assert raw.hello().payload.plain == {"why": "its key is not that of rank 2"}
        works(zero, two)


def test_by_tcp_a_key_without_the_token_gets_nowhere(context):
    with listening(TCP) as (store, zero, two):
        assert Raw(context, store, 1, 77, *keys(store, 1)).hello("no").kind == Kind.REFUSED
        works(zero, two)


def test_by_tcp_a_stranger_with_a_key_of_its_own_gets_nowhere(context):
    """Also if it knows the token."""
    with listening(TCP) as (store, zero, two):
        before = zero.counts["received"]
        raw = Raw(context, store, 1, 77, *keys())
        raw.say(raw.message(Kind.HELLO, {"token": raw.known.token, "star": False, "schema": ""}))
        assert zmq.EVENT_HANDSHAKE_FAILED_AUTH in events(raw.monitor)
        assert zero.counts["strangers"] >= 1
        assert zero.counts["received"] == before
        assert zero.peers == (2,)
        works(zero, two)


def test_by_tcp_a_stranger_without_a_key_gets_nowhere(context):
    with listening(TCP) as (store, zero, two):
        before = zero.counts["received"]
        raw = Raw(context, store)
        raw.say(raw.message(Kind.HELLO, {"token": raw.known.token, "star": False, "schema": ""}))
        assert zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL in events(raw.monitor)
        assert zero.counts["received"] == before
        works(zero, two)


def test_by_tcp_a_process_whose_key_was_withdrawn_is_told():
    store = dist.HashStore()
    with (
        Bus.join(store, 0, 2, timeout=20.0, host=TCP),
        Bus.join(Forgetful(store), 1, 2, timeout=20.0, host=TCP) as one,
        pytest.raises(RunError, match=r"rank 0 is gone \(it does not know the key of this process"),
    ):
        one.send(0, "q", {})


class Forgetful:
    """A store that loses keys."""

    def __init__(self, store):
        self.store = store

    def clone(self):
        return self

    def set(self, key, value):
        if not key.startswith("bus/key/"):
            self.store.set(key, value)

    def __getattr__(self, name):
        return getattr(self.store, name)


def test_tcp_listens_on_the_host_that_was_asked_for_only():
    with listening(TCP) as (store, *_):
        assert Rendezvous(store).find(0).address.startswith("tcp://127.0.0.1:")
        assert len(Rendezvous(store).find(0).key) == 40


def test_a_lost_part_and_a_replayed_message_are_refused_and_counted(context):
    with listening() as (store, zero, two):
        raw = Raw(context, store)
        raw.hello()
        for number in range(1, 4):
            message = raw.message(
                Kind.MESSAGE, {"x": np.arange(9), "y": np.ones(2)}, name="q", sequence=number
            )
            frames = [frame.bytes for frame in message.frames()]
            for lost in range(3):
                raw.socket.send_multipart(frames[:lost] + frames[lost + 1 :])
            raw.say(message)
            raw.say(message)
        old = raw.message(Kind.VALUE, {"x": 1}, name="v", version=3)
        raw.say(old)
        raw.say(old)
        raw.ask()
        assert zero.counts["malformed"] == 9
        assert zero.counts["replayed"] == 3
        assert zero.counts["stale"] == 1
        for number in range(1, 4):
            assert zero.receive("q").version == number
        with pytest.raises(RunError, match="nothing arrived"):
            zero.receive("q", timeout=0.05)
        works(zero, two)


def mutated(chance, frames):
    """Frames of a message that was right, with something wrong about them, or not."""
    frames = list(frames)
    which = chance.randrange(len(frames))
    way = chance.randrange(8)
    if way == 0:
        del frames[which]
    elif way == 1:
        frames.insert(which, chance.randbytes(chance.randrange(100)))
    elif way == 2:
        frames[which] = frames[which][: chance.randrange(len(frames[which]) + 1)]
    elif way == 3:
        frames[which] += chance.randbytes(chance.randrange(1, 50))
    elif way == 4:
        chance.shuffle(frames)
    elif way == 5:  # the table, with lengths that fit
        head = list(HEADER.unpack_from(frames[0]))
        rest = frames[0][HEADER.size :]
        name, table = rest[: head[-3]], json.loads(rest[head[-3] :])
        table["raw"][0][chance.randrange(4)] = chance.choice(
            [None, -1, 2**63, "pickle", "float16", [2**40, 2**40], {}, [[]], 1e400]
        )
        changed = json.dumps(table).encode()
        head[-1] = len(changed)
        frames[0] = HEADER.pack(*head) + name + changed
    else:  # a few bytes, mostly of the header
        part = bytearray(frames[0])
        for _ in range(chance.randrange(1, 5)):
            part[chance.randrange(HEADER.size if way == 6 else len(part))] = chance.randrange(256)
        frames[0] = bytes(part)
    return frames


@pytest.mark.parametrize("host", [None, TCP], ids=["ipc", "tcp"])
@pytest.mark.parametrize("seed", range(2))
def test_a_thousand_fuzzed_messages_are_refused_and_counted(context, seed, host):
    chance = random.Random(seed)
    with listening(host) as (store, zero, two):
        zero.publish("own", {"x": torch.ones(100)})
        zero.wait(zero._delivery.is_settled)  # from now on all that arrives is the test's
        raw = Raw(context, store, 1, 77, *(keys(store, 1) if host else ()))
        raw.hello()
        before = dict(zero.counts)
        for number in range(1000):
            if number % 3 == 0:
                parts = [chance.randbytes(chance.randrange(200)) for _ in range(1 + number % 4)]
                if number % 2:
                    parts[0] = b"EVOB\x01" + parts[0]
            else:
                kind = chance.choice([kind for kind in Kind if kind != Kind.BYE])
                name = chance.choice(["own", "works", "double", "$peers", "q", ""])
                numbers = {"version": chance.randrange(9), "sequence": chance.randrange(9)}
                fields = {"x": np.ones((2, 3)), "y": torch.ones(4), "z": {"a": 1}}
                parts = [f.bytes for f in raw.message(kind, fields, name=name, **numbers).frames()]
                parts = mutated(chance, parts)
            raw.socket.send_multipart(parts or [b""])
        last = raw.message(Kind.PING).frames()[0].bytes
        raw.socket.send_multipart([last] + [b""] * (MAX_FRAMES + 10))
        zero.wait(lambda: zero.counts["too_large"] > before.get("too_large", 0))
        assert zero.counts["received"] - before["received"] == 1001  # each was read once
        assert zero.counts["malformed"] >= 700
        for (peer, name), value in list(zero._delivery.values.items()):
            assert peer in (0, 1, 2)
            value.payload.fields()  # what was accepted can be read
            zero.latest(name, peer)
        assert zero.latest("own", 0).fields["x"].equal(torch.ones(100))
        works(zero, two)
        raw = Raw(context, store, 1, 78, *(keys(store, 1) if host else ()))  # a fresh start
        assert raw.hello().kind == Kind.WELCOME
        assert raw.ask() == {"x": 8}


def test_who_dials_trusts_the_answers_no_more(context):
    """A fake process that listens, and answers with garbage."""
    store = dist.HashStore()
    router = context.socket(zmq.ROUTER)
    with Bus.join(store, 0, 3, timeout=20.0) as zero:
        known = Rendezvous(store)
        folder = known.find(0).address.removeprefix("ipc://") + "2"
        router.bind(f"ipc://{folder}")
        known.register(1, known.find(0)._replace(address=f"ipc://{folder}"), None)
        with Bus.join(store, 2, 3, timeout=20.0) as two:
            route, *hello = router.recv_multipart(copy=False)
            assert decode(hello).kind == Kind.HELLO
            chance = random.Random(0)
            for _ in range(300):
                message = Message(
                    chance.choice([k for k in Kind if k not in (Kind.REFUSED, Kind.BYE)]),
                    *(chance.choice([0, 1, 2, 9]), chance.choice([0, 5])),
                    *("x", 1, 1),
                    payload=encode({"x": np.ones(3)}, "test"),
                )
                parts = [frame.bytes for frame in message.frames()]
                parts = mutated(chance, parts) if chance.random() < 0.7 else parts
                router.send_multipart([route.bytes, *parts])
            welcome = Message(Kind.WELCOME, 1, 5)
            router.send_multipart([route.bytes, *[f.bytes for f in welcome.frames()]])
            two.wait(lambda: two.peers == (0, 1))
            two.wait(lambda: two.counts["received"] > 300)
            assert refused(two) > 100
            two.send(0, "q", {"x": 1})
            assert zero.receive("q").fields == {"x": 1}
