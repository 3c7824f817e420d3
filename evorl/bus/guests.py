"""Guests: processes that join the centre of a star by an address and a token, at any time.

    address = open_door(bus, ("0.0.0.0", 5555), token, ranks=range(3, 9))
    bus = visit("tcp://10.0.0.1:5555", token)  # on any machine; its rank is one of these

From the token both sides make CURVE keys, and so each proves to the other one that it has it. It
never travels; nobody else is let in or can read what does. So it must be long and random.
"""

import atexit
import re
import secrets
import socket

from evorl.bus.bus import Bus
from evorl.bus.links import GUEST
from evorl.bus.network import Network
from evorl.bus.rendezvous import Contact, Invitation
from evorl.bus.sockets import keys_of
from evorl.errors import RunError

LEAST = 32  # characters of a token
ADDRESS = re.compile(r"tcp://(\[[^\[\]/]+\]|[^:/\[\]]+):([0-9]{1,5})")


def new_token() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(32)


def check_token(token: str, where: str) -> str:
    """The token; RunError if anybody could guess it."""
    if len(token) < LEAST or not token.isprintable():
        raise RunError(
            f"{where}: a token must be {LEAST} characters or more, got {len(token)}; take that of"
            " the run, or make one with: openssl rand -hex 32"
        )
    return token


def open_door(bus: Bus, where: tuple[str, int], token: str, ranks: range, schema: str = "") -> str:
    """Let guests in, as many as there are ranks for them; the address that they dial.

    Args:
        bus: The centre of a star.
        where: Host and port to listen on; port 0 takes a free one.
        token: What guests must have.
        ranks: What they become; nobody else has them.
        schema: What they must agree on, such as a version.
    """
    if bus._network is None:  # there was nobody else
        here = (bus._delivery, bus._changed, Invitation())
        bus._network = Network(*here, dials=range(0), expected=0)
        atexit.register(bus.close)
    return bus._network.open_door(where, token, ranks, schema)


def visit(address: str, token: str, schema: str = "", timeout: float = 60.0) -> Bus:
    """The bus of a guest, once it is let in; RunError says who did not answer, or why not.

    Args:
        address: tcp://HOST:PORT, of a door.
        token: What lets guests in.
        schema: What both must agree on, such as a version.
        timeout: Seconds to be let in, and for calls that give no time-out of their own.
    """
    host, port = _parsed(address)
    known = Invitation(Contact(address, keys_of(token, "host")[0]))
    bus = Bus(GUEST, 2, True, timeout, 2)
    here, keys = (bus._delivery, bus._changed, known), keys_of(token, "guest")
    bus._network = Network(*here, dials=range(1), expected=1, keys=keys, schema=schema)
    atexit.register(bus.close)
    try:
        bus.wait(lambda: bus.peers or bus.gone, timeout)
    except RunError:
        bus.close()
        raise RunError(
            f"nobody answers at {address} within {timeout:g} s ({_look(host, port)}); check the"
            " address, and that the learner is there"
        ) from None
    except BaseException:
        bus.close()
        raise
    if why := bus.gone.get(0):
        bus.close()
        raise RunError(f"{address}: {why}")
    bus.rank = bus._delivery.rank
    return bus


def _parsed(address: str) -> tuple[str, int]:
    found = ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[2]) < 2**16:
        raise RunError(f"expected an address such as tcp://10.0.0.1:5555, got {address!r}")
    return found[1].strip("[]"), int(found[2])


def _look(host: str, port: int) -> str:
    """What is wrong about an address, as far as one can see from here."""
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError as error:
        return error.strerror or str(error)
    return "something listens there, but says nothing"
