"""The bus between threads of this process: what it promises, and what it refuses."""

import os
import random
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

from evorl.bus import Bus, Value
from evorl.bus.rendezvous import Contact, Folder, Rendezvous
from evorl.errors import RunError

TCP = "127.0.0.1"


@contextmanager
def joined(size=2, store=None, **options):
    """All processes of a bus, in this one."""
    store = store or dist.HashStore()
    with ExitStack() as stack:
        buses = [
            stack.enter_context(Bus.join(store, rank, size, **{"timeout": 20.0} | options))
            for rank in range(size)
        ]
        for bus in buses:
            bus.meet()
        yield buses


def newest(bus, name, peer, newer_than=-1):
    return bus.wait(lambda: bus.latest(name, peer, newer_than), what=name, peer=peer)


@pytest.mark.parametrize("host", [None, TCP], ids=["ipc", "tcp"])
@pytest.mark.parametrize("topology", ["mesh", "star"])
def test_everybody_hears_what_everybody_publishes(topology, host):
    with joined(4, topology=topology, host=host) as buses:
        for bus in buses:
            bus.publish("place", {"rank": bus.rank, "x": torch.full((3,), float(bus.rank))})
        for bus in buses:
            assert bus.peers == tuple(rank for rank in range(4) if rank != bus.rank)
            for peer in bus.peers:
                value = newest(bus, "place", peer)
                assert (value.peer, value.version, value.fields["rank"]) == (peer, 0, peer)
                assert value.fields["x"].eq(peer).all()
            assert bus.latest("place", bus.rank).fields["rank"] == bus.rank
            assert bus.latest("place", 9) is None
            assert bus.latest("other") is None


@pytest.mark.parametrize(
    "make",
    [
        lambda path: dist.HashStore(),
        lambda path: dist.FileStore(str(path / "store"), 2),
        lambda path: dist.TCPStore("127.0.0.1", 0, is_master=True),
        lambda path: dist.PrefixStore("attempt1", dist.TCPStore("127.0.0.1", 0, is_master=True)),
    ],
    ids=["hash", "file", "tcp", "prefix"],
)
def test_any_store_will_do(make, tmp_path):
    with joined(store=make(tmp_path)) as (zero, one):
        one.publish("x", {"y": 1})
        assert newest(zero, "x", 1).fields == {"y": 1}


def test_a_store_in_which_somebody_waits_is_no_obstacle():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30))
    waiting = threading.Thread(target=store.get, args=("never before",))
    waiting.start()
    try:
        with joined(store=store) as (zero, one):
            zero.publish("x", {})
            assert newest(one, "x", 0)
    finally:
        store.clone().set("never before", "now")
        waiting.join()


def test_a_store_lives_as_long_as_the_bus_and_may_die_before_it():
    first = dist.TCPStore("127.0.0.1", 0, is_master=True)
    port, options = first.port, {"timeout": 20.0}
    with Bus.join(first, 0, 3, **options) as zero:
        del first  # the bus has it
        second = dist.TCPStore("127.0.0.1", port, is_master=False)
        with Bus.join(second, 1, 3, **options) as one:
            one.wait(lambda: one.peers == (0,))
            zero._network._rendezvous._original = None  # the end of the process that serves it
            for bus in (zero, one):
                bus.wait(lambda: bus.counts["store_errors"] == 1)  # noqa: B023
            one.publish("x", {"y": 1})
            assert newest(zero, "x", 1).fields == {"y": 1}
            with pytest.raises(RunError, match="rank 2 did not come"):
                one.send(2, "q", {}, timeout=0.6)
            assert one.counts["store_errors"] == 1  # nobody asks it again


def test_versions_count_up_and_an_older_one_is_refused():
    with joined() as (zero, one):
        assert [zero.publish("x", {"i": i}) for i in range(3)] == [0, 1, 2]
        assert zero.publish("x", {"i": 10}, version=10) == 10
        for version in (10, 3, -1):
            with pytest.raises(
                RunError, match=rf"publish 'x': version {version} is not newer than 10"
            ):
                zero.publish("x", {}, version=version)
        assert newest(one, "x", 0, newer_than=9).fields == {"i": 10}
        assert one.latest("x", 0, newer_than=10) is None


