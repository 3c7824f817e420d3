"""evorl runs."""

import json
import os

import pytest

from evorl.cli.runs import describe_age
from evorl.config import dump_config, parse_config
from evorl.runs.directory import RunDirectory
from tests.synthetic import family_lines, make_family_run, make_run

from .answers import assert_one_error, everything_in

LINE = {"generation": 3, "env_steps": 12_000, "evaluation_steps": 6_000, "best": 120.5}


def started(folder, name, *lines, **config):
    """A run that is running, or was stopped."""
    directory = RunDirectory.create(folder, name)
    options = {"budget": {"env_steps": 48_000}, "population": {"size": 2}, **config}
    parsed = parse_config({"name": name, "env": {"id": "Acrobot-v1"}, **options})
    directory.write_config(dump_config(parsed))
    directory.append_lineage(family_lines())
    for line in lines:
        directory.append_metrics(line)
    return directory


def touch(directory, seconds):
    """Let all files of a run be written at a time."""
    for path in directory.path.rglob("*"):
        os.utime(path, (seconds, seconds))


@pytest.fixture
def zoo(tmp_path):
    """Runs in every state, the first the oldest, and a folder that is none."""
    runs = tmp_path / "runs"
    found = {
        "finished": make_family_run(runs, "finished"),
        "stopped": started(runs, "stopped", {**LINE, "generation": 2}, LINE),
        "running": started(runs, "running", {**LINE, "best": None}),
        "damaged": started(runs, "damaged", LINE),
    }
    (found["damaged"].path / "config.yaml").write_text("env: [")
    for age, directory in enumerate(found.values()):
        touch(directory, 1_000_000 + age)
    (runs / "notes").mkdir()
    (runs / "notes" / "config.yaml").write_text("model: resnet\n")
    (runs / "notes.txt").write_text("no run")
    return found


def test_runs_are_listed_the_newest_first(evorl, zoo, tmp_path):
    before = everything_in(tmp_path)
    with zoo["running"].locked():
        code, out, err = evorl("runs")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == [
        *("runs/", "environment", "state", "score", "generation", "steps", "age")
    ]
    rows = [" ".join(line.split()[:-2]) for line in lines[1:5]]
    assert rows == [
        "damaged — damaged — — 0",
        "running Acrobot-v1 running — 3 12,000 (25 %)",
        "stopped Acrobot-v1 stopped best 120.5 3 12,000 (25 %)",
        "finished CartPole-v1 finished 450.0 (445.0 to 455.0) — 1,000",
    ]
    assert lines[5].startswith("damaged: runs/damaged/config.yaml: line 1: invalid YAML")
    assert lines[6] == "resume a stopped run with evorl resume RUN"
    assert len(lines) == 7
    assert everything_in(tmp_path) == before


def test_runs_for_scripts(evorl, zoo):
    code, out, err = evorl("runs", "runs", "--json")
    assert (code, err) == (0, "")
    found = {run["path"]: run for run in json.loads(out)}
    assert list(found) == [f"runs/{name}" for name in ("damaged", "running", "stopped", "finished")]
    assert found["runs/running"]["state"] == "stopped"  # nobody holds the lock
    assert found["runs/stopped"] == {
        "path": "runs/stopped",
        "state": "stopped",
        "env": "Acrobot-v1",
        "generation": 3,
        "env_steps": 12_000,
        "budget": 48_000,
        "share": 0.25,
        "best": 120.5,
        "score": None,
        "changed": "1970-01-12T13:46:41+00:00",
        "problem": None,
        "resumable": True,
        "actors": 0,
        "alive": None,
    }
    assert found["runs/finished"]["resumable"] is False
    assert found["runs/finished"]["score"] == {"value": 450.0, "low": 445.0, "high": 455.0}


def test_evaluations_that_use_up_the_budget(evorl, tmp_path):
    started(tmp_path / "runs", "one", LINE, budget={"env_steps": 48_000, "counts": "all"})
    (run,) = json.loads(evorl("runs", "--json")[1])
    assert (run["env_steps"], run["share"]) == (12_000, 0.375)
    assert "12,000 (37 %)" in evorl("runs")[1]


def test_runs_in_folders_are_found_by_their_path(evorl, tmp_path):
    make_family_run(tmp_path / "runs" / "lander", "one")
    make_family_run(tmp_path / "runs" / ".hidden", "two")
    (tmp_path / "runs" / "circle").symlink_to(tmp_path / "runs")
    code, out, _ = evorl("runs")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["runs/", "lander/one"]


def test_one_run_by_itself(evorl, zoo):
    code, out, _ = evorl("runs", "runs/stopped")
    assert code == 0
    assert out.splitlines()[0].startswith("runs/ ")
    assert out.splitlines()[1].startswith("stopped ")


@pytest.mark.parametrize("folder", ["empty", "runs/notes"])
def test_no_runs(evorl, zoo, tmp_path, folder):
    (tmp_path / "empty").mkdir()
    code, out, err = evorl("runs", folder)
    assert (code, err) == (0, "")
    assert out == f"{folder}: no runs here; make one with evorl train CONFIG\n"
    assert evorl("runs", folder, "--json")[1] == "[]\n"


@pytest.mark.parametrize("folder", ["nothing", "runs/notes.txt", "a\nb", "x" * 5000])
def test_folders_that_are_none(evorl, zoo, folder):
    assert_one_error(*evorl("runs", folder))


def _bad_metrics(run):
    (run / "metrics.jsonl").write_text(json.dumps(LINE | {"generation": "three"}) + "\n")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_bad_metrics, "last line of metrics.jsonl: generation: expected a whole number"),
        (lambda run: (run / "summary.json").write_text("{"), "summary.json: not a summary"),
        (lambda run: (run / "config.yaml").unlink(), "has no config.yaml"),
    ],
)
def test_damaged_runs(evorl, tmp_path, spoil, says):
    directory = started(tmp_path / "runs", "one", LINE)
    spoil(directory.path)
    (run,) = json.loads(evorl("runs", "--json")[1])
    assert run["state"] == "damaged"
    assert says in run["problem"]
    code, out, _ = evorl("runs")
    assert code == 0
    assert says in out


def test_a_line_that_is_being_written_does_not_count(evorl, tmp_path):
    directory = started(tmp_path / "runs", "one", LINE)
    with (directory.path / "metrics.jsonl").open("a") as file:
        file.write('{"generation": 4, "env_st')
    (run,) = json.loads(evorl("runs", "--json")[1])
    assert (run["state"], run["generation"]) == ("stopped", 3)


def test_many_runs_of_a_name_that_is_long(evorl, tmp_path):
    make_run(tmp_path / "runs", "x" * 100)
    code, out, _ = evorl("runs")
    assert code == 0
    assert "x" * 100 in out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "now"),
        (0.5, "now"),
        (1, "1 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (7200, "2 h"),
        (1e6, "11 d"),
    ],
)
def test_describe_age(seconds, text):
    assert describe_age(seconds) == text
