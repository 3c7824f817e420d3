"""The bus between processes: large values, processes that are stopped or killed, broken lines."""

import os
import select
import signal
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from evorl.bus import Bus
from evorl.bus.rendezvous import Contact, Rendezvous
from evorl.errors import RunError
from tests.processes import Command, Forked

from .buses import WEIGHTS, join, pattern

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "buses.py"


@contextmanager
def process(case, folder, rank=1, size=2, topology="mesh"):
    """A process on the bus that runs a case of buses.py; it is gone afterwards."""
    output = folder / f"output{rank}"
    words = [str(word) for word in (SCRIPT, case, folder, rank, size, topology)]
    started = Forked(Command(words, folder, output, dict(os.environ)))
    try:
        yield started
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait(20)


def ended(started, folder, rank=1):
    assert started.wait(60) == 0, (folder / f"output{rank}").read_text()


def test_twenty_mebibytes_arrive_whole_while_the_sender_overwrites_them(tmp_path):
    first, theta = pattern(0), torch.empty(WEIGHTS, dtype=torch.int32)
    with process("read_weights", tmp_path) as reader, join(tmp_path, 0, 2) as bus:
        bus.meet()
        read = version = 0
        while version < 40 or read < 5:
            torch.add(first, version * 1_000_003, out=theta)
            bus.publish("weights", {"theta": theta, "step": version}, version)
            theta.fill_(-1)  # at once
            version += 1
            assert not bus.gone
            if value := bus.latest("read", 1):
                read = value.fields["values"]
        bus.publish("stop", {})
        ended(reader, tmp_path)
    seen = [int(version) for version in (tmp_path / "versions.1").read_text().split()]
    assert seen == sorted(set(seen))
    assert len(seen) >= 5


def test_a_receiver_that_never_reads_costs_no_memory(tmp_path):
    with process("never_read", tmp_path) as reader, join(tmp_path, 0, 2) as bus:
        bus.meet()
        theta = pattern(0)

        def publish(count):
            for _ in range(count):
                theta.copy_(pattern(bus._delivery.version("weights") + 1))
                version = bus.publish("weights", {"theta": theta})
            return version, rss(), rss(reader.pid)

        _, here, there = publish(10)
        newest, more_here, more_there = publish(30)  # 600 MiB
        assert more_here - here < 150 * 2**20
        assert more_there - there < 150 * 2**20
        bus.publish("stop", {})
        ended(reader, tmp_path)
    version, whole = (tmp_path / "newest.1").read_text().split()
    assert int(version) <= newest
    assert whole == "True"


def test_a_stopped_receiver_costs_the_sender_nothing(tmp_path):
    with process("read_weights", tmp_path) as reader, join(tmp_path, 0, 2) as bus:
        bus.meet()
        theta = pattern(0)
        bus.publish("weights", {"theta": theta})
        psutil.Process(reader.pid).suspend()
        before = rss()
        for version in range(1, 41):  # 800 MiB: what waited for the reader would never end
            theta.copy_(pattern(version))
            bus.publish("weights", {"theta": theta})
        # The newest, one under way, one being made.
        assert rss() - before < 150 * 2**20
        assert bus.peers == (1,)
        for _ in range(2):
            bus.send(1, "work", {"x": theta})
        with pytest.raises(
            RunError, match=r"send to 'work': rank 1 did not take the 2 before withi"
        ):
            bus.send(1, "work", {"x": theta}, timeout=0.1)
        psutil.Process(reader.pid).resume()
        bus.wait(bus._delivery.is_settled, timeout=60)
        bus.publish("stop", {})
        ended(reader, tmp_path)
    assert (tmp_path / "versions.1").read_text().split()[-1] == "40"


def rss(pid=None):
    return psutil.Process(pid).memory_info().rss


@pytest.mark.parametrize("rank", [0, 1], ids=["listener", "dialler"])
def test_a_killed_process_is_noticed_and_named(rank, tmp_path):
    other = 1 - rank
    with process("echo", tmp_path, rank) as peer, join(tmp_path, other, 2) as bus:
        bus.wait(lambda: bus.latest("hello", rank))
        assert bus.request(rank, "double", {"x": 4}).fields == {"x": 8}
        peer.send_signal(signal.SIGKILL)
        with pytest.raises(RunError) as error:
            bus.request(rank, "never", {}, timeout=60)
        gone = f"rank {rank} is gone (its connection closed); "
        assert str(error.value).startswith(f"request 'never': {gone}")
        with pytest.raises(RunError) as error:
            bus.wait(lambda: None, timeout=60, what="weights", peer=rank)
        assert str(error.value).startswith(f"wait for weights: {gone}")
        assert bus.latest("hello", rank).fields == {"from": rank}
        with process("echo", tmp_path, rank):  # another one in its place
            bus.meet(60)
            assert bus.request(rank, "double", {"x": 5}).fields == {"x": 10}


