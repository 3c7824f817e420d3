"""Of a resumed run nothing is told twice or left out."""

import shutil
import signal
import subprocess
import sys
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from evorl.config.yaml_text import dump_yaml
from evorl.reporting.console import Console
from evorl.reporting.tracking import WeightsAndBiases
from evorl.runs.directory import RunDirectory
from tests.reporting.read_back import sessions
from tests.reporting.tracked import (
    BASE,
    OFFLINE,
    environment,
    lines,
    reproducible,
    resume,
    run,
    tiny,
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


def test_more_budget_gives_one_log_of_all(tracked):
    resume(tracked, MORE)
    (session,) = sessions(tracked)
    assert session.generations == list(range(10))
    assert session.config["budget"]["env_steps"] == 2000
    steps = [row["_step"] for row in session.rows]
    assert steps == sorted(set(steps))
    assert session.summary["final/env_steps"] == 2000
    expected = [max(line["fitness"]) for line in lines(tracked)]
    assert [row["fitness/best"] for row in session.told] == expected


def test_a_log_that_was_uploaded_stays(tracked):
    (log,) = (tracked / "wandb").glob("offline-run-*/run-*.wandb")
    log.with_suffix(".wandb.synced").touch()  # as `wandb sync` does
    resume(tracked, MORE)
    first, second = sessions(tracked)
    assert first.id != second.id
    assert second.generations == list(range(10))


def test_without_any_checkpoint_a_run_starts_again(tracked):
    shutil.rmtree(tracked / "checkpoints")
    with pytest.warns(UserWarning, match="there is no checkpoint yet"):
        resume(tracked, MORE)
    (session,) = sessions(tracked)
    assert session.generations == list(range(10))


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


def test_online_a_run_keeps_its_id(tmp_path):
    def identity(*overrides):
        config = tiny(tmp_path, "tracking.wandb=online", *overrides)
        return WeightsAndBiases(config, RunDirectory(tmp_path), Console(quiet=True))._identity()

    first = identity()
    assert identity() == first
    other = identity("tracking.project=other")
    assert other != first
    assert identity("tracking.project=other") == other


def test_going_on_with_tracking_gives_the_same_bytes(tracked, home, tmp_path):
    plain = run(tmp_path / "plain", MORE)
    resume(tracked, MORE)
    kept = {name: data for name, data in reproducible(plain).items() if "manifest" not in name}
    for name in ("lineage.jsonl", "best/weights.safetensors", "best/agent.json"):
        assert reproducible(tracked)[name] == kept[name]


@pytest.mark.slow
def test_after_a_kill_nothing_is_missing(home, tmp_path):
    """W&B's log ends somewhere; a log of all takes its place when the run resumes."""
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
    (session,) = sessions(tmp_path / "run")
    assert session.generations == list(range(100))
