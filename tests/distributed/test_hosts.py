"""Two machines, as two network namespaces that share no disk: a run over them, and a cut cable."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from .launching import CONFIGS
from .runs import configured, deterministic, train
from .test_parallel import check_tutorial

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
HIDE = 'mount -t tmpfs none "$1" && shift && exec "$@"'  # in a mount namespace of its own
ADDRESSES = ("10.213.7.1", "10.213.7.2")  # of the two namespaces, on no other network


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def processes(name):
    """Those that are alive on a host."""
    inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
    return [int(process) for process in inside.stdout.split()]


@pytest.fixture
def hosts():
    """The names of two namespaces with a cable between them."""
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2")
    tag = uuid.uuid4().hex[:6]
    names = [f"evorl-{tag}-{i}" for i in range(2)]
    made = []
    try:
        try:
            for name in names:
                ip("netns", "add", name)
                made.append(name)
            ends = [f"ev{tag}{i}" for i in range(2)]
            ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            for name, end, address in zip(names, ends, ADDRESSES, strict=True):
                ip("link", "set", end, "netns", name)
                ip("-n", name, "link", "set", end, "name", "eth0")
                ip("-n", name, "address", "add", f"{address}/30", "dev", "eth0")
                ip("-n", name, "link", "set", "eth0", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        yield names
    finally:
        for name in made:
            for process in processes(name):  # of a test that failed
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], check=False)


class Machine:
    """`evorl train` on one host, in a folder of its own; `hidden` is one that it cannot see.

    With a script, that with its arguments instead.
    """

    def __init__(self, name, number, folder, *overrides, hidden=None, script=None):
        folder.mkdir(parents=True)
        own_disk = ["unshare", "--mount", "sh", "-c", HIDE, "sh", hidden] if hidden else []
        words = [
            *("ip", "netns", "exec", name, *own_disk, BIN / "accelerate", "launch"),
            *("--config_file", CONFIGS / "multi_node.yaml"),
            *("--machine_rank", number, "--num_machines", 2, "--num_processes", 2),
            *("--main_process_ip", ADDRESSES[0], "--main_process_port", 29511),
            *([script] if script else ["-m", "evorl", "train", configured(folder)]),
            *overrides,
        ]
        self.output = folder / "output"
        with self.output.open("w") as output:
            self.launcher = subprocess.Popen(
                [str(word) for word in words],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=os.environ | {"GLOO_SOCKET_IFNAME": "eth0"},
                start_new_session=True,
            )

    def wait(self, limit):
        try:
            return self.launcher.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(self.launcher.pid, signal.SIGKILL)
            raise AssertionError(f"not done after {limit} s:\n{self.said()}") from None

    def said(self):
        return self.output.read_text()


def test_stages_of_a_task_on_two_hosts(hosts, tmp_path):
    """Whatever they share goes through encrypted TCP."""
    folders = [tmp_path / "0", tmp_path / "1"]
    tutorial = Path(__file__).parent / "tutorial.py"
    machines = [
        Machine(host, i, folders[i], 2, "serial", folders[i], script=tutorial)
        for i, host in enumerate(hosts)
    ]
    for machine in machines:
        assert machine.wait(180) == 0, [machine.said() for machine in machines]
    assert not any(processes(name) for name in hosts)
    trainer, evaluator = (json.loads((folders[i] / f"{i}.json").read_text()) for i in range(2))
    check_tutorial(trainer, evaluator, machines[0].said())


def test_the_population_arrives_without_a_shared_disk(hosts, tmp_path):
    """They find out by themselves that there is none, and leave out the replays."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("mount namespaces are not permitted here")
    three = ("budget.env_steps=1440",)  # generations
    machines = [
        Machine(hosts[0], 0, tmp_path / "0", *three),
        Machine(hosts[1], 1, tmp_path / "1", *three, hidden=tmp_path / "0"),
    ]
    for machine in machines:
        assert machine.wait(180) == 0, [machine.said() for machine in machines]
    assert not any(processes(name) for name in hosts)
    assert not (tmp_path / "1" / "runs").exists()  # the other host never wrote a file
    files, (generation, checkpoint) = deterministic(tmp_path / "0" / "runs" / "run")
    assert generation == "generation-000003"
    alone, (_, own) = deterministic(train(tmp_path / "alone", *three))
    assert files == alone
    assert checkpoint.keys() == {name for name in own if "replay" not in name}
    assert all(checkpoint[n] == own[n] for n in checkpoint if n != "manifest.json")


def cut_cable(hosts, machines, directory):
    """After the first generation of a run; when that was."""
    deadline = time.monotonic() + 120
    while not list((directory / "checkpoints").glob("generation-000001")):
        assert time.monotonic() < deadline, [machine.said() for machine in machines]
        time.sleep(0.1)
    ip("-n", hosts[1], "link", "set", "eth0", "down")
    return time.monotonic()


def test_a_cut_cable_ends_both_with_a_clear_error(hosts, tmp_path):
    long = ("budget.env_steps=1000000", "mesh.timeout=10")
    machines = [Machine(name, i, tmp_path / str(i), *long) for i, name in enumerate(hosts)]
    cut = cut_cable(hosts, machines, tmp_path / "0" / "runs" / "run")
    while "error: " not in machines[0].said():
        assert time.monotonic() < cut + 10 + 30, machines[0].said()  # and what a busy machine takes
        time.sleep(0.1)
    assert machines[0].wait(60) != 0, machines[0].said()
    assert processes(hosts[0]) == []
    # The rank behind the cut cable ends, too; its launcher is torch's, and waits for longer.
    while "error: " not in machines[1].said():
        assert time.monotonic() < cut + 90, machines[1].said()
        time.sleep(0.1)
    os.killpg(machines[1].launcher.pid, signal.SIGKILL)


APEX = ("replay.kind=prioritized", "mesh.actors=1", "actors.place=ranks", "actors.steps=6")


def test_an_actor_on_another_host(hosts, tmp_path):
    """What it plays and learns from goes through encrypted TCP, and is what one process does."""
    three = (*APEX, "actors.lockstep=true", "budget.env_steps=1440")  # generations
    machines = [Machine(name, i, tmp_path / str(i), *three) for i, name in enumerate(hosts)]
    for machine in machines:
        assert machine.wait(180) == 0, [machine.said() for machine in machines]
    assert "actors:       1 (ranks, in lock-step)" in machines[0].said()
    alone = train(tmp_path / "alone", *three, "actors.place=inline")
    assert deterministic(tmp_path / "0" / "runs" / "run") == deterministic(alone)


def test_an_actor_behind_a_cut_cable(hosts, tmp_path):
    """Both sides name the other one, and nothing of them is left."""
    long = (*APEX, "budget.env_steps=1000000000")
    machines = [Machine(name, i, tmp_path / str(i), *long) for i, name in enumerate(hosts)]
    cut = cut_cable(hosts, machines, tmp_path / "0" / "runs" / "run")
    for machine, error in zip(
        machines, ("error: all actors are gone", "the learner is gone"), strict=True
    ):
        while error not in machine.said():
            assert time.monotonic() < cut + 60, [machine.said() for machine in machines]
            time.sleep(0.1)
    assert "actor 0" in machines[0].said()
    assert machines[0].wait(60) != 0
    assert processes(hosts[0]) == []
    os.killpg(machines[1].launcher.pid, signal.SIGKILL)
