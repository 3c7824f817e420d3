"""One process, which needs no launcher; and the device that Accelerate is asked for."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from evorl.distributed import accelerator
from evorl.distributed.world import World
from evorl.errors import ConfigError

from .launching import free_port
from .worlds import AGENTS, CHECKS


@pytest.fixture
def alone(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    world = World.start(AGENTS)
    yield world
    world.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_one_process(alone, check, tmp_path):
    check(alone, tmp_path)
    assert not dist.is_initialized()


def test_one_process_holds_everything(alone):
    assert (alone.rank, alone.size, alone.population, alone.data) == (0, 1, 1, 1)
    assert alone.main
    assert alone.own_agents(AGENTS) == range(AGENTS)
    assert alone.accelerator.num_processes == 1
    payload = b"x" * 1000
    assert alone.all_gather(payload)[0] is payload  # nothing is copied
    assert alone.gather(payload)[0] is payload
    assert alone.broadcast(payload) is payload


def test_close_twice_and_start_again(alone):
    alone.close()
    alone.close()
    again = World.start(AGENTS)
    assert again.any_rank(True)
    again.close()


def test_another_world_is_not_ours_to_close(alone, tmp_path):
    store = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        World.start(AGENTS).close()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_a_refusal_by_accelerate_closes_the_group_it_made(alone, monkeypatch, tmp_path):
    def refusing(**options):
        store = f"file://{tmp_path / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        raise ValueError("no such precision:\n  fp3")

    monkeypatch.setattr(accelerator, "Accelerator", refusing)
    with pytest.raises(ConfigError, match=r"^accelerate: no such precision: fp3$"):
        World.start(AGENTS)
    assert not dist.is_initialized()


def test_the_other_rank_was_never_started(tmp_path):
    code = "from evorl.distributed.world import World; World.start(4, timeout=1)"
    launched = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | launched | {"ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("evorl.errors.RunError: start: 2 ranks did not find each other (")
    assert last.endswith(
        "); check the address and port of the main process, and that all machines were started"
    )


def test_one_process_cannot_be_a_mesh(alone):
    with pytest.raises(ConfigError, match="takes 4 ranks, got 1; start as many with accelerate"):
        World.start(AGENTS, population=2, data=2)


@pytest.fixture
def devices(monkeypatch):
    """Pretend that the machine has them."""
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)

    def pretend(kind, count=1):
        device = None if kind is None else torch.device(kind)
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available: device
        )
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)

    return pretend


@pytest.mark.parametrize(
    ("kind", "count", "ranks", "local", "cpu"),
    [
        (None, 0, 1, 1, True),
        (None, 0, 2, 2, True),
        ("cuda", 1, 1, 1, False),
        ("cuda", 2, 2, 2, False),
        ("cuda", 2, 4, 2, False),  # two machines
        ("mps", 1, 1, 1, False),
        ("mps", 1, 2, 2, True),
    ],
)
def test_the_device(devices, monkeypatch, kind, count, ranks, local, cpu):
    devices(kind, count)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
    assert accelerator._on_cpu(ranks) == cpu
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert accelerator._on_cpu(ranks)


def test_ranks_do_not_share_a_gpu(devices, monkeypatch):
    devices("cuda", count=1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(
        ConfigError, match="cuda: every rank needs a device of its own, got 1 for 2"
    ):
        accelerator._on_cpu(2)