def test_the_latest_of_anybody_is_the_last_to_arrive():
    with joined(3) as (zero, one, two):
        one.publish("x", {"from": 1}, version=100)
        newest(zero, "x", 1)
        two.publish("x", {"from": 2}, version=5)
        newest(zero, "x", 2)
        assert zero.latest("x").peer == 2
        assert zero.latest("x", newer_than=50).peer == 1
        zero.publish("x", {"from": 0})
        assert zero.latest("x").peer == 2  # not one's own


def test_a_value_is_made_once_and_its_sender_may_overwrite_it():
    with joined() as (zero, one):
        theta = torch.ones(1000)
        zero.publish("x", {"theta": theta})
        theta.zero_()
        value = newest(one, "x", 0)
        assert value.fields["theta"].eq(1).all()
        assert one.latest("x", 0) is value
        own = zero.latest("x", 0).fields["theta"]
        own.zero_()  # what has been read is one's own: the bus keeps its own bytes
        with Bus.join(zero._network._rendezvous._store, 2, 3, timeout=20.0) as late:
            assert newest(late, "x", 0).fields["theta"].eq(1).all()


def test_who_comes_late_gets_the_newest_of_all():
    store = dist.HashStore()
    for topology in ("mesh", "star"):
        prefix = dist.PrefixStore(topology, store)
        with Bus.join(prefix, 0, 3, topology=topology, timeout=20.0) as zero:
            for i in range(5):
                zero.publish("x", {"i": i})
            assert zero.peers == ()
            with Bus.join(prefix, 2, 3, topology=topology, timeout=20.0) as two:
                two.publish("y", {"i": 7})
                assert newest(two, "x", 0).version == 4
                newest(zero, "y", 2)
                with Bus.join(prefix, 1, 3, topology=topology, timeout=20.0) as one:
                    assert newest(one, "x", 0).version == 4
                    assert newest(one, "y", 2).fields == {"i": 7}


def test_small_values_outlive_the_process_that_published_them():
    store = dist.HashStore()
    with joined(2, dist.PrefixStore("a", store)) as (zero, one):
        zero.publish("finish", {"step": 3})
        newest(one, "finish", 0)
        zero.close()
        one.wait(lambda: 0 in one.gone)
        assert one.latest("finish", 0).fields == {"step": 3}
        assert one.gone == {0: "it left"}
        assert one.peers == ()
    for rank in (0, 1):
        prefix = dist.PrefixStore(f"b{rank}", store)
        with Bus.join(prefix, rank, 2, timeout=20.0) as first:
            first.publish("finish", {"step": 4})
            first.publish("weights", {"theta": torch.ones(2**20)})
        with Bus.join(prefix, 1 - rank, 2, timeout=20.0) as late:
            assert newest(late, "finish", rank).fields == {"step": 4}
            late.wait(lambda: late.gone == {rank: "it left"})  # noqa: B023
            assert late.latest("weights", rank) is None


def test_queues_keep_their_order_and_wait_for_credit():
    with joined(2, credit=3) as (zero, one):
        for i in range(3):
            zero.send(1, "work", {"i": i})
        with pytest.raises(RunError) as error:
            zero.send(1, "work", {"i": 3}, timeout=0.05)
        assert str(error.value).startswith(
            "send to 'work': rank 1 did not take the 3 before within 0.05 s; "
        )
        zero.send(1, "other", {})  # has credit of its own
        one.wait(lambda: one.waiting("work") == 3 or None)
        assert one.receive("work") == Value(0, 1, {"i": 0})
        assert (one.waiting("work"), one.waiting("nothing")) == (2, 0)
        zero.send(1, "work", {"i": 3})
        assert [one.receive("work").fields["i"] for _ in range(3)] == [1, 2, 3]
        with pytest.raises(RunError, match=r"receive from 'work': nothing arrived within 0\.05 s"):
            one.receive("work", timeout=0.05)


