"""The examples for clusters: their syntax, and that launcher and evorl take what they say."""

import os
import shutil
import subprocess

import pytest
import yaml
from torch.distributed.run import get_args_parser

from evorl.cli.train import train
from evorl.config import parse_text

from .launching import ROOT

FOLDER = ROOT / "configs" / "clusters"
SLURM, KUBERNETES = FOLDER / "slurm.sh", FOLDER / "kubernetes.yaml"
STUB = '#!/bin/sh\necho "$0 $*" >> "$CALLED"\n[ "$2" != hostnames ] || printf "n1\\nn2\\n"\n'


@pytest.fixture
def sbatch(tmp_path):
    """Run it with stand-ins for SLURM's commands; exit code, stderr, and what it called."""
    for name in ("srun", "scontrol"):
        (tmp_path / name).write_text(STUB)
        (tmp_path / name).chmod(0o755)
    called = tmp_path / "called"
    slurm = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "17"}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | slurm | {"PATH": path, "CALLED": str(called)}

    def run(*words):
        done = subprocess.run(
            ["bash", SLURM, *words], capture_output=True, text=True, env=environment, check=False
        )
        return done.returncode, done.stderr, called.read_text() if called.exists() else ""

    return run


def launched(words):
    """What torchrun takes of a command, and what evorl is told to do."""
    assert words[0] == "torchrun"
    options = get_args_parser().parse_args(words[1:])
    assert (options.module, options.training_script) == (True, "evorl")
    name, *rest = options.training_script_args
    assert name == "train"
    return options, train.make_context("train", list(rest)).params


def test_slurm(sbatch):
    code, err, called = sbatch("run.yaml", "seed=7")
    assert (code, err) == (0, "")
    srun = next(line for line in called.splitlines() if "/srun " in line)
    words = srun.split()[1:]
    assert words[0] == "--kill-on-bad-exit=1"
    options, asked = launched(words[1:])
    assert (options.nnodes, options.nproc_per_node, options.rdzv_id) == ("2", "4", "17")
    assert (options.rdzv_endpoint, options.max_restarts) == ("n1:29500", 3)
    assert (str(asked["config"]), asked["overrides"]) == ("run.yaml", ("seed=7",))
    assert asked["resume"] == "auto"


def test_slurm_without_a_configuration(sbatch):
    code, err, called = sbatch()
    assert (code, called) == (2, "")
    assert err.startswith("error: no configuration; sbatch ")


def test_scripts_have_the_syntax_of_bash():
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    subprocess.run(["bash", "-n", SLURM], check=True)


def test_kubernetes():
    service, config, claim, job = yaml.safe_load_all(KUBERNETES.read_text())
    kinds = [one["kind"] for one in (service, config, claim, job)]
    assert kinds == ["Service", "ConfigMap", "PersistentVolumeClaim", "Job"]
    name, pods, spec = job["metadata"]["name"], job["spec"], job["spec"]["template"]["spec"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert service["spec"]["clusterIP"] == "None"  # a word, not nothing
    assert spec["subdomain"] == service["metadata"]["name"]
    assert pods["completionMode"] == "Indexed"
    assert pods["completions"] == pods["parallelism"]
    (container,) = spec["containers"]
    options, asked = launched(container["command"])
    assert options.nnodes == str(pods["completions"])
    assert options.rdzv_endpoint == f"{name}-0.{spec['subdomain']}:29500"
    assert asked["resume"] == "auto"
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in spec["volumes"]}
    assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"]
    assert volumes["runs"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert str(asked["config"].parent) == mounted["config"]
    loaded = parse_text(config["data"][asked["config"].name], "run.yaml")
    assert loaded.run.folder == mounted["runs"]
    ranks = int(options.nnodes) * int(options.nproc_per_node)
    assert loaded.population.size % ranks == 0
