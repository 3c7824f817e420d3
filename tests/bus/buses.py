"""Run in a process of its own: buses.py CASE FOLDER RANK SIZE [TOPOLOGY]. The other side of a bus.

It meets the others through a file in FOLDER, or as a launcher says it should (MASTER_ADDR), and
says in FOLDER/<name>.<rank> what it finds.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from evorl.bus import Bus, sockets
from evorl.distributed.launcher import choose_host
from evorl.errors import RunError

WEIGHTS = 5 * 2**20  # numbers: 20 MiB


def pattern(version, size=WEIGHTS):
    """Weights of which every number says what version it is of; [size], int32."""
    return torch.arange(size, dtype=torch.int32).mul_(31).add_(version * 1_000_003)


def join(folder, rank, size, topology="mesh", **options):
    if address := os.environ.get("MASTER_ADDR"):
        store = dist.TCPStore(address, int(os.environ["MASTER_PORT"]), is_master=rank == 0)
        options.setdefault("host", choose_host(size))
    else:
        store = dist.FileStore(str(Path(folder) / "store"), size)
    return Bus.join(store, rank, size, topology=topology, **options)


def read_weights(bus, say):
    """Checks every number of all that arrives until it is told to stop; says which versions."""
    seen = [-1]
    while not bus.latest("stop", 0):
        value = bus.wait(
            lambda: bus.latest("weights", 0, newer_than=seen[-1]) or bus.latest("stop", 0)
        )
        if "theta" in value.fields:
            assert value.fields["theta"].equal(pattern(value.version)), value.version
            seen.append(value.version)
            bus.publish("read", {"values": len(seen) - 1})
    say("versions", " ".join(map(str, seen[1:])))


def never_read(bus, say):
    """Is there, and asks for nothing but the end."""
    bus.wait(lambda: bus.latest("stop", 0))
    newest = bus.latest("weights", 0)
    say("newest", f"{newest.version} {newest.fields['theta'].equal(pattern(newest.version))}")


def echo(bus, say):
    """Answers, until the end."""
    bus.publish("hello", {"from": bus.rank})
    bus.serve("double", lambda value: {"x": 2 * value.fields["x"]})
    bus.wait(lambda: bus.latest("stop", 0))


def across(bus, say):
    """Talks in every way, and then waits until the other one is gone."""
    other = 1 - bus.rank
    bus.meet(60)
    say("address", bus._network._rendezvous.find(bus.rank).address)
    bus.serve("double", lambda value: {"x": 2 * value.fields["x"]})
    theta = pattern(bus.rank)
    bus.publish("weights", {"theta": theta}, bus.rank)
    value = bus.wait(lambda: bus.latest("weights", other), peer=other)
    assert value.fields["theta"].equal(pattern(other))
    bus.send(other, "work", {"x": theta[:9]})
    assert bus.receive("work").fields["x"].equal(pattern(other, 9))
    assert bus.request(other, "double", {"x": 4}).fields == {"x": 8}
    say("talked", "")
    try:
        bus.wait(lambda: False, 60, "a cut", other)
    except RunError as error:
        say("cut", str(error))
    bus.meet(60)
    assert bus.request(other, "double", {"x": 5}).fields == {"x": 10}
    say("mended", "")
    bus.publish("done", {})
    bus.wait(lambda: bus.latest("done", other), 60)


CASES = {case.__name__: case for case in (read_weights, never_read, echo, across)}


def main(case, folder, rank, size, topology="mesh"):
    torch.set_num_threads(1)
    sockets.SILENCE = float(os.environ.get("SILENCE", sockets.SILENCE))

    def say(name, text):
        (Path(folder) / f"{name}.{rank}").write_text(text)

    with join(folder, int(rank), int(size), topology) as bus:
        CASES[case](bus, say)


if __name__ == "__main__":
    main(*sys.argv[1:])