def test_a_sender_waits_exactly_as_long_as_its_receiver():
    with joined() as (zero, one):
        threads = [
            threading.Thread(
                target=lambda: [
                    zero.send(1, "work", {"x": torch.full((100,), i)}) for i in range(50)
                ]
            )
        ]
        threads[0].start()
        for i in range(50):
            assert one.receive("work").fields["x"].eq(i).all()
        threads[0].join()


def test_many_threads_share_a_bus():
    with joined() as (zero, one):
        one.serve("double", lambda value: {"x": 2 * value.fields["x"]})
        wrong = []

        def ask(number):
            for i in range(20):
                x = number * 1000 + i
                if zero.request(1, "double", {"x": x}).fields != {"x": 2 * x}:
                    wrong.append(x)
                zero.send(1, "done", {"x": x})

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        got = sorted(one.receive("done").fields["x"] for _ in range(100))
        for thread in threads:
            thread.join()
        assert not wrong
        assert got == sorted(number * 1000 + i for number in range(5) for i in range(20))


def test_requests_are_answered_and_errors_reach_who_asked():
    with joined(3, topology="star") as (zero, one, two):
        zero.serve("sum", lambda value: {"sum": value.fields["x"].sum(), "for": value.peer})
        zero.serve("fail", lambda value: {"x": 1 / value.fields["x"]})
        zero.serve("wrong", lambda value: {"x": {1, 2}})
        for bus in (one, two):
            reply = bus.request(0, "sum", {"x": np.arange(5.0)})
            assert reply.peer == 0
            assert reply.fields == {"sum": 10.0, "for": bus.rank}
        with pytest.raises(RunError) as error:
            one.request(0, "fail", {"x": 0})
        assert str(error.value).startswith(
            "request 'fail': rank 0 could not answer: ZeroDivisionError: division by zero (test_bus"
        )
        with pytest.raises(
            RunError, match="rank 0 could not answer: RunError: answer to 'wrong': x i"
        ):
            one.request(0, "wrong", {"x": 0})
        assert one.request(0, "fail", {"x": 2}).fields == {"x": 0.5}
        two.serve("late", lambda value: {})
        assert zero.request(2, "late", {}).fields == {}


def test_a_request_waits_until_there_is_a_function_or_its_time_is_over():
    with joined() as (zero, one):
        with pytest.raises(RunError, match=r"request 'x': rank 1 did not answer within 0\.05 s"):
            zero.request(1, "x", {}, timeout=0.05)
        answers = []
        asking = threading.Thread(target=lambda: answers.append(zero.request(1, "x", {"i": 2})))
        asking.start()
        one.serve("x", lambda value: value.fields)
        asking.join()
        assert answers[0].fields == {"i": 2}
        zero.wait(lambda: zero.counts["late"] == 1)  # the first one's answer


def test_time_outs_name_who_did_not_come():
    with Bus.join(dist.HashStore(), 0, 4, timeout=0.05) as zero:
        for call, says in (
            (lambda: zero.send(1, "q", {}), "send to 'q': rank 1 did not come within 0.05 s; "),
            (lambda: zero.request(2, "q", {}), "request 'q': rank 2 did not come within 0.05 s; "),
            (lambda: zero.meet(), "meet: ranks [1, 2, 3] did not come within 0.05 s; "),
            (lambda: zero.receive("q"), "receive from 'q': nothing arrived within 0.05 s; "),
            (
                lambda: zero.wait(lambda: None, what="the weights"),
                "wait for the weights: it was not met within 0.05 s; ",
            ),
            (
                lambda: zero.wait(lambda: 0, what="the weights", peer=3),
                "wait for the weights: rank 3 did not bring it within 0.05 s; ",
            ),
        ):
            with pytest.raises(RunError) as error:
                call()
            assert str(error.value).startswith(says)


