"""The bus against gloo between the same two processes, in turns: latency and throughput.

    python benchmarks/bus.py                # a minute; by ipc
    python benchmarks/bus.py --tcp          # by tcp with CURVE keys, on loopback

Latency is half of a round trip of one float32 tensor, the median of all: `send` and `receive` of a
queue, a `publish` that the other process waits for, and gloo's `send` and `recv`, which both sides
must enter. What arrives on the bus is in fresh memory; gloo writes into a tensor that is there.
Throughput is one way, the median of the turns: with the queue's two messages under way, or one
after another with gloo. On a busy machine gloo, which spins, and the bus, which sleeps, lose
differently: look at the ratios of an idle one.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import click
import torch
import torch.distributed as dist
from torch import Tensor

from evorl.bus import Bus

SIZES = {"4 KB": 2**12, "64 KB": 2**16, "1 MB": 2**20, "20 MB": 20 * 2**20}
TURNS = 7
SECONDS = 0.2  # of each turn, about

Turn = Callable[[Tensor, int], None]  # a tensor, and how often


def gloo_round(rank: int) -> Turn:
    """There and back."""

    def run(tensor: Tensor, count: int) -> None:
        for _ in range(count):
            for source in (0, 1):
                if rank == source:
                    dist.send(tensor, 1 - rank)
                else:
                    dist.recv(tensor, source)

    return run


def gloo_stream(rank: int) -> Turn:
    """From 0 to 1; a last message back says that all have arrived."""
    done = torch.zeros(1)

    def run(tensor: Tensor, count: int) -> None:
        for _ in range(count):
            dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        dist.recv(done, 1) if rank == 0 else dist.send(done, 0)

    return run


def queue_round(bus: Bus) -> Turn:
    """There and back."""

    def run(tensor: Tensor, count: int) -> None:
        for _ in range(count):
            for source in (0, 1):
                if bus.rank == source:
                    bus.send(1 - bus.rank, "there", {"x": tensor})
                else:
                    bus.receive("there")

    return run


def queue_stream(bus: Bus) -> Turn:
    """From 0 to 1; a last message back says that all have arrived."""

    def run(tensor: Tensor, count: int) -> None:
        for _ in range(count):
            bus.send(1, "stream", {"x": tensor}) if bus.rank == 0 else bus.receive("stream")
        bus.receive("done") if bus.rank == 0 else bus.send(0, "done", {})

    return run


def value_round(bus: Bus) -> Turn:
    """There and back, as values: only the newest counts."""
    seen = [-1]

    def run(tensor: Tensor, count: int) -> None:
        for _ in range(count):
            for source in (0, 1):
                if bus.rank == source:
                    bus.publish("value", {"x": tensor})
                else:
                    value = bus.wait(lambda: bus.latest("value", 1 - bus.rank, seen[0]))
                    seen[0] = value.version

    return run


def seconds(run: Turn, tensor: Tensor, count: int, each: bool) -> list[float]:
    """Of every repetition, or the mean of all of them."""
    dist.barrier()
    found, start = [], time.perf_counter()
    for _ in range(count if each else 1):
        run(tensor, 1 if each else count)
        end = time.perf_counter()
        found.append((end - start) / (1 if each else count))
        start = end
    return found


def count_for(run: Turn, tensor: Tensor) -> int:
    """How often fits into a turn; both processes agree."""
    seconds(run, tensor, 3, each=False)
    count = torch.tensor([max(3, int(SECONDS / seconds(run, tensor, 5, each=False)[0]))])
    dist.broadcast(count, 0)
    return int(count)


def medians(ways: dict[str, Turn], tensor: Tensor, each: bool) -> dict[str, float]:
    """The median seconds of each way; they take turns."""
    counts = {name: count_for(run, tensor) for name, run in ways.items()}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, run in ways.items():
            found[name] += seconds(run, tensor, counts[name], each)
    return {name: statistics.median(values) for name, values in found.items()}


def measure(rank: int, bus: Bus) -> list[str]:
    """All sizes, as the lines of two tables."""
    rounds = {"queue": queue_round(bus), "value": value_round(bus), "gloo": gloo_round(rank)}
    streams = {"queue": queue_stream(bus), "gloo": gloo_stream(rank)}
    latency = ["| one way, µs | queue | value | gloo | gloo / queue | gloo / value |"]
    throughput = ["| MB/s | queue | gloo | queue / gloo |"]
    for table in (latency, throughput):
        table.append("| --- " * (table[0].count("|") - 1) + "|")
    for label, size in SIZES.items():
        tensor = torch.ones(size // 4)
        took = {name: s / 2 * 1e6 for name, s in medians(rounds, tensor, each=True).items()}
        speed = {name: size / s / 1e6 for name, s in medians(streams, tensor, each=False).items()}
        latency.append(
            f"| {label} | {took['queue']:,.0f} | {took['value']:,.0f} | {took['gloo']:,.0f} |"
            f" {took['gloo'] / took['queue']:.2f} | {took['gloo'] / took['value']:.2f} |"
        )
        ratio = speed["queue"] / speed["gloo"]
        throughput.append(
            f"| {label} | {speed['queue']:,.0f} | {speed['gloo']:,.0f} | {ratio:.2f} |"
        )
    return [*latency, "", *throughput]


@click.command()
@click.option("--tcp", is_flag=True, help="By tcp with CURVE keys instead of ipc.")
@click.option("--rank", type=int, hidden=True)
@click.option("--port", type=int, hidden=True)
def main(tcp: bool, rank: int | None, port: int | None) -> None:
    """Measure and print."""
    if rank is None:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True)
        words = [sys.executable, __file__, f"--port={store.port}", *(["--tcp"] if tcp else [])]
        processes = [subprocess.Popen([*words, f"--rank={rank}"]) for rank in range(2)]
        raise SystemExit(max(process.wait() for process in processes))
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port or 0, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    own = dist.PrefixStore("bus", store)
    with Bus.join(own, rank, 2, host="127.0.0.1" if tcp else None) as bus:
        bus.meet()
        lines = measure(rank, bus)
        dist.barrier()
    if rank == 0:
        print(*lines, sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
