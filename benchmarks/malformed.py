"""A thousand messages for a learner that are made of a real one, and wrong: half of them in their
fields, as an actor would send them, half in their bytes, below that.
"""

import json
import os
import random
import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import zmq
from faulty import FOLDER

from evorl.actors import ActorEnd
from evorl.bus import visit
from evorl.bus.links import GUEST
from evorl.bus.sockets import keys_of
from evorl.bus.wire import HEADER, Kind, Message, Refused, decode, encode
from evorl.config import parse_text
from evorl.training.actor_setup import make_actor
from evorl.training.joining import SCHEMA, read_token

EACH, WAIT = 500, 60.0  # messages of each level; seconds
QUEUE, LEARNER, OWN = "messages", 0, 2  # actors that the learner has of its own
PASSED = {"sent", "received", "dropped"}  # what the bus counts that is not wrong
Fields = dict[str, Any]


def send_malformed(learner: Any) -> tuple[int, int, int]:
    """How many were sent; were refused, and counted; and were taken, as they were right."""
    found = re.search(r"--connect (\S+) --token-file (\S+)", learner.said())
    assert found
    address, token = found[1], read_token(Path(found[2]))
    os.environ[FOLDER] = str(learner.folder)
    chance = random.Random(7)
    with visit(address, token, SCHEMA, WAIT) as bus, Raw(address, token) as raw:
        end = ActorEnd(bus, WAIT)
        message = real_message(end) | {"slot": end.slot, "session": end.session}
        refused, taken = counts(learner)
        for number in range(1, 1 + EACH):
            bus.send(LEARNER, QUEUE, wrong_fields(chance, message | {"sequence": number}), WAIT)
            raw.send(wrong_frames(chance, raw.message(message, 1 + number % 9)))
        raw.hello()  # all before it has been read
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            now = counts(learner)
            if now[0] - refused + now[1] - taken >= 2 * EACH:
                break
    return 2 * EACH, now[0] - refused, now[1] - taken


def counts(learner: Any) -> tuple[int, int]:
    """What the learner has refused of all that is not of its own actors, and what it has taken."""
    begin = time.time()
    while not (notes := learner.lines("heard")) or notes[-1]["at"] < begin:
        time.sleep(0.05)
    told = notes[-1]
    strange = [own for slot, own in told["slots"].items() if int(slot) >= OWN]
    below = sum(count for name, count in told["bus"].items() if name not in PASSED)
    return below + sum(own[0] for own in strange), sum(own[1] for own in strange)


def real_message(end: ActorEnd) -> Fields:
    """What an actor of this run sends."""
    told = dict(end.greeting)
    config = parse_text(str(told.pop("config")), "config")
    told.pop("agreed")
    weights = end.newest()
    assert weights
    with ExitStack() as stack:
        actor = make_actor(config, weights.fields, stack, **told)
        actor.load(weights.fields, weights.version)
        return actor.play()


def wrong_fields(chance: random.Random, message: Fields) -> Fields:
    """The same, with something wrong about it; a few bytes of a tensor may be right by chance."""
    name = chance.choice(list(message))
    value, way = message[name], chance.randrange(8)
    if way == 0:
        return {key: own for key, own in message.items() if key != name}
    if way == 1:
        return message | {f"{name}2": value}
    if way == 2 or not isinstance(value, torch.Tensor):
        odd = (None, "x", -1, 1.5, float("nan"), [[]], {}, True, 2**70, torch.zeros(2))
        return message | {name: chance.choice(odd)}
    if way == 3:
        other = torch.float64 if value.dtype != torch.float64 else torch.int32
        return message | {name: value.to(other)}
    if way == 4:
        return message | {name: value[None]}
    if way == 5:
        return message | {name: torch.cat([value, value, value.new_zeros(1, *value.shape[1:])])}
    if way == 6 and value.is_floating_point() and value.numel():
        spoilt = value.clone().flatten()
        spoilt[chance.randrange(len(spoilt))] = chance.choice([float("nan"), float("inf"), -1e30])
        return message | {name: spoilt.view(value.shape)}
    spoilt = value.clone().contiguous()
    if spoilt.numel():
        raw = spoilt.view(-1).view(torch.uint8)
        raw[chance.randrange(len(raw))] ^= chance.randrange(1, 256)
    return message | {name: spoilt}


def wrong_frames(chance: random.Random, message: Message) -> list[bytes]:
    """Its bytes, changed; what another message is, as right as this one, is left out."""
    whole = [frame.bytes for frame in message.frames()]
    while True:
        frames = changed(chance, list(whole))
        try:
            said = decode([zmq.Frame(part) for part in frames])
        except Refused:
            return frames
        if said.kind == Kind.MESSAGE and said.name == QUEUE:
            return frames


def changed(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    """Frames that lack something, have too much of it, or other bytes in it."""
    which, way = chance.randrange(len(frames)), chance.randrange(7)
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
        name, table = frames[0][HEADER.size :][: head[-3]], frames[0][HEADER.size + head[-3] :]
        read = json.loads(table)
        odd = (None, -1, 2**63, "pickle", "float16", [2**40, 2**40], {}, [[]], 1e400)
        chance.choice(read["raw"])[chance.randrange(4)] = chance.choice(odd)
        table = json.dumps(read).encode()
        frames[0] = HEADER.pack(*head[:-1], len(table)) + name + table
    else:
        part = bytearray(frames[0])
        for _ in range(chance.randrange(1, 5)):
            part[chance.randrange(len(part))] = chance.randrange(256)
        frames[0] = bytes(part)
    return frames or [b""]


class Raw:
    """An actor below the bus: it says what it likes."""

    def __init__(self, address: str, token: str) -> None:
        self.context, self.rank, self.session = zmq.Context(), GUEST, 77
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger, self.socket.rcvtimeo = 0, int(WAIT * 1000)
        own, host = keys_of(token, "guest"), keys_of(token, "host")
        self.socket.curve_publickey, self.socket.curve_secretkey = (key.encode() for key in own)
        self.socket.curve_serverkey = host[0].encode()
        self.socket.connect(address)
        self.hello()

    def message(self, fields: Fields, sequence: int) -> Message:
        """One that is right, but perhaps for its number."""
        payload = encode(
            fields | {"slot": self.rank - 1, "session": 5, "sequence": sequence}, "raw"
        )
        return Message(Kind.MESSAGE, self.rank, self.session, QUEUE, 0, sequence, payload=payload)

    def send(self, frames: list[bytes]) -> None:
        """As they are."""
        self.socket.send_multipart(frames)

    def hello(self) -> None:
        """Until it is welcome."""
        said = encode({"star": True, "schema": SCHEMA}, "raw")
        hello = Message(Kind.HELLO, self.rank, self.session, payload=said)
        self.send([frame.bytes for frame in hello.frames()])
        while (answer := decode(self.socket.recv_multipart(copy=False))).kind != Kind.WELCOME:
            pass
        self.rank = answer.payload.plain["rank"]

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *error: object) -> None:
        self.context.destroy(linger=0)