def test_waits_end_when_their_peer_leaves():
    with joined(3) as (zero, one, two):
        one.close()
        for call, says in (
            (lambda: zero.wait(lambda: False, what="weights", peer=1), "wait for weights"),
            (lambda: zero.send(1, "q", {}), "send to 'q'"),
            (lambda: zero.request(1, "q", {}), "request 'q'"),
        ):
            with pytest.raises(RunError) as error:
                call()
            assert str(error.value).startswith(f"{says}: rank 1 is gone (it left); ")
        with pytest.raises(
            RunError, match=r"meet: rank 1 did not .* 0\.1 s; rank 1 is gone \(it l"
        ):
            zero.meet(timeout=0.1)
        two.publish("x", {})
        assert newest(zero, "x", 2)


def test_conditions_may_use_the_bus_and_locks_of_their_own():
    with joined() as (zero, one):
        lock, inside = threading.Lock(), threading.Event()

        def condition():
            inside.set()
            with lock:
                return zero.latest("x", 1)

        with lock:
            waiting = threading.Thread(target=zero.wait, args=(condition,))
            waiting.start()
            inside.wait()
            zero.publish("y", {})  # would wait for ever if the condition held the bus
            one.publish("x", {})
        waiting.join()
        flag = []
        waiting = threading.Thread(target=zero.wait, args=(lambda: flag,))
        waiting.start()
        flag.append(1)
        zero.wake()
        waiting.join()
        pausing = threading.Thread(target=zero.pause, args=(60,))  # until something arrives
        pausing.start()
        while pausing.is_alive():
            one.publish("z", {})
            pausing.join(0.01)


def test_in_a_star_spokes_send_to_the_centre_only():
    with joined(3, topology="star") as (zero, one, two):
        for call in (one.send, one.request):
            with pytest.raises(RunError, match="in a star rank 1 reaches rank 0 only, not rank 2"):
                call(2, "q", {})
        one.send(0, "q", {"x": 1})
        zero.send(2, "q", {"x": 2})
        assert zero.receive("q").peer == 1
        assert two.receive("q").fields == {"x": 2}
        two.close()
        one.wait(lambda: one.gone == {2: "it left"})
        assert one.peers == (0,)


def test_a_process_can_take_the_place_of_another():
    store = dist.HashStore()
    for rank, other in ((0, 1), (1, 0)):  # who listens, and who dials
        prefix = dist.PrefixStore(str(rank), store)
        with Bus.join(prefix, other, 2, timeout=20.0) as bus:
            for life in range(3):
                with Bus.join(prefix, rank, 2, timeout=20.0) as replaced:
                    replaced.publish("life", {"life": life})
                    bus.wait(
                        lambda: (
                            (value := bus.latest("life", rank))  # noqa: B023
                            and value.fields["life"] == life  # noqa: B023
                        )
                    )
                    replaced.send(other, "q", {"life": life})
                    assert bus.receive("q").version == 1
                    bus.send(rank, "q", {"life": life})
                    assert replaced.receive("q").fields == {"life": life}
            assert not bus.counts["replayed"] + bus.counts["out_of_order"]


def test_the_second_of_a_rank_ends_the_first():
    store = dist.HashStore()
    with Bus.join(store, 0, 2, timeout=20.0) as zero, Bus.join(store, 1, 2, timeout=20.0) as one:
        one.meet()
        with Bus.join(store, 1, 2, timeout=20.0) as again:
            again.meet()
            with pytest.raises(RunError, match=r"rank 0 is gone .* another process came as rank 1"):
                one.wait(lambda: False, peer=0)
            again.send(0, "q", {"x": 1})
            assert zero.receive("q").fields == {"x": 1}


def test_another_schema_is_refused():
    store = dist.HashStore()
    with (
        Bus.join(store, 0, 2, schema="dqn 1", timeout=20.0) as zero,
        Bus.join(store, 1, 2, schema="dqn 2", timeout=20.0) as one,
        pytest.raises(
            RunError,
            match=r"rank 0 is gone .*refused this process: schema 'dqn 2' instead of 'dqn 1'",
        ),
    ):
        one.send(0, "q", {})
    assert zero.counts["denied"] == 1


