"""The bus between machines: which addresses it takes, and two network namespaces with a cable."""

import os
import socket
import subprocess
import sys
import time

import pytest

from evorl.distributed.launcher import choose_host
from evorl.errors import RunError
from tests.distributed.test_hosts import ADDRESSES, hosts, ip  # noqa: F401

from .test_processes import SCRIPT

LAUNCHED = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29511",
}


@pytest.fixture
def launched(monkeypatch):
    """Set what a launcher gives its ranks, and what the test says."""

    def launch(**changed):
        for name, value in (LAUNCHED | changed).items():
            monkeypatch.setenv(name, value)

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    return launch


def test_on_one_machine_no_port_is_opened(launched, monkeypatch):
    assert choose_host(4) is None  # without a launcher
    launched(LOCAL_WORLD_SIZE="2")
    assert choose_host(2) is None


def test_machines_that_are_one_use_loopback(launched):
    launched()
    assert choose_host(2) == ("127.0.0.1", "127.0.0.1")
    launched(MASTER_ADDR="localhost")
    assert choose_host(2)[0] in ("127.0.0.1", "::1")


def test_the_main_machine_is_called_as_the_others_call_it(launched, monkeypatch):
    """Its own name is often a loopback address there, which the others cannot reach."""
    found = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.1.1", 29511))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    launched(MASTER_ADDR="main-machine")
    assert choose_host(2) == ("0.0.0.0", "main-machine")


def test_an_interface_can_be_named(launched, monkeypatch):
    launched(GLOO_SOCKET_IFNAME="lo")
    assert choose_host(2) == ("127.0.0.1", "127.0.0.1")
    launched(GLOO_SOCKET_IFNAME="none7")
    with pytest.raises(RunError, match="GLOO_SOCKET_IFNAME names none7, an interface with no IPv4"):
        choose_host(2)


def test_a_main_machine_without_an_address_is_one_line(launched):
    launched(MASTER_ADDR="nowhere.invalid")
    with pytest.raises(RunError, match=r"start: MASTER_ADDR nowhere.invalid has no address \("):
        choose_host(2)


def started(host, folder, rank):
    launched = LAUNCHED | {"RANK": str(rank), "MASTER_ADDR": ADDRESSES[0], "SILENCE": "1"}
    with (folder / f"output{rank}").open("w") as output:
        return subprocess.Popen(
            [
                *("ip", "netns", "exec", host, sys.executable),
                *map(str, (SCRIPT, "across", folder, rank, 2)),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | launched,
        )


@pytest.mark.slow
def test_two_machines_talk_notice_a_cut_cable_and_talk_again(hosts, tmp_path, request):  # noqa: F811
    processes = [started(host, tmp_path, rank) for rank, host in enumerate(hosts)]
    request.addfinalizer(lambda: [process.kill() for process in processes])

    def said(name):
        deadline = time.monotonic() + 90
        files = [tmp_path / f"{name}.{rank}" for rank in range(2)]
        while not all(file.exists() for file in files):
            outputs = [(tmp_path / f"output{rank}").read_text() for rank in range(2)]
            assert time.monotonic() < deadline, outputs
            assert all(process.poll() is None for process in processes), outputs
            time.sleep(0.05)
        return [file.read_text() for file in files]

    said("talked")
    for address, own in zip(said("address"), ADDRESSES, strict=True):
        assert address.startswith(f"tcp://{own}:")
    ip("-n", hosts[1], "link", "set", "eth0", "down")
    for rank, line in enumerate(said("cut")):
        assert line.startswith(f"wait for a cut: rank {1 - rank} is gone (its connection closed); ")
    ip("-n", hosts[1], "link", "set", "eth0", "up")
    said("mended")
    assert [process.wait(60) for process in processes] == [0, 0]
