"""The states of real runs, and the commands that their reports offer: each of them works."""

import json
import shlex
from pathlib import Path

import pytest
import torch

from evorl import Callback, train
from evorl.errors import EnvError, RunError
from evorl.reporting import read_payload
from evorl.runs import find_runs
from tests.envs import tiny
from tests.training.test_dead_runs import BASE as DEADLY

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

BASE = {
    "name": "run",
    "env": {"id": f"{tiny.__name__}:Fragile-v0", "num_envs": 2, "backend": "sync"},
    "algorithm": {"learning_starts": 16, "batch_size": 8},
    "network": {"hidden": [8]},
    "replay": {"capacity": 400},
    "population": {"size": 2},
    "evaluation": {"every": 40, "episodes": 2, "confirm_episodes": 2, "final_episodes": 2},
    "budget": {"env_steps": 320},
    "compile": False,
}  # two generations


class At(Callback):
    """Does something at the end of one generation."""

    def __init__(self, generation, act):
        self.generation, self.act = generation, act

    def on_checkpoint(self, event):
        if event.generation == self.generation:
            self.act()


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def begin(*overrides, act=lambda: None, base=BASE):
    train(base, ["run.folder=runs", "name=run", *overrides], [At(0, act)])


def state_of_run():
    """As `evorl runs` and the dashboard list it; the report says the same."""
    (found,) = [run for run in find_runs(Path("runs")) if run.path.name == "run"]
    (report,) = read_payload([found.path])["runs"]
    assert report["state"] == found.state
    told = [] if found.problem is None else [f"The run has failed: {found.problem}"]
    assert report["warnings"] == told
    assert ("resume" in report["commands"]) == found.resumable
    return found, report["commands"]


def assert_they_work(evorl, commands):
    for name, command in commands.items():
        words = shlex.split(command.partition(" > ")[0])[1:]
        code, out, err = evorl(*words, *(["-q"] if name in ("again", "resume") else []))
        assert (code, bool(out)) == (0, True), f"{command}: {err}"


def interrupt():
    raise KeyboardInterrupt


def test_a_run_that_trains(evorl):
    seen = []
    begin("env.max_failures=10000", act=lambda: seen.append(state_of_run()))
    found, commands = seen[0]
    assert (found.state, found.problem) == ("running", None)
    assert set(commands) == {"again", "lineage", "schedule"}


def test_a_finished_run(evorl):
    begin("env.max_failures=10000")
    found, commands = state_of_run()
    assert (found.state, found.problem) == ("finished", None)
    assert set(commands) == {"again", "lineage", "schedule"}
    assert_they_work(evorl, commands)


def test_a_run_that_was_interrupted(evorl):
    with pytest.raises(KeyboardInterrupt):
        begin("env.max_failures=10000", act=interrupt)
    found, commands = state_of_run()
    assert (found.state, found.problem) == ("stopped", None)
    assert set(commands) == {"again", "resume", "lineage", "schedule"}
    assert_they_work(evorl, commands)
    assert state_of_run()[0].state == "finished"


def test_a_run_whose_environment_fails_too_often(evorl):
    with pytest.raises(EnvError) as caught:
        begin("env.max_failures=20")  # in the second generation
    found, commands = state_of_run()
    assert (found.state, found.problem) == ("failed", str(caught.value))
    assert set(commands) == {"resume", "lineage", "schedule"}
    out = evorl("runs")[1]
    assert f"failed: runs/run: env.max_failures: '{BASE['env']['id']}' raised too often" in out
    assert "resumes, too, once its cause is gone" in out
    commands["resume"] += " env.max_failures=10000"  # what the reason says
    assert_they_work(evorl, commands)
    found, commands = state_of_run()
    assert (found.state, found.problem) == ("finished", None)
    assert not Path("runs/run/failure.json").exists()


def test_a_run_that_is_interrupted_after_it_had_failed(evorl):
    with pytest.raises(EnvError):
        begin("env.max_failures=20")
    config = ["runs/run/config.yaml", ["env.max_failures=10000"]]
    with pytest.raises(KeyboardInterrupt):
        train(*config, [At(1, interrupt)], resume="auto")
    assert state_of_run()[0].state == "stopped"


def test_a_run_whose_agents_are_all_dead(evorl):
    with pytest.raises(RunError) as caught:
        begin("budget.env_steps=800", base=DEADLY)
    found, commands = state_of_run()
    assert (found.state, found.problem) == ("failed", str(caught.value))
    assert "a smaller algorithm.lr" in found.problem
    assert set(commands) == {"lineage", "schedule"}
    assert_they_work(evorl, commands)
    assert "once its cause is gone" not in evorl("runs")[1]
    assert evorl("resume", "runs/run", "-q")[0] == 2
    assert state_of_run()[0].state == "failed"


def test_a_mistake_in_somebody_elses_code(evorl):
    def mistake():
        json.loads("{\x1b")

    with pytest.raises(RunError):
        begin("env.max_failures=10000", act=mistake)
    found, commands = state_of_run()
    assert found.state == "failed"
    assert found.resumable
    assert "JSONDecodeError" in found.problem
    assert_they_work(evorl, commands)


def test_what_is_refused_before_it_trains_is_no_failure(evorl):
    begin("env.max_failures=10000")
    assert evorl("resume", "runs/run")[0] == 2
    assert evorl("resume", "runs/run", "budget.env_steps=640", "seed=5")[0] == 2
    assert state_of_run()[0].state == "finished"
