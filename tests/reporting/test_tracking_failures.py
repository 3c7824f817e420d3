"""Whatever happens to a tracker, training continues: one warning, and the run is the same."""

import importlib.util
import json
import os
import pty
import subprocess
import sys
import time
import warnings

import pytest

from evorl.config.yaml_text import dump_yaml
from evorl.errors import ConfigError
from evorl.reporting import curves
from evorl.reporting.tracking import TensorBoard, Tracking, WeightsAndBiases
from evorl.training.trainer import train
from tests.reporting.read_back import sessions
from tests.reporting.tracked import (
    BASE,
    GENERATIONS,
    OFFLINE,
    environment,
    lines,
    reproducible,
    run,
    tiny,
)

BOTH = (OFFLINE, "tracking.tensorboard=true")


@pytest.fixture(scope="module")
def plain(home, tmp_path_factory):
    return run(tmp_path_factory.mktemp("plain"))


def trained(folder, *overrides):
    """A run and the warnings of it."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        path = run(folder, *overrides)
    return path, [str(one.message) for one in told if "is off from here on" in str(one.message)]


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("what", ["begin", "follow", "end", "close"])
@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), TimeoutError(), RuntimeError("two\nlines")],
    ids=["disk", "time", "lines"],
)
def test_w_and_b_may_fail_anywhere(plain, tmp_path, monkeypatch, what, error):
    monkeypatch.setattr(WeightsAndBiases, what, failing(error))
    path, told = trained(tmp_path, *BOTH)
    (warning,) = told
    assert warning.startswith("W&B is off from here on, training continues: ")
    assert "\n" not in warning
    assert not warning.endswith(": ")
    assert reproducible(path) == reproducible(plain)
    assert (path / "summary.json").exists()
    assert list((path / "tensorboard").iterdir())  # the other one continues


def test_so_may_tensorboard(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(TensorBoard, "follow", failing(OSError(28, "No space left on device")))
    path, told = trained(tmp_path, *BOTH)
    assert told == [
        "TensorBoard is off from here on, training continues: [Errno 28] No space left on device"
    ]
    assert sessions(path)[0].generations == list(range(GENERATIONS))
    assert reproducible(path) == reproducible(plain)


def test_the_clients_own_log_may_fail(plain, tmp_path, monkeypatch):
    """Deep inside: after the third generation."""
    import wandb

    log, calls = wandb.Run.log, []

    def fail_later(self, *arguments, **options):
        calls.append(1)
        if len(calls) > 3:
            raise wandb.Error("service is gone")
        return log(self, *arguments, **options)

    monkeypatch.setattr(wandb.Run, "log", fail_later)
    path, told = trained(tmp_path, OFFLINE)
    assert told == ["W&B is off from here on, training continues: service is gone"]
    assert len(calls) == 4  # never asked again
    assert reproducible(path) == reproducible(plain)


def test_files_that_make_no_sense(plain, tmp_path, monkeypatch):
    """A tracker reads the run's own files: what it cannot read is its own trouble, too."""
    monkeypatch.setattr(curves, "parse_line", failing(ValueError("damaged")))
    path, told = trained(tmp_path, *BOTH)
    assert [line.split(" is off")[0] for line in told] == ["W&B", "TensorBoard"]
    assert reproducible(path) == reproducible(plain)


def test_a_folder_that_cannot_be_made(home, tmp_path):
    """W&B would write elsewhere, without a word."""
    from evorl.reporting.console import Console
    from evorl.runs.directory import RunDirectory

    directory = RunDirectory.create(tmp_path, "run")
    (directory.path / "wandb").write_text("in the way")
    tracking = Tracking(tiny(tmp_path, OFFLINE), directory, Console(quiet=True))
    with pytest.warns(
        UserWarning, match="W&B is off from here on, training continues: .*File exists"
    ):
        tracking.begin()
    assert [entry.name for entry in directory.path.iterdir()] == ["wandb"]


@pytest.mark.parametrize(("name", "value"), [("wandb", "offline"), ("tensorboard", "true")])
def test_a_tracker_that_is_not_installed(home, tmp_path, monkeypatch, name, value):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda one: None if one == name else find(one))
    with pytest.raises(ConfigError, match=f"tracking.{name}: the package .* pip install {name}"):
        train(tiny(tmp_path / "runs", f"tracking.{name}={value}"))
    assert not (tmp_path / "runs").exists()


def started(folder, *overrides, **values):
    """`evorl train` in a process of its own, on a terminal: where a client could ask for a key."""
    file = folder / "run.yaml"
    file.write_text(dump_yaml(BASE))
    command = [sys.executable, "-m", "evorl", "train", str(file), f"run.folder={folder}"]
    ours, theirs = pty.openpty()
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [*command, *overrides],
            stdin=theirs,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environment(**values),
        )
    os.close(theirs)
    return process, ours


def ended(folder, process, terminal):
    try:
        code = process.wait(600)
    finally:
        process.kill()
        os.close(terminal)
    return code, (folder / "said").read_text()


def offs(said):
    return [line for line in said.splitlines() if "is off from here on" in line]


@pytest.mark.slow
def test_online_without_a_login(plain, tmp_path):
    code, said = ended(tmp_path, *started(tmp_path, "tracking.wandb=online"))
    assert code == 0, said
    assert offs(said) == [
        "warning: W&B is off from here on, training continues: no login: run `wandb login`, or set"
        " tracking.wandb=offline"
    ]
    assert "wandb:" not in said
    assert "API key" not in said
    assert reproducible(tmp_path / "run") == reproducible(plain)


@pytest.mark.slow
def test_online_without_a_network(plain, tmp_path):
    options = ("tracking.wandb=online", "tracking.timeout=2")
    nowhere = {"WANDB_API_KEY": "a" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    code, said = ended(tmp_path, *started(tmp_path, *options, **nowhere))
    assert code == 0, said
    (line,) = offs(said)
    assert line.startswith("warning: W&B is off from here on, training continues: ")
    assert "Traceback" not in said
    assert "wandb:" not in said
    assert reproducible(tmp_path / "run") == reproducible(plain)


@pytest.mark.slow
def test_a_service_that_crashes(home, tmp_path):
    import psutil

    process, terminal = started(tmp_path, OFFLINE, "budget.env_steps=20000")
    metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 600
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for child in psutil.Process(process.pid).children(recursive=True):
        if child.name().startswith("wandb"):
            child.kill()
    code, said = ended(tmp_path, process, terminal)
    assert code == 0, said
    assert len(offs(said)) == 1
    assert "Traceback" not in said  # nor when Python ends
    assert len(lines(tmp_path / "run")) == 100
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] == 20_000
