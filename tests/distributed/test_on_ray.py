"""evorl launch --on ray: what is refused, and a run on a local cluster of two nodes."""

import contextlib
import json
import os
import sys

import psutil
import pytest

from evorl.errors import ConfigError
from evorl.training.on_ray import CHILD, Ask, find_places

from .launching import ROOT
from .runs import Run, configured, deterministic, generation_of, train, wait_for

TEN = ("budget.env_steps=4800",)  # generations
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
REPORTS = """
import json
from ray.train.v2._internal.execution.callback import ReportCallback

class Keep(ReportCallback):
    def after_report(self, training_report, metrics):
        with open({path!r}, "a") as file:
            file.write(json.dumps(metrics) + "\\n")
"""  # in Ray's controller


def node(name, cpus, gpus=0, alive=True):
    """What Ray says of one."""
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": cpus, "GPU": gpus}}


def test_the_main_rank_is_where_it_was_launched():
    """Else its folder might be on another disk when it starts again."""
    nodes = [node("a", 4.0), node("b", 2.0)]
    assert find_places(Ask(6), nodes, "b") == "b"
    assert find_places(Ask(3, cpus=2), nodes, "b") == "b"
    assert find_places(Ask(2, cpus=2), [*nodes, node("head", 0.0)], "head") is None


@pytest.mark.parametrize(
    ("ask", "room", "with_"),
    [
        (Ask(7), 6, "1 CPU"),
        (Ask(2, cpus=3), 1, "3 CPU"),  # none is large enough for two
        (Ask(2, gpus=True), 1, "1 CPU and 1 GPU"),
    ],
)
def test_more_ranks_than_there_is_room_for(ask, room, with_):
    nodes = [node("a", 4.0, 1), node("b", 2.0), node("c", 8.0, alive=False)]
    with pytest.raises(ConfigError) as caught:
        find_places(ask, nodes, "a")
    assert str(caught.value) == (
        f"--ranks: the cluster has room for {room} ranks with {with_} each, got {ask.ranks} (CPUs"
        " by node: 4, 2), and Ray would wait for ever; start fewer, or add nodes with ray start"
        " --address"
    )


def test_what_is_refused_before_ray_is_asked(evorl, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    path = configured(tmp_path)
    for words, said in (
        (["--on", "rya", "--ranks", 2], "--on: must be ray, got 'rya'; did you mean ray?"),
        (["--on", "ray", "--ranks", 5], "mesh.population: every rank along it needs an agent"),
        (["mesh.data=2", "--on", "ray", "--ranks", 3], "mesh: population 1 × data 2 takes 2 ranks"),
        (["--on", "ray", "--ranks", 2], "--on ray: import of ray halted; None in sys.modules; pip"),
    ):
        code, out, err = evorl("launch", path, *words)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {said}")
        assert err.count("\n") == 1
    assert "pip install 'evorl[ray]'" in err


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The address of a cluster of two nodes with a CPU each; tmp_path/reports has what it gets."""
    pytest.importorskip("ray")
    folder = tmp_path / "ray"  # of the run, too: it imports what is in there
    folder.mkdir()
    (folder / "keeping.py").write_text(REPORTS.format(path=str(tmp_path / "reports")))
    path = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    words = [sys.executable, "-c", CLUSTER]
    with psutil.Popen(words, stdin=-1, stdout=-1, text=True) as process:
        yield process.stdout.readline().strip()
        process.stdin.close()
        process.wait(60)


def ranks():
    """The processes in which ranks of Ray train, by rank."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if CHILD in process.cmdline():
                found[int(process.environ()["RANK"])] = process
    return found


@pytest.mark.slow
def test_a_worker_is_killed(cluster, tmp_path):
    """Ray starts all ranks again, which resume; the run ends with the bytes of one without Ray."""
    environment = {
        "RAY_ADDRESS": cluster,
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        "RAY_TRAIN_CALLBACKS": "keeping.Keep",
    }
    path, directory = configured(tmp_path / "ray"), tmp_path / "ray" / "runs" / "run"
    words = ("launch", path, *TEN, "--on", "ray", "--ranks", 2)
    run = Run(tmp_path / "ray", *words, environment=environment)
    wait_for(lambda: generation_of(directory) >= 3, 120)
    victim = ranks()[1]
    victim.parent().kill()
    code, said = run.wait()
    assert code == 0, said
    assert not ranks(), said
    assert "warning: rank 1 failed (" in said
    assert "all ranks start again and resume (1 of 3 times)" in said
    assert said.count("ranks:        2 on cpu, population 2 × data 1") == 2
    reports = [json.loads(line) for line in (tmp_path / "reports").read_text().splitlines()]
    assert all(main == other for main, other in reports)
    told = [main["generation"] for main, _ in reports]
    assert told == sorted(set(told))  # one may be lost with the worker
    assert reports[-1][0].items() >= {"generation": 9, "env_steps": 4800}.items()
    assert said.splitlines()[-1] == f"best agent, metrics and summary: {directory}"
    alone = train(tmp_path / "alone", *TEN, ranks=2)
    assert deterministic(directory) == deterministic(alone)