def test_a_star_and_a_mesh_do_not_mix():
    store = dist.HashStore()
    with (
        Bus.join(store, 0, 2, timeout=20.0),
        Bus.join(store, 1, 2, timeout=20.0, topology="star") as one,
        pytest.raises(
            RunError, match="refused this process: one of them joined a star and the oth"
        ),
    ):
        one.send(0, "q", {})


@pytest.mark.parametrize("address", ["", "nothing", "tcp://", "ipc:///nowhere/at/all"])
def test_a_wrong_address_in_the_store_is_no_end(address):
    store = dist.HashStore()
    with Bus.join(store, 0, 3, timeout=20.0) as zero:
        Rendezvous(store).register(1, Contact(address, None), None)
        with Bus.join(store, 2, 3, timeout=20.0) as two:
            with pytest.raises(RunError, match="send to 'q': rank 1 "):
                two.send(1, "q", {}, timeout=1.0)
            two.send(0, "q", {})
            assert zero.receive("q").peer == 2
            store.set("bus/rank/1", "not JSON")
            store.set("bus/left/1", "[3]")
            two.wait(lambda: two.counts["store_errors"])
            two.send(0, "q", {})
            assert zero.receive("q").peer == 2


def test_another_host_or_topology_is_said():
    for zero, one in (({}, {"host": TCP}), ({"host": TCP}, {}), ({"topology": "star"}, {})):
        store = dist.HashStore()
        ranks = (0, 1) if "topology" not in zero else (1, 2)
        with (
            Bus.join(store, ranks[0], 3, timeout=20.0, **zero),
            Bus.join(store, ranks[1], 3, timeout=20.0, **one) as dials,
            pytest.raises(RunError, match="joined with another host or topology"),
        ):
            dials.send(ranks[0], "q", {})


def test_one_process_is_alone_and_opens_nothing():
    before = threading.enumerate(), open_files()
    with Bus.join(None, 0, 1) as bus:
        assert not bus.is_active
        assert bus.publish("x", {"y": 1}) == 0
        assert bus.latest("x") is None
        assert bus.latest("x", 0).fields == {"y": 1}
        bus.meet()
        assert bus.wait(lambda: "yes") == "yes"
        with pytest.raises(RunError, match="there is no other process of rank 1"):
            bus.send(1, "q", {})
        assert (threading.enumerate(), open_files()) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"rank": -1}, "bus: expected a rank from 0 to 65535, got -1 of 2"),
        ({"size": 0}, "bus: expected a rank from 0 to 65535, got 0 of 0"),
        ({"topology": "ring"}, "bus: topology must be star or mesh, got 'ring'"),
        ({"credit": 1}, "bus: credit must be 2 to 64, got 1"),
        ({"host": "203.0.113.7"}, "bus: cannot listen on host 203.0.113.7: "),
    ],
    ids=str,
)
def test_what_cannot_be_joined_is_one_line(arguments, says):
    before = threads_of_the_system(), open_files()
    with pytest.raises(RunError) as error:
        Bus.join(dist.HashStore(), **{"rank": 0, "size": 2} | arguments)
    assert str(error.value).startswith(says)
    assert_soon(lambda: (threads_of_the_system(), open_files()) <= before)


@pytest.mark.parametrize("name", ["", "$peers", "x" * 257, None])
def test_names_are_checked(name):
    with Bus.join(None, 0, 1) as bus:
        for call in (
            lambda: bus.publish(name, {}),
            lambda: bus.send(1, name, {}),
            lambda: bus.receive(name),
            lambda: bus.request(1, name, {}),
            lambda: bus.serve(name, lambda value: {}),
        ):
            with pytest.raises(RunError, match="a name must be a word"):
                call()


def open_files():
    return len(os.listdir("/proc/self/fd"))


def threads_of_the_system():
    return len(os.listdir("/proc/self/task"))


