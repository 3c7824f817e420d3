"""What the environment of a launched process says, and its lost ranks in one line."""

import subprocess
import sys
import time

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from evorl.distributed import is_main_process_of_launch, launcher, let_main_speak_first
from evorl.distributed.launcher import NEEDED, launched_ranks, local_ranks
from evorl.errors import ConfigError, RunError, rank_errors

from .launching import CONFIGS

SETTINGS = ("WORLD_SIZE", "LOCAL_WORLD_SIZE")


@pytest.fixture
def environment(monkeypatch):
    """Set variables; whatever launched the tests has left none."""
    for name in (*SETTINGS, *NEEDED):
        monkeypatch.delenv(name, raising=False)

    def set_(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_


def test_no_launcher(environment):
    assert launched_ranks() == 1
    assert is_main_process_of_launch()
    assert local_ranks() == 1


def test_a_launched_rank(environment):
    environment(WORLD_SIZE="4", RANK="3", LOCAL_RANK="1", MASTER_ADDR="host", MASTER_PORT="29500")
    environment(LOCAL_WORLD_SIZE="2")
    assert (launched_ranks(), local_ranks()) == (4, 2)
    assert not is_main_process_of_launch()


@pytest.mark.parametrize("size", ["two", "", "-1", "0", "2.0", "1_0", "²", " 2"])
def test_a_size_that_is_no_number(environment, size):
    environment(WORLD_SIZE=size)
    with pytest.raises(ConfigError, match="WORLD_SIZE: expected a whole number from 1 on, got"):
        launched_ranks()


def test_a_size_without_a_launcher(environment):
    environment(WORLD_SIZE="2", RANK="0")
    with pytest.raises(ConfigError, match="got 2, but no LOCAL_RANK, MASTER_ADDR, MASTER_PORT; st"):
        launched_ranks()


def test_the_main_rank_speaks_first(environment, monkeypatch):
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    let_main_speak_first()
    environment(RANK="1")
    let_main_speak_first()
    assert waited == [launcher.SPEAKS_AFTER]


def test_the_launch_is_known_without_torch():
    code = "import sys, evorl.distributed; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "kind", "processes", "machines"),
    [
        ("cpu", "MULTI_GPU", 2, 1),
        ("single_gpu", "NO", 1, 1),
        ("multi_gpu", "MULTI_GPU", 2, 1),
        ("multi_node", "MULTI_GPU", 4, 2),
    ],
)
def test_shipped_accelerate_configs(name, kind, processes, machines):
    config = load_config_from_file(str(CONFIGS / f"{name}.yaml"))
    assert config.distributed_type == kind
    assert (config.num_processes, config.num_machines) == (processes, machines)
    assert config.mixed_precision == "no"
    assert not config.use_cpu  # would give every rank OMP_NUM_THREADS, as if the user had


def test_every_accelerate_config_is_tested():
    assert {path.stem for path in CONFIGS.iterdir()} == {
        "cpu",
        "single_gpu",
        "multi_gpu",
        "multi_node",
    }


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "[/__w/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5519. This"
            " is typically caused by a remote worker crashing.\nmore",
            "Connection closed by peer [127.0.0.1]:5519",
        ),
        (
            "Gloo connectFullMesh failed with [/__w/gloo/transport/tcp/pair.cc:152] timed out",
            "timed out",
        ),
        ("Tensors must be contiguous", "Tensors must be contiguous"),
        ("", "RuntimeError"),
    ],
)
def test_a_lost_rank_in_one_line(said, told):
    with pytest.raises(RunError) as caught, rank_errors("receive: rank 0 lost rank 1", "wait"):
        raise RuntimeError(said)
    assert str(caught.value) == f"receive: rank 0 lost rank 1 ({told}); wait"


def test_a_mistake_stays_what_it_is():
    with pytest.raises(TypeError), rank_errors("receive"):
        raise TypeError
