"""A run that is killed while it starts: it can be started again, and nothing else is touched."""

import dataclasses
import os
import sys

import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.config import parse_config
from evorl.errors import CheckpointError, RunError
from evorl.evolution.schedule import Schedule, Segment, config_for_schedule
from evorl.genome import Architecture
from evorl.runs.directory import RunDirectory
from evorl.runs.reopening import find_started, make_checkpoints, reopen
from evorl.training.trainer import train
from tests.training.test_saving import CONFIG, content, run

SHORT = "budget.env_steps=100"  # one generation
SCHEDULE = Schedule(
    "CartPole-v1", 100, {"q": Architecture((8,))}, (Segment(0, DQN().hyperparameters),)
)


def killed_at(number, folder, start):
    """Start in a process that dies before its n-th access to the folder."""
    child = os.fork()
    if child == 0:
        left = [number]

        def count(event, arguments):
            if arguments and str(arguments[0]).startswith(str(folder)):
                left[0] -= 1
            if left[0] == 0:
                os._exit(9)

        sys.addaudithook(count)
        try:
            start()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def started(folder, schedule=None):
    config = parse_config(CONFIG, [f"run.folder={folder}", SHORT])
    result = train(config_for_schedule(config, schedule) if schedule else config, schedule=schedule)
    return RunDirectory(result.directory)


@pytest.mark.parametrize("schedule", [None, SCHEDULE], ids=["plain", "schedule"])
def test_killed_at_any_moment_of_starting(tmp_path, schedule):
    expected = started(tmp_path / "whole", schedule)
    births = (expected.path / "lineage.jsonl").read_text().count('"birth"')
    for number in range(1, 100):
        folder = tmp_path / str(number)
        killed_at(number, folder, lambda folder=folder: started(folder, schedule))
        directory = RunDirectory(folder / "run")
        if (directory.path / "config.yaml").exists():  # it has begun: nothing may be missing
            assert (directory.schedule() is None) == (schedule is None)
            assert directory.lines()["lineage.jsonl"] == births
            break
        assert content(started(folder, schedule), 1) == content(expected, 1)
    assert number > 5


@pytest.mark.parametrize("after", ["mkdir", "lock", "lineage", "config aside", "config"])
def test_it_is_started_or_resumed_afterwards(tmp_path, after):
    expected = run(tmp_path / "whole", SHORT)
    path = tmp_path / "killed" / "run"
    path.mkdir(parents=True)
    lineage = (expected.path / "lineage.jsonl").read_text().splitlines(keepends=True)[:2]
    if after != "mkdir":
        (path / ".lock").touch()
    if after in ("lineage", "config aside", "config"):
        (path / "lineage.jsonl").write_text("".join(lineage if after == "config" else lineage[:1]))
    if after == "config aside":
        (path / "config.yaml.new").write_text("half of")
    if after == "config":
        text = (expected.path / "config.yaml").read_text()
        (path / "config.yaml").write_text(text.replace(str(tmp_path / "whole"), str(path.parent)))
        with pytest.warns(UserWarning, match="starting from the beginning"):
            train(reopen(RunDirectory.open(path)), resume=RunDirectory.open(path))
    else:
        # A launcher that restarts the job finds it by its name, so that it never gets a number.
        run(path.parent, SHORT, "run.if_exists=number", resume="auto")
    assert content(RunDirectory(path), 1) == content(expected, 1)
    assert sorted(os.listdir(path)) == sorted(os.listdir(expected.path))
    with pytest.raises(RunError, match="exists already"):
        RunDirectory.create(path.parent, "run")


FOREIGN = {
    "notes": lambda path: (path / "notes.txt").write_text("mine"),
    "hidden": lambda path: (path / ".git").mkdir(),
    "metrics": lambda path: (path / "metrics.jsonl").write_text("{}\n"),
}


@pytest.mark.parametrize("content", FOREIGN)
def test_anything_else_is_not_touched(tmp_path, content):
    path = tmp_path / "run"
    path.mkdir()
    FOREIGN[content](path)
    before = sorted((item.name, item.lstat().st_mtime_ns) for item in path.iterdir())
    with pytest.raises(RunError, match="exists already"):
        RunDirectory.create(tmp_path, "run")
    with pytest.raises(RunError, match="not a run directory"):
        find_started(parse_config(CONFIG, [f"run.folder={tmp_path}"]))
    assert sorted((item.name, item.lstat().st_mtime_ns) for item in path.iterdir()) == before


def test_one_that_is_just_starting_is_not_taken_over(tmp_path):
    directory = RunDirectory.create(tmp_path, "run")
    with directory.locked():
        directory.append_lineage([{"event": "birth"}])
        again = RunDirectory.create(tmp_path, "run")
        with pytest.raises(RunError, match="another process is training"), again.locked():
            pass
        assert directory.lines()["lineage.jsonl"] == 1


def test_a_checkpoint_of_another_schedule_is_refused(tmp_path):
    config = parse_config(CONFIG, [])
    directory = RunDirectory.create(tmp_path, "run")
    other = dataclasses.replace(SCHEDULE, steps=2 * SCHEDULE.steps)
    ours = make_checkpoints(config, directory, SCHEDULE)
    draft = ours.begin(1)
    draft.commit({}, [draft.write("one", {"x": torch.zeros(1)})])
    assert ours.newest().generation == 1
    for theirs in (None, other):
        with pytest.raises(CheckpointError, match="its run has configuration"):
            make_checkpoints(config, directory, theirs).newest()