def assert_soon(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def short_path():
    """A folder of this test whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("host", [None, TCP], ids=["ipc", "tcp"])
def test_closing_leaves_nothing_behind(host, short_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    with joined(host=host):
        pass  # what is opened once per process, such as a source of random numbers
    threads, system, files = threading.enumerate(), threads_of_the_system(), open_files()
    with joined(3, host=host) as buses:
        buses[0].serve("x", lambda value: {})
        buses[1].request(0, "x", {})
        buses[1].publish("y", {"theta": torch.ones(2**20)})
        folders = list(short_path.iterdir())
        assert len(folders) == (0 if host else 3)
        assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
    for bus in buses:
        bus.close()  # again
        assert not bus.is_active
        with pytest.raises(RunError, match="publish 'x': the bus is closed"):
            bus.publish("x", {})
    assert threading.enumerate() == threads
    assert list(short_path.iterdir()) == []
    assert_soon(lambda: threads_of_the_system() <= system)
    assert open_files() <= files


def test_closing_ends_the_waits_of_other_threads():
    with joined() as (zero, one):
        errors = []

        def wait(call):
            with pytest.raises(RunError) as error:
                call()
            errors.append(str(error.value))

        calls = (
            lambda: zero.receive("q", timeout=60),
            lambda: zero.wait(lambda: False, timeout=60, what="it"),
            lambda: zero.request(1, "never", {}, timeout=60),
        )
        threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        zero.publish("x", {})
        newest(one, "x", 0)
        zero.close()
        for thread in threads:
            thread.join(20)
        assert len(errors) == 3
        assert all(error.endswith("the bus is closed") for error in errors)


def test_what_was_published_before_closing_arrives():
    with joined() as (zero, one):
        for i in range(20):
            zero.publish("x", {"i": i, "theta": torch.ones(2**18)})
        zero.close()
        one.wait(lambda: one.gone)
        assert one.latest("x", 0).fields["i"] == 19


def test_a_fork_has_no_bus():
    with joined() as (zero, one):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                zero.close()  # does nothing
                zero.publish("x", {})
            except RunError as error:
                code = 0 if "does not survive a fork" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        zero.publish("x", {})
        assert newest(one, "x", 0)


def test_the_folder_of_a_killed_process_is_removed_by_the_next(monkeypatch, short_path):
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    folder, new = Folder(), short_path / "evorl-bus-new"
    new.mkdir()  # somebody is just making it
    other = Folder()
    assert folder.path.exists()  # in use
    os.close(folder._lock)  # what the system does for a process that was killed
    other.remove()
    Folder().remove()
    assert list(short_path.iterdir()) == [new]


def test_addresses_of_sockets_are_short(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    folder = Folder()
    try:
        assert len(folder.address) < 100
        assert folder.path.parent == Path("/tmp")
    finally:
        folder.remove()
    assert not folder.path.exists()


def test_names_of_values_are_bounded():
    with Bus.join(None, 0, 1) as bus:
        for i in range(1024):
            bus.publish(f"{i}", {})
        with pytest.raises(
            RunError, match="publish 'x': at most 1,024 names; use fields of one name"
        ):
            bus.publish("x", {})
        bus.publish("7", {})


def test_many_values_at_random_end_with_the_newest():
    chance = random.Random(0)
    with joined(4, topology="star") as buses:
        for _ in range(300):
            bus = chance.choice(buses)
            bus.publish(chance.choice("ab"), {"x": torch.full((chance.randrange(2000),), 1)})
        for bus in buses:
            for peer in bus.peers:
                for name in "ab":
                    last = buses[peer].latest(name, peer)
                    got = newest(bus, name, peer, newer_than=last.version - 1)
                    assert got.fields["x"].equal(last.fields["x"])
        assert not any(bus.counts["stale"] for bus in buses)


def test_memory_does_not_grow_with_what_is_published():
    with joined() as (zero, one):
        theta = torch.ones(2**20)

        def publish(count):
            for _ in range(count):
                version = zero.publish("x", {"theta": theta})
            newest(one, "x", 0, newer_than=version - 1)
            return psutil.Process().memory_info().rss

        before = publish(20)
        assert publish(200) - before < 60 * 2**20  # 800 MiB were published