def test_a_killed_spoke_is_noticed_by_all_of_a_star(tmp_path):
    with ExitStack() as stack:
        zero, one = (stack.enter_context(join(tmp_path, rank, 3, "star")) for rank in (0, 1))
        spoke = stack.enter_context(process("echo", tmp_path, 2, 3, "star"))
        one.wait(lambda: one.latest("hello", 2))
        spoke.send_signal(signal.SIGKILL)
        for bus in (zero, one):
            bus.wait(lambda: bus.gone, timeout=60)  # noqa: B023
            assert bus.gone == {2: "its connection closed"}
        assert one.peers == (0,)


def test_a_process_that_is_stopped_for_long_is_gone_and_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr("evorl.bus.sockets.SILENCE", 0.5)
    with process("echo", tmp_path) as peer, join(tmp_path, 0, 2) as bus:
        bus.wait(lambda: bus.latest("hello", 1))
        psutil.Process(peer.pid).suspend()
        bus.wait(lambda: bus.gone, timeout=60)
        bus.publish("while", {"it": "was away"})
        psutil.Process(peer.pid).resume()
        bus.meet(60)
        assert bus.request(1, "double", {"x": 4}).fields == {"x": 8}


class Cable:
    """A tcp connection to an address that can be cut and mended."""

    def __init__(self, port):
        self.port, self.lines, self.whole = port, [], True
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        self.whole = False
        for line in self.lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        with suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                if not self.whole:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.port))
                self.lines += [near, far]
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    @staticmethod
    def _carry(near, far):
        with near, far, suppress(OSError):
            while True:
                for source in select.select([near, far], [], [])[0]:
                    data = source.recv(2**16)
                    if not data:
                        return
                    (far if source is near else near).sendall(data)


@contextmanager
def cabled():
    """Two ends of a bus, and the cable between them."""
    store = dist.HashStore()
    with Bus.join(store, 0, 2, timeout=60.0, host="127.0.0.1") as zero:
        known = Rendezvous(store)
        contact = known.find(0)
        cable = Cable(int(contact.address.rpartition(":")[2]))
        known.register(0, Contact(cable.address, contact.key), None)
        with cable.listener, Bus.join(store, 1, 2, timeout=60.0, host="127.0.0.1") as one:
            one.meet()
            yield zero, one, cable


def test_after_a_cut_cable_everything_arrives_once_and_in_order():
    with cabled() as (zero, one, cable):
        one.serve("double", lambda value: {"x": 2 * value.fields["x"]})

        def give():
            for i in range(300):
                zero.send(1, "work", {"i": i, "x": torch.full((1000,), i)})
                zero.publish("newest", {"i": i})
                if i % 10 == 0:
                    assert zero.request(1, "double", {"x": i}).fields == {"x": 2 * i}
                    done.append(i)

        done = []
        giving = threading.Thread(target=give)
        giving.start()
        for i in range(300):
            assert one.receive("work").fields["i"] == i
            if i % 100 == 50:
                cable.cut()
                one.wait(lambda: 0 not in one._delivery.linked)
                cable.whole = True
        giving.join(60)
        assert len(done) == 30
        one.wait(lambda: one.latest("newest", 0).fields["i"] == 299)
        assert not zero.counts["out_of_order"] + one.counts["out_of_order"]


def test_a_cable_that_stays_cut_is_noticed_on_both_sides():
    with cabled() as (zero, one, cable):
        cable.cut()
        for bus, other in ((zero, 1), (one, 0)):
            with pytest.raises(RunError, match=rf"rank {other} is gone \(its connection closed\)"):
                bus.wait(lambda: None, peer=other)
        zero.publish("x", {"y": 1})
        cable.whole = True
        one.meet()
        zero.meet()
        one.wait(lambda: one.latest("x", 0))
