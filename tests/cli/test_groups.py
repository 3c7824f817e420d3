"""Several runs by one command: evorl train --seeds, evorl sweep, and evorl resume of a group."""

import json
import signal
from pathlib import Path

import psutil
import pytest
import torch

from evorl.runs import RunDirectory, read_group
from tests.processes import Command, Forked

from .answers import CARTPOLE, TINY, assert_one_error, everything_in, wait_for

torch.set_num_threads(1)

SHORT = [*TINY, "env.kwargs={max_episode_steps: 25}"]  # with nothing to warn of
GROUP = "runs/cartpole"
SAME = ("best/weights.safetensors", "lineage.jsonl")  # of runs with the same configuration


def names(folder=GROUP):
    return sorted(path.name for path in Path(folder).iterdir() if path.is_dir())


def test_seeds_are_ordinary_runs_with_one_comparison(evorl, tmp_path):
    code, out, err = evorl("train", CARTPOLE, *TINY, "seed=4", "--seeds", 2, "--jobs", 2, "-v")
    assert code == 0
    (warning,) = err.splitlines()  # of both, once
    assert "evaluation.every=50 is less than an episode" in warning
    assert names() == ["cartpole-seed4", "cartpole-seed5"]
    lines = out.splitlines()
    assert lines[0] == f"runs:         2 in {GROUP}, 2 at a time"
    for name in names():
        (said,) = [line for line in lines if line.startswith(f"{name}: held-out mean ")]
        score = RunDirectory.open(Path(GROUP, name)).summary().mean
        assert said.startswith(f"{name}: held-out mean {score}, ")
        assert any(line.startswith(f"{name}: generation ") for line in lines)
        assert "held-out" not in Path(GROUP, f"{name}.log").read_text()
    assert any(line.split()[:2] == ["cartpole", "2"] for line in lines)
    assert lines[-1] == f"all of its runs on one page: evorl report {GROUP}"

    alone = ["seed=5", "name=alone", "--json"]
    code, out, _ = evorl("train", CARTPOLE, *TINY, *alone)
    assert code == 0
    for name in SAME:  # what it is does not depend on who else trains
        assert (
            Path("runs/alone", name).read_bytes()
            == Path(GROUP, "cartpole-seed5", name).read_bytes()
        )
    told = json.loads(out)
    assert told["path"] == "runs/alone"
    assert told["mean"] == RunDirectory(Path("runs/alone")).summary().mean._asdict()

    code, out, err = evorl("evaluate", "runs/alone", "--episodes", 2, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out).keys() == {"path", "mean", "iqm", "episodes"}

    code, out, err = evorl("compare", GROUP, "--json")
    assert (code, err) == (0, "")
    (group,) = json.loads(out)["groups"]
    assert [run["seed"] for run in group["runs"]] == [4, 5]
    for words, says in (
        (["resume", GROUP], "all of its runs are finished; to train on"),
        (["resume", GROUP, "seed=9"], f"the runs of {GROUP} differ in seed"),
        (["resume", GROUP, "algorithm.lr=1"], "cannot change in a run that has begun"),
        (["watch", GROUP], "a group of runs; give one of those in it"),
    ):
        code, out, err = evorl(*words)
        assert_one_error(code, out, err)
        assert says in err


def test_a_sweep_compares_values_and_names_who_failed(evorl, tmp_path):
    values = ["env.backend=sync,native", "seed=1,2", "name=backends", "env.id=Acrobot-v1"]
    values += ["budget.env_steps=100", "--json", "--jobs", 2]
    code, out, err = evorl("sweep", CARTPOLE, *SHORT, *values)
    assert code == 2
    (group,) = json.loads(out)["groups"]
    folder = Path("runs/backends")
    assert [run["path"] for run in group["runs"]] == [
        str(folder / f"backends-backend_sync-seed{seed}") for seed in (1, 2)
    ]
    said = err.splitlines()
    assert [line for line in said if "seed1: env.backend" in line]
    assert said[-1].startswith(f"error: {folder}: 2 of 4 runs failed, such as backends-backend_nat")
    assert said[-1].endswith(f"evorl resume {folder} tries again")
    assert len(said) == 3

    before = read_group(folder)
    code, _, err = evorl("resume", folder, "env.max_failures=3", "-q")
    assert (code, len(err.splitlines())) == (2, 3)
    assert read_group(folder) == before._replace(
        overrides=[*before.overrides, "env.max_failures=3"]
    )


