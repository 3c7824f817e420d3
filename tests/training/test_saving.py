"""Checkpoints of whole runs: a full disk, a damaged one, replays left out, one process only."""

import errno
import json
import os
import shutil
from itertools import pairwise

import pytest

from evorl.config import parse_config
from evorl.errors import CheckpointError, ConfigError, RunError
from evorl.runs.checkpoint import Draft
from evorl.runs.directory import RunDirectory
from evorl.runs.reopening import reopen
from evorl.training.trainer import train

CONFIG = {
    "name": "run",
    "env": {"id": "CartPole-v1", "num_envs": 2, "backend": "sync"},
    "algorithm": {"learning_starts": 20, "batch_size": 8},
    "network": {"hidden": [8]},
    "replay": {"capacity": 200},
    "population": {"size": 2},
    "evaluation": {
        **{"every": 25, "episodes": 2, "confirm_episodes": 2, "final_episodes": 2},
        **{"max_steps": 30, "final_max_steps": 30},
    },
    "evolution": {"selection": {"min_gap": 0}},
    "budget": {"env_steps": 400},  # four generations
    "compile": False,
}


def run(folder, *overrides, resume=None):
    config = parse_config(CONFIG, [f"run.folder={folder}", *overrides])
    return RunDirectory(train(config, resume=resume).directory)


def again(directory, *overrides):
    return RunDirectory(train(reopen(directory, overrides), resume=directory).directory)


def checkpoints(directory):
    return sorted(path.name for path in (directory.path / "checkpoints").iterdir())


def content(directory, generation=4):
    folder = directory.path / "checkpoints" / f"generation-{generation:06d}"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_full_disk_ends_the_run_and_the_checkpoint_before_stays(tmp_path, monkeypatch):
    def full(draft, stem, tensors, write=Draft.write):
        if draft.path.name.startswith("generation-000003") and stem == "population":
            with draft.writing():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(draft, stem, tensors)

    with monkeypatch.context() as patch:
        patch.setattr(Draft, "write", full)
        with pytest.raises(CheckpointError, match="generation-000003: cannot be written: No space"):
            run(tmp_path / "full")
    directory = RunDirectory.open(tmp_path / "full" / "run")
    assert checkpoints(directory)[-1] == "generation-000002"
    assert content(again(directory)) == content(run(tmp_path / "roomy"))


def test_a_damaged_checkpoint_is_skipped_for_the_one_before(tmp_path):
    directory = run(tmp_path / "damaged", "budget.env_steps=200")
    expected = content(run(tmp_path / "whole"))
    newest = directory.path / "checkpoints" / "generation-000002" / "population.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    with pytest.warns(UserWarning, match="generation-000002"):
        again(directory, "budget.env_steps=400")
    assert content(directory) == expected


def test_when_all_are_damaged_nothing_is_lost(tmp_path):
    directory = run(tmp_path, "budget.env_steps=200")
    for folder in (directory.path / "checkpoints").iterdir():
        (folder / "manifest.json").write_text("{}")
    before = {path: path.read_bytes() for path in directory.path.rglob("*.jsonl")}
    with pytest.raises(CheckpointError, match="no checkpoint there can be used"):
        again(directory, "budget.env_steps=400")
    assert {path: path.read_bytes() for path in directory.path.rglob("*.jsonl")} == before


def test_without_replays_the_run_goes_on_and_says_what_it_costs(tmp_path):
    directory = run(tmp_path, "budget.env_steps=200", "checkpoint.replay=false")
    assert set(content(directory, 2)) == {
        "manifest.json",
        "population.safetensors",
        "progress.safetensors",
    }
    with pytest.warns(UserWarning, match="replays were not kept .* not end with the same bytes"):
        again(directory, "budget.env_steps=400")
    assert directory.finished
    lines = (directory.path / "metrics.jsonl").read_text().splitlines()
    updates = [json.loads(line)["updates"] for line in lines]
    new = [after - before for before, after in pairwise([0, *updates])]
    # a replay of both agents: 20 steps of each, of the 50 of a generation, before they learn (on)
    assert new == [2 * 30, 2 * 50, 2 * 32, 2 * 50]


def test_seldom_checkpoints(tmp_path):
    directory = run(tmp_path / "seldom", "checkpoint.every=3", "checkpoint.keep=5")
    assert checkpoints(directory) == ["generation-000003", "generation-000004"]
    assert content(directory) == content(run(tmp_path / "usual"))


def test_auto_starts_goes_on_and_refuses_another_configuration(tmp_path):
    directory = run(tmp_path, "budget.env_steps=200", resume="auto")
    assert run(tmp_path, resume="auto").path == directory.path
    assert len((directory.path / "metrics.jsonl").read_text().splitlines()) == 4
    with pytest.raises(ConfigError, match=r"algorithm\.lr: cannot change in a run that has begun"):
        run(tmp_path, "algorithm.lr=0.5", "budget.env_steps=800", resume="auto")


def test_two_processes_cannot_train_one_run(tmp_path):
    directory = run(tmp_path, "budget.env_steps=200")
    before = {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()}
    with (
        RunDirectory(directory.path).locked(),
        pytest.raises(RunError, match="another process is training this run"),
    ):
        again(directory, "budget.env_steps=400")
    assert {path: path.read_bytes() for path in before} == before  # config.yaml, too


@pytest.mark.parametrize("backend", ["native", "sync"])
def test_a_run_that_was_killed_while_it_was_scored_trains_no_further(tmp_path, backend):
    """Where resets are steps that do not count, its last generation leaves some unspent."""
    options = (f"env.backend={backend}", "budget.env_steps=390")
    directory = run(tmp_path, *options)
    lines = [directory.path / name for name in ("lineage.jsonl", "metrics.jsonl")]
    before = [file.read_bytes() for file in lines]
    names, told = checkpoints(directory), directory.summary()
    assert (told.env_steps < 390) == (backend == "native")
    (directory.path / "summary.json").unlink()
    for going_on in (again, lambda old: run(tmp_path, *options, resume="auto")):
        going_on(directory)
        assert checkpoints(directory) == names
        assert [file.read_bytes() for file in lines] == before
        assert directory.summary().mean == told.mean
        assert directory.summary().env_steps == told.env_steps


def test_with_less_to_spend_than_is_spent_a_run_ends_at_once(tmp_path):
    directory = run(tmp_path / "less", "checkpoint.keep=4")
    (directory.path / "summary.json").unlink()
    for number in (3, 4):  # killed in its third generation
        shutil.rmtree(directory.path / "checkpoints" / f"generation-00000{number}")
    again(directory, "budget.env_steps=100")
    assert directory.summary().env_steps == 200
    again(directory, "budget.env_steps=400")
    assert content(directory) == content(run(tmp_path / "whole"))
