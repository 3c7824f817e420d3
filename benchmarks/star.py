"""What the learner's end of a star costs in computing: each value to each peer, each message.

    python benchmarks/star.py           # half a minute; by ipc
    python benchmarks/star.py --tcp     # by tcp with CURVE keys, on loopback
    python benchmarks/star.py --tcp --write  # into benchmarks/results/scaling.json

Seconds of a core in the process in the middle, with the threads of its bus, so that it matters
little what else runs on the machine. Eight peers are in another process, and do nothing but take
what comes, or send as fast as they get credit. A straight line through the sizes gives what a
message costs, and what a megabyte: constants of benchmarks/scaling_model.py.
"""

import json
import multiprocessing
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch.distributed import PrefixStore, TCPStore

from evorl import Bus

RESULTS = Path(__file__).parent / "results" / "scaling.json"
PEERS = 8
SIZES = (2**12, 2**16, 2**18, 2**20)  # bytes
SECONDS = 1.5  # of each measurement
PAUSE = 0.02  # between two values: all peers have the last one by then


def join(port: int, rank: int, host: str | None) -> Bus:
    """One end of the star."""
    store = PrefixStore("star", TCPStore("127.0.0.1", port, is_master=False))
    return Bus.join(store, rank, PEERS + 1, topology="star", host=host)


def be_peers(port: int, host: str | None) -> None:
    """All peers, a thread each: they send messages of the size that is asked for, 0: none."""

    def run(rank: int) -> None:
        with join(port, rank, host) as bus:
            turn, size = -1, 0
            while size >= 0:
                asked = bus.wait(partial(bus.latest, "size", 0, turn))
                turn, size = asked.version, asked.fields["size"]
                tensor = torch.zeros(max(0, size), dtype=torch.uint8)
                while size > 0 and bus.latest("size", 0, turn) is None:
                    bus.send(0, "messages", {"x": tensor})

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(1, PEERS + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def seconds_of_value(bus: Bus, size: int) -> float:
    """Of computing, for a value to one peer."""
    tensor = torch.zeros(size, dtype=torch.uint8)
    sent, begun = bus.counts["sent"], time.process_time()
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        bus.publish("weights", {"theta": tensor})
        time.sleep(PAUSE)
    return (time.process_time() - begun) / (bus.counts["sent"] - sent)


def seconds_of_message(bus: Bus, size: int) -> float:
    """Of computing, for a message that is received."""
    bus.publish("size", {"size": size})
    bus.receive("messages")
    count, begun = 0, time.process_time()
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        bus.receive("messages")
        count += 1
    spent = time.process_time() - begun
    bus.publish("size", {"size": 0})
    last = time.perf_counter()
    while time.perf_counter() < last + 0.2:  # what was under way
        if bus.poll("messages"):
            last = time.perf_counter()
    return spent / count


@click.command()
@click.option("--tcp", is_flag=True, help="By tcp with CURVE keys instead of ipc.")
@click.option("--write", is_flag=True, help="Into benchmarks/results/scaling.json.")
def main(tcp: bool, write: bool) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", 0, is_master=True)
    host = "127.0.0.1" if tcp else None
    context = multiprocessing.get_context("spawn")
    peers = context.Process(target=be_peers, args=(store.port, host))
    peers.start()
    with join(store.port, 0, host) as bus:
        bus.meet()
        print("| µs of computing at the centre | value, to each peer | message, received |")
        print("| --- | --- | --- |")
        found = []
        for size in SIZES:
            found.append((seconds_of_value(bus, size), seconds_of_message(bus, size)))
            print(f"| {size // 1024:,} KB | " + " | ".join(f"{s * 1e6:,.0f}" for s in found[-1]))
        bus.publish("size", {"size": -1})
    peers.join()
    constants = {}
    for name, costs in zip(("value", "message"), zip(*found, strict=True), strict=True):
        sizes, seconds = np.array(SIZES) / 1e6, np.array(costs) * 1e6
        each, fixed = np.polyfit(sizes, seconds, 1, w=1 / seconds)
        constants |= {f"{name}_us": round(fixed, 1), f"{name}_mb_us": round(each, 1)}
        print(f"{name}: {fixed:.0f} µs, and {each:.0f} µs a megabyte")
    if write:
        add("star", {"tcp" if tcp else "ipc": constants})


def add(what: str, constants: dict[str, Any]) -> None:
    """Write them down beside the others."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[what] = {**known.get(what, {}), **constants}
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
