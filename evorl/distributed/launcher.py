"""What a launcher (accelerate launch, torchrun) gives its processes: an environment and a store."""

import contextlib
import fcntl
import ipaddress
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

from evorl.distributed.meeting_place import VARIABLE, meet
from evorl.errors import ConfigError, RunError, rank_errors

NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # where there are several ranks
RESTART = "start with accelerate launch, or unset it"
SPEAKS_AFTER = 5.0  # seconds that a rank leaves to the main one, to print an error that both have
LOOK = 1.0  # seconds between two looks whether the launcher is still there
SIOCGIFADDR = 0x8915  # of Linux: the address of an interface
OUTSIDE = "192.0.2.1"  # nobody's (RFC 5737)
START = timedelta(minutes=5)  # for the main rank to read a file


def launched_ranks() -> int:
    """The ranks that were launched, this one included; 1 without a launcher."""
    ranks = _number("WORLD_SIZE", 1)
    missing = [name for name in NEEDED if name not in os.environ]
    if ranks > 1 and missing:
        raise ConfigError(f"WORLD_SIZE: got {ranks}, but no {', '.join(missing)}; {RESTART}")
    return ranks


def rank() -> int:
    """This rank's number; 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def restarts() -> int:
    """How often the launcher has started all ranks again (--max_restarts)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def local_ranks() -> int:
    """The ranks on this machine, this one included."""
    return _number("LOCAL_WORLD_SIZE", 1)


@cache
def end_with_launcher() -> None:
    """From now on this rank ends when its launcher does, which nobody else would tell it."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        name, parent = "evorl-launcher", os.getppid()
        threading.Thread(target=_watch, name=name, args=(parent,), daemon=True).start()


def _watch(launcher: int) -> None:
    """First as if by its signal; who waits for others within torch does not hear that."""
    while os.getppid() == launcher:
        time.sleep(LOOK)
    with contextlib.suppress(OSError):  # nobody may read that any more
        print(f"error: rank {rank()}: the launcher is gone; resume the run", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SPEAKS_AFTER)
    os._exit(128 + signal.SIGTERM)


def is_main_process_of_launch() -> bool:
    """Whether this is rank 0, or no rank at all; known before there is a World."""
    return rank() == 0


def let_main_speak_first() -> None:
    """Call before an error is printed: ranks other than the main one wait.

    A launcher ends all ranks as soon as one has failed, and so perhaps the main one before its line
    is out. An error that all ranks have is printed by the main one, whose exit ends the others
    here. One that the main rank does not have is printed after all.
    """
    if not is_main_process_of_launch():
        time.sleep(SPEAKS_AFTER)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    # Not isdecimal, which takes other scripts' digits; not int alone, which takes "1_0".
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ConfigError(f"{name}: expected a whole number from 1 on, got {text!r}; {RESTART}")
    return int(text)


def has_place() -> bool:
    """Whether all ranks are on this machine, and a launcher is there by which they find a folder.

    Then they meet in that folder, on the loopback interface, and nobody else can join them.
    """
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return 1 < launched_ranks() <= local_ranks() and (agent or VARIABLE in os.environ)


def launcher_store(timeout: timedelta) -> Any:
    """What ranks tell each other before they are a group, and beside it.

    On one machine a file that only their user can reach. On several the launcher's store, without
    what was there before it started all ranks again: whoever reaches its port can write there.
    """
    from torch.distributed import FileStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

    def connect() -> Any:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(address, port, is_master=False, timeout=timeout)
        return PrefixStore(f"evorl/attempt{restarts()}", store)

    if not has_place():
        return connect()
    store = FileStore(str(meet(connect, restarts(), rank() == 0) / "store"))
    store.set_timeout(timeout)
    return store


def named_store(name: str, timeout: timedelta) -> Any:
    """A part of the store that only those know who know its name."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return PrefixStore(name, launcher_store(timeout))


def read_on_main_rank(read: Callable[[], str]) -> str:
    """What `read` gives on the main rank, on every rank, before there is a World; only once.

    A run's folder may be on the main rank's disk alone, and says how to lay out the ranks.
    """
    if launched_ranks() == 1:
        return read()
    end_with_launcher()
    with rank_errors("start: the main rank said nothing"):
        store = launcher_store(START)
        if not is_main_process_of_launch():
            return str(store.get("config").decode())
    text = read()
    store.set("config", text)
    return text


def choose_host(size: int) -> tuple[str, str] | None:
    """The address to listen on and the one to tell the others; None: all are on this machine.

    The main machine is reached by MASTER_ADDR. Any other one uses the address that faces it.
    """
    if local_ranks() >= min(size, launched_ranks()):
        return None
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        own = _address_of(interface.split(",")[0])
        return own, own
    main = os.environ["MASTER_ADDR"]
    try:
        own = _facing(main, int(os.environ["MASTER_PORT"]))
    except OSError as error:
        raise RunError(
            f"start: MASTER_ADDR {main} has no address ({error.strerror}); check it, or set"
            " GLOO_SOCKET_IFNAME to the network interface that faces the other machines"
        ) from error
    if ipaddress.ip_address(own).is_loopback and own != main and main != "localhost":
        return "0.0.0.0", main  # this is the main machine, and calls itself by a loopback address
    return own, own


def outer_address() -> str:
    """How others may reach this machine: its address on the way out, or its name."""
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        return _address_of(interface.split(",")[0])
    with contextlib.suppress(OSError):
        return _facing(OUTSIDE, 9)
    for _, interface in socket.if_nameindex():  # it has no way out
        with contextlib.suppress(RunError):
            if not ipaddress.ip_address(found := _address_of(interface)).is_loopback:
                return found
    return socket.gethostname()


def _facing(host: str, port: int) -> str:
    """The own address on the way to a host; nothing is sent."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        asked = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, asked)[20:24])
    raise RunError(
        f"start: GLOO_SOCKET_IFNAME names {interface}, an interface with no IPv4 address here;"
        " set it to one that faces the other machines"
    )
