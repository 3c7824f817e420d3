"""Runs whose agents all die after a good beginning: told in one line, and nothing is lost."""

import json
import warnings

import pytest
import torch

from evorl.config import parse_config
from evorl.errors import RunError
from evorl.runs.directory import RunDirectory
from evorl.runs.reopening import reopen
from evorl.training.trainer import train

torch.set_num_threads(1)

# A generation has 100 own steps: all live in the first one, and learn themselves to death after it.
BASE = {
    "env": {"id": "CartPole-v1", "num_envs": 2, "backend": "sync"},
    "algorithm": {
        "learning_starts": 100,
        "batch_size": 8,
        "loss_kind": "mse",
        "lr": 1.0,
        "max_grad_norm": 0,
        "tau": 1.0,
    },
    "network": {"hidden": [64] * 8},
    "replay": {"capacity": 300},
    "population": {"size": 2},
    "evaluation": {
        "every": 50,
        "episodes": 2,
        "confirm_episodes": 3,
        "final_episodes": 4,
        "max_steps": 40,
        "final_max_steps": 40,
    },
    "evolution": {"mutation": {"hyperparameters": 0.0}},
}

DEAD = "all agents are dead in generation 1, their loss, weights or returns are not finite; start"


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is dead")
        yield


def run(folder, steps, method):
    options = [f"run.folder={folder}", f"budget.env_steps={steps}", f"evolution.method={method}"]
    return train(parse_config(BASE, options))


def fitnesses(path):
    return [json.loads(line)["fitness"] for line in (path / "metrics.jsonl").open()]


def files(path):
    """All that a run has found out."""
    found = (p for p in path.rglob("*") if p.is_file())
    return {p: p.read_bytes() for p in found if p.name not in ("config.yaml", ".lock")}


@pytest.mark.parametrize("method", ["evolution", "none"])
def test_a_later_death_of_all_ends_the_run(tmp_path, method):
    with pytest.raises(RunError) as caught:
        run(tmp_path, 800, method)
    path = tmp_path / "run"
    assert str(caught.value).startswith(DEAD)
    first, last = fitnesses(path)
    assert None not in first
    assert last == [None, None]
    assert [p.name for p in (path / "checkpoints").iterdir()] == ["generation-000001"]
    assert not (path / "summary.json").exists()


@pytest.mark.parametrize("method", ["evolution", "none"])
def test_a_run_that_ended_with_the_death_of_all_cannot_go_on(tmp_path, method):
    path = run(tmp_path, 400, method).directory
    assert fitnesses(path)[-1] == [None, None]
    before, directory = files(path), RunDirectory.open(path)
    assert path / "summary.json" in before
    with pytest.raises(RunError) as caught:
        train(reopen(directory, ["budget.env_steps=800"]), resume=directory)
    assert str(caught.value).startswith(DEAD)
    assert files(path) == before
