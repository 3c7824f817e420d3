"""A resumed run is the same W&B run, and nothing is told twice or left out."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from evorl.config.yaml_text import dump_yaml
from evorl.reporting.tracking.trackers import next_step
from tests.reporting.tracking.read_back import sessions
from tests.reporting.tracking.tracked import (
    BASE,
    GENERATIONS,
    OFFLINE,
    environment,
    lines,
    reproducible,
    resume,
    run,
)

MORE = "budget.env_steps=2000"  # ten generations


@pytest.fixture(scope="module")
def short(home, tmp_path_factory):
    path = run(tmp_path_factory.mktemp("short"), OFFLINE, "tracking.tensorboard=true")
    sessions(path)  # all of it is written
    return path


@pytest.fixture
def tracked(short, tmp_path):
    """A copy of a run that has ended, to go on with."""
    return shutil.copytree(short, tmp_path / "runs" / "run", symlinks=True)


def generations(path, **options):
    return [one for session in sessions(path, **options) for one in session.generations]


def test_more_budget_goes_on_in_the_same_run(tracked):
    resume(tracked, MORE)
    first, second = sessions(tracked)
    assert first.id == second.id == json.loads((tracked / "wandb.json").read_text())["id"]
    assert second.resumed
    assert generations(tracked) == list(range(10))
    assert second.config["budget"]["env_steps"] == 2000
    steps = [row["_step"] for session in (first, second) for row in session.rows]
    assert steps == sorted(set(steps))
    assert second.table("births")[0]["agent"] == 0  # of the whole run
    assert second.summary["final/env_steps"] == 2000


def test_an_older_checkpoint_is_not_told_twice(tracked):
    newest = sorted((tracked / "checkpoints").glob("generation-*"))[-1]
    shutil.rmtree(newest)
    resume(tracked, MORE)
    assert generations(tracked) == list(range(10))


def test_nor_the_very_beginning(tracked):
    """Without any checkpoint a run starts again; its first generations are on W&B already."""
    shutil.rmtree(tracked / "checkpoints")
    with pytest.warns(UserWarning, match="there is no checkpoint yet"):
        resume(tracked, MORE)
    assert generations(tracked) == list(range(10))


def test_tensorboard_shows_every_generation_once(tracked):
    resume(tracked, MORE)
    read = EventAccumulator(str(tracked / "tensorboard")).Reload()
    steps = [event.step for event in read.Scalars("fitness/best")]
    assert steps == [line["env_steps"] for line in lines(tracked)]
    assert len(steps) == 10


def test_a_tracker_that_comes_late_is_told_everything(home, tmp_path):
    path = run(tmp_path)
    resume(path, MORE, OFFLINE)
    (session,) = sessions(path)
    assert session.generations == list(range(10))
    expected = [max(line["fitness"]) for line in lines(path)]
    assert [row["fitness/best"] for row in session.told] == expected


def test_another_project_is_another_run(tracked):
    resume(tracked, MORE, "tracking.project=other")
    first, second = sessions(tracked)
    assert first.id != second.id
    assert second.project == "other"
    assert second.generations == list(range(10))


@pytest.mark.parametrize("content", ["", "[]", '{"id": "../../x"}', "\x00"])
def test_a_damaged_id_is_replaced(tracked, content):
    (tracked / "wandb.json").write_text(content)
    resume(tracked, MORE)
    assert json.loads((tracked / "wandb.json").read_text())["id"].isalnum()
    assert sessions(tracked)[-1].generations == list(range(10))


def test_going_on_with_tracking_gives_the_same_bytes(tracked, home, tmp_path):
    plain = run(tmp_path / "plain", MORE)
    resume(tracked, MORE)
    kept = {name: data for name, data in reproducible(plain).items() if "manifest" not in name}
    for name in ("lineage.jsonl", "best/weights.safetensors", "best/agent.json"):
        assert reproducible(tracked)[name] == kept[name]


def test_a_log_that_is_cut_off_is_read_up_to_there(tracked):
    """As a kill leaves it: at any byte."""
    (log,) = (tracked / "wandb").glob("offline-run-*/run-*.wandb")
    whole, id = log.read_bytes(), sessions(tracked)[0].id
    assert next_step(tracked / "wandb", id) == 2 * GENERATIONS  # all rows, and what is drawn
    found = []
    for size in range(0, len(whole), 997):
        log.write_bytes(whole[:size])
        found.append(next_step(tracked / "wandb", id))
    assert found == sorted(found)
    assert found[0] == 0
    assert next_step(tracked / "wandb", "somebody") == 0


@pytest.mark.slow
def test_after_a_kill_nothing_is_missing(home, tmp_path):
    """W&B's log ends somewhere; whatever it lacks is told when the run resumes."""
    file = tmp_path / "run.yaml"
    file.write_text(dump_yaml(BASE | {"budget": {"env_steps": 20_000}}))
    command = [sys.executable, "-m", "evorl", "train", str(file), OFFLINE]
    process = subprocess.Popen([*command, f"run.folder={tmp_path}"], env=environment())
    metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 600
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 30:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    resume(tmp_path / "run")
    first, second = sessions(tmp_path / "run", killed=1)
    assert first.id == second.id
    assert second.generations[0] == len(first.generations)  # kills come before the log is full
    assert generations(tmp_path / "run", killed=1) == list(range(100))