REFUSED = {
    "nothing varies": (["sweep", "algorithm.lr=1e-3"], "nothing to compare"),
    "a wrong value": (["sweep", "algorithm.lr=1e-3,-1"], "algorithm.lr: must be greater than 0"),
    "seeds twice": (["sweep", "seed=1,2", "--seeds", "2"], "--seeds: not with several values"),
    "too many": (["sweep", "seed=" + ",".join(map(str, range(1001)))], "1,001 runs are too many"),
    "a schedule": (["train", "--seeds", "2", "--replay-schedule", "x"], "not with --replay-sched"),
    "a dry run": (["train", "--seeds", "2", "--dry-run"], "--seeds: not with --dry-run"),
    "a dry run of what is there": (
        ["train", "--resume", "auto", "--dry-run"],
        "--resume: not with",
    ),
    "two ways to speak": (["sweep", "seed=1,2", "-q", "-v"], "--verbose: not with --quiet"),
    "jobs alone": (["train", "--jobs", "2"], "--jobs: only with --seeds"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_one_line_and_writes_nothing(evorl, tmp_path, kind):
    (command, *words), says = REFUSED[kind]
    code, out, err = evorl(command, CARTPOLE, *words)
    assert_one_error(code, out, err)
    assert says in err
    assert everything_in(tmp_path) == {}


def test_a_launcher_has_no_groups(evorl, tmp_path, monkeypatch):
    known = {"WORLD_SIZE": 2, "RANK": 0, "LOCAL_RANK": 0, "MASTER_ADDR": "x", "MASTER_PORT": 1}
    for name, value in known.items():
        monkeypatch.setenv(name, str(value))
    code, _, err = evorl("train", CARTPOLE, "--seeds", 2)
    assert code == 2
    assert "start it without a launcher" in err
    assert everything_in(tmp_path) == {}


def begin(folder, *words):
    """A command in a process of its own, and where it writes."""
    output = folder / "output"
    environment = {"OMP_NUM_THREADS": "1", "HOME": str(folder)}
    words = ["-m", "evorl", *map(str, words)]
    return Forked(Command(words, folder, output, environment)), output


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_group_that_was_stopped_resumes_as_a_whole(evorl, tmp_path, how):
    options = [*SHORT, "budget.env_steps=1600"]
    process, output = begin(tmp_path, "train", CARTPOLE, *options, "--seeds", 2)
    first = tmp_path / GROUP / "cartpole-seed1"
    saved = first / "checkpoints" / "generation-000001" / "manifest.json"
    wait_for(lambda: saved.exists() or process.poll() is not None)
    assert process.poll() is None, output.read_text()
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(how)
    code = process.wait(60)
    wait_for(lambda: not any(child.is_running() for child in children))
    if how == signal.SIGINT:
        assert code == 130
        assert (
            output.read_text().splitlines()[-1] == f"interrupted; resume with evorl resume {GROUP}"
        )
    assert not (tmp_path / GROUP / "cartpole-seed2").exists()  # it was not its turn yet
    code, out, err = evorl("resume", GROUP, "--jobs", 2)
    assert (code, err) == (0, "")
    assert len([line for line in out.splitlines() if "held-out mean" in line]) == 2
    assert evorl("train", CARTPOLE, *options, "name=again", "-q")[0] == 0
    for name in SAME:
        assert (first / name).read_bytes() == (tmp_path / "runs/again" / name).read_bytes()
