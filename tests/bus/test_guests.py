"""Who joins by an address and a token, and who does not."""

import secrets
import socket
from contextlib import contextmanager

import pytest
import torch
import zmq
from zmq.utils.monitor import recv_monitor_message

from evorl.bus import Bus, check_token, new_token, open_door, visit
from evorl.bus.sockets import keys_of
from evorl.bus.wire import Kind, Message, decode, encode
from evorl.errors import RunError

from .buses import join
from .test_processes import Cable

FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
FAILED |= zmq.EVENT_HANDSHAKE_FAILED_AUTH

HERE = ("127.0.0.1", 0)
TOKEN = new_token()


@contextmanager
def centre(ranks=range(1, 4), **options):
    """A bus that is alone but for its guests, and where they join."""
    with Bus.join(None, 0, 1, topology="star", timeout=20.0) as bus:
        address = open_door(bus, HERE, TOKEN, ranks, **options)
        bus.serve("double", lambda value: {"x": 2 * value.fields["x"]})
        yield bus, address


def works(bus, guest):
    """Whether they can talk, in every way."""
    assert guest.request(0, "double", {"x": 4}, timeout=20).fields == {"x": 8}
    version = bus.publish("weights", {"theta": torch.arange(9)})
    found = guest.wait(lambda: guest.latest("weights", 0, newer_than=version - 1), 20)
    assert found.fields["theta"].equal(torch.arange(9))
    guest.send(0, "queue", {"from": guest.rank}, timeout=20)
    message = bus.receive("queue", timeout=20)
    assert (message.peer, message.fields) == (guest.rank, {"from": guest.rank})


def test_guests_get_ranks_and_talk():
    with centre() as (bus, address):
        assert address.startswith("tcp://127.0.0.1:")
        with visit(address, TOKEN) as first, visit(address, TOKEN) as second:
            assert (first.rank, second.rank) == (1, 2)
            works(bus, first)
            works(bus, second)
            assert bus.peers == (1, 2)
        bus.wait(lambda: bus.gone == {1: "it left", 2: "it left"})
        with visit(address, TOKEN) as third:  # in a place that is free again
            assert third.rank == 1
            works(bus, third)
    with pytest.raises(RunError, match=r"nobody answers at tcp://127.0.0.1:\d+ within 0.2 s \("):
        visit(address, TOKEN, timeout=0.2)


def test_beside_others_who_share_a_store(tmp_path):
    """By ipc, without a key: the door asks for one all the same."""
    with join(tmp_path, 0, 2, "star") as bus, join(tmp_path, 1, 2, "star") as own:
        address = open_door(bus, HERE, TOKEN, range(2, 3))
        bus.serve("double", lambda value: {"x": 2 * value.fields["x"]})
        with visit(address, TOKEN) as guest:
            assert guest.rank == 2
            for one in (own, guest):
                works(bus, one)
            own.publish("all", {"x": 1})
            assert guest.wait(lambda: guest.latest("all", 1)).fields == {"x": 1}


def test_who_is_not_let_in_is_told():
    with centre(range(1, 2), schema="a") as (bus, address):
        with pytest.raises(RunError, match=r"^tcp://\S+: it has another token, or is no learner$"):
            visit(address, new_token(), "a")
        with pytest.raises(RunError, match=r"it refused this process: schema 'b' instead of 'a'$"):
            visit(address, TOKEN, "b")
        with visit(address, TOKEN, "a") as guest:
            with pytest.raises(RunError, match="all 1 places are taken; end another"):
                visit(address, TOKEN, "a")
            works(bus, guest)
        assert bus.counts["denied"] == 2
    with socket.create_server(HERE) as deaf:
        port = deaf.getsockname()[1]
        with pytest.raises(RunError, match=r"\(something listens there, but says nothing\); check"):
            visit(f"tcp://127.0.0.1:{port}", TOKEN, timeout=0.2)
        with centre() as (bus, _), pytest.raises(RunError, match=r"cannot listen on 127.0.0.1:\d"):
            open_door(bus, ("127.0.0.1", port), TOKEN, range(5, 6))


@pytest.mark.parametrize("address", ["", "tcp://", "tcp://a", "ipc://x:5", "tcp://a:0", "a:5"])
def test_what_is_no_address(address):
    with pytest.raises(RunError, match=r"^expected an address such as tcp://10.0.0.1:5555, got '"):
        visit(address, TOKEN)


def test_a_token_must_be_hard_to_guess():
    assert check_token(TOKEN, "here") == TOKEN
    for bad in ("", "secret", "a" * 31, "a" * 40 + "\n"):
        with pytest.raises(RunError, match=r"^here: a token must be 32 characters or more, got "):
            check_token(bad, "here")


def test_strangers_who_know_all_but_the_token():
    """With a key of their own, with the public key of the host, and with none."""
    context = zmq.Context()
    try:
        with centre() as (bus, address), visit(address, TOKEN) as guest:
            for keys in (zmq.curve_keypair(), None):
                raw = context.socket(zmq.DEALER)
                events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | FAILED
                monitor = raw.get_monitor_socket(events, f"inproc://{secrets.token_hex(4)}")
                if keys:
                    raw.curve_publickey, raw.curve_secretkey = keys
                    raw.curve_serverkey = keys_of(TOKEN, "host")[0].encode()
                raw.connect(address)
                hello = Message(Kind.HELLO, 1, 5, payload=encode({"star": True}, "raw"))
                raw.send_multipart([frame.bytes for frame in hello.frames()])
                monitor.rcvtimeo = 60_000
                assert recv_monitor_message(monitor)["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED
                raw.close(0)
            assert bus.counts["strangers"] == 1
            assert bus.peers == (1,)
            works(bus, guest)
    finally:
        context.destroy(linger=0)


def test_a_guest_that_names_itself_gets_no_place_of_others():
    context = zmq.Context()
    try:
        with centre() as (bus, address), visit(address, TOKEN) as guest:
            raw = context.socket(zmq.DEALER)
            raw.linger, raw.rcvtimeo = 0, 20_000
            raw.curve_publickey, raw.curve_secretkey = (k.encode() for k in keys_of(TOKEN, "guest"))
            raw.curve_serverkey = keys_of(TOKEN, "host")[0].encode()
            raw.connect(address)
            for rank in (0, 1, 2, 99):
                said = {"star": True, "schema": ""}
                hello = Message(Kind.HELLO, rank, 5, payload=encode(said, "raw"))
                raw.send_multipart([frame.bytes for frame in hello.frames()])
                answer = decode(raw.recv_multipart(copy=False))
                assert answer.kind == Kind.REFUSED
                assert answer.payload.plain["why"] == "its place is another's by now"
            works(bus, guest)
    finally:
        context.destroy(linger=0)


def test_a_guest_comes_back_to_its_place_after_a_cut_cable():
    with centre() as (bus, address):
        cable = Cable(int(address.rpartition(":")[2]))
        with cable.listener, visit(cable.address, TOKEN) as guest, visit(address, TOKEN) as other:
            for _ in range(2):
                works(bus, guest)
                cable.cut()
                bus.wait(lambda: bus.gone)
                guest.wait(lambda: guest.gone)
                cable.whole = True
                guest.wait(lambda: not guest.gone)
                assert guest.rank == 1
                works(bus, other)
            cable.cut()
            bus.wait(lambda: bus.gone)
            with visit(address, TOKEN) as third:
                assert third.rank == 1
                cable.whole = True
                guest.wait(lambda: "its place is another's by now" in guest.gone.get(0, ""))
                works(bus, third)
