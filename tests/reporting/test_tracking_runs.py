"""A run with W&B's real client in offline mode and TensorBoard: everything is there, read back."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from evorl.reporting.console import Console
from evorl.training.trainer import train
from tests.reporting.read_back import sessions
from tests.reporting.tracked import (
    ACTORS,
    GENERATIONS,
    OFFLINE,
    environment,
    lines,
    reproducible,
    run,
    tiny,
)

HERE = Path(__file__).parent


class Listening(Console):
    """Keeps what was said."""

    def __init__(self):
        super().__init__(quiet=True)
        self.said = []

    def say(self, *parts):
        self.said += map(str, parts)


@pytest.fixture(scope="module")
def tracked(home, tmp_path_factory):
    return run(tmp_path_factory.mktemp("tracked"), OFFLINE, "tracking.tensorboard=true")


@pytest.fixture(scope="module")
def session(tracked):
    (only,) = sessions(tracked)
    return only


def births(path):
    found = [line for line in lines(path, "lineage.jsonl") if line["event"] == "birth"]
    return {line["genome"]["id"]: line for line in found}


def fitness(path):
    """By agent and generation."""
    found = [line for line in lines(path, "lineage.jsonl") if line["event"] == "fitness"]
    return {(line["id"], line["generation"]): line for line in found}


def test_every_generation_is_there_once(tracked, session):
    assert session.generations == list(range(GENERATIONS))
    for row, line in zip(session.told, lines(tracked), strict=True):
        assert row["env_steps"] == line["env_steps"]
        assert row["fitness/best"] == max(line["fitness"])
        assert row["fitness/worst"] == min(line["fitness"])
        assert row["fitness/mean"] == pytest.approx(np.mean(line["fitness"]))
        assert row["fitness/iqm"] == pytest.approx(stats.trim_mean(line["fitness"], 0.25))
        assert row["fitness/best_so_far"] == line["best"]
        assert row["fitness/best_agent"] == line["ids"][int(np.argmax(line["fitness"]))]
        assert row["throughput/steps_per_second"] == line["steps_per_second"]
        assert row["steps/updates"] == line["updates"]


def test_hyperparameters_have_curves_if_they_evolve(tracked, session):
    for row, line in zip(session.told, lines(tracked), strict=True):
        values = line["hyperparameters"]["lr"]
        place = int(np.argmax(line["fitness"]))
        assert row["hyperparameters/lr/best"] == values[place]
        assert row["hyperparameters/lr/mean"] == pytest.approx(np.mean(values))
        assert row["hyperparameters/lr/low"] == min(values)
        assert row["hyperparameters/lr/high"] == max(values)
    assert not any("hyperparameters/target_period/mean" in row for row in session.rows)


def test_curves_go_by_environment_steps(session):
    every = [metric for metric in session.metrics if metric.glob_name == "*"]
    assert [metric.step_metric for metric in every] == ["env_steps"]


def test_the_configuration_is_there(tracked, session):
    assert session.config["env"]["id"] == "CartPole-v1"
    assert session.config["evolution"]["selection"]["fraction"] == 0.5
    assert session.config["tracking"]["wandb"] == "offline"
    assert session.project == "evorl"


def test_mutations_are_counted_with_their_mean_effect(tracked, session):
    effects, known = {}, fitness(tracked)
    for born in births(tracked).values():
        genome = born["genome"]
        if genome["parent"] is not None:
            left = born["generation"] - 1 if born["copied"] is None else born["copied"]
            before = known[genome["parent"], left]["fitness"]
            after = known[genome["id"], born["generation"]]["fitness"]
            effects.setdefault(genome["mutation"], []).append(after - before)
    assert effects
    last = session.told[-1]
    for kind, changes in effects.items():
        name = f"mutations/{kind.replace(' ', '_')}"
        assert last[f"{name}/births"] == len(changes)
        assert last[f"{name}/effect"] == pytest.approx(np.mean(changes))


def test_the_final_score_is_in_the_summary(tracked, session):
    score = json.loads((tracked / "summary.json").read_text())["score"]
    assert session.summary["score/mean"] == score["mean"]["value"]
    assert session.summary["score/iqm"] == score["iqm"]["value"]
    assert session.summary["score/mean_low"] == score["mean"]["low"]
    assert session.exit_code == 0


def test_the_best_agent_is_an_artifact(tracked, session):
    artifact, files = session.artifact("model")
    assert artifact.name == "run-best"
    expected = {path.name: path.read_bytes() for path in (tracked / "best").iterdir()}
    assert files == expected
    assert set(files) == {"weights.safetensors", "agent.json"}


def test_every_evaluation_is_in_a_table_and_the_report_is_there(tracked, session):
    about = session.summary["agents"]
    table = json.loads((session.folder / "files" / about["path"]).read_text())
    assert {"generation", "agent", "parent", "lr", "units", "fitness"} <= set(table["columns"])
    at = table["columns"].index("fitness")
    expected = [value for line in lines(tracked) for value in line["fitness"]]
    assert [row[at] for row in table["data"]] == expected
    page = (session.folder / "files" / session.summary["report"]["path"]).read_text()
    assert 'class="number' in page or "evorl report" in page
    assert '"state":"finished"' in page


def test_all_that_is_to_be_uploaded_is_inside_the_run(tracked, session, home):
    for artifact in session.artifacts:
        for entry in artifact.manifest.contents:
            assert entry.local_path.startswith(str(tracked))
    assert not list(home.iterdir())


def test_the_run_is_the_same_to_the_byte(tracked, home, tmp_path):
    assert reproducible(tracked) == reproducible(run(tmp_path))


def test_without_trackers_nothing_is_written(home, tmp_path):
    path = run(tmp_path)
    assert not {"wandb", "wandb.json", "tensorboard"} & {entry.name for entry in path.iterdir()}


def test_one_line_says_how_to_upload(home, tmp_path, capfd):
    console = Listening()
    train(tiny(tmp_path, OFFLINE, "budget.env_steps=200"), console=console)
    (line,) = [line for line in console.said if "wandb" in line]
    assert line.endswith(f"wandb sync {tmp_path}/run/wandb/offline-run-*")
    assert "wandb" not in "".join(capfd.readouterr())


def test_tensorboard_has_every_generation(tracked):
    read = EventAccumulator(str(tracked / "tensorboard")).Reload()
    for name, of in (("fitness/best", max), ("fitness/worst", min)):
        events = read.Scalars(name)
        assert [event.step for event in events] == [line["env_steps"] for line in lines(tracked)]
        expected = [of(line["fitness"]) for line in lines(tracked)]
        assert [event.value for event in events] == pytest.approx(expected)
    score = json.loads((tracked / "summary.json").read_text())["score"]["mean"]["value"]
    assert read.Scalars("score/mean")[0].value == pytest.approx(score)
    assert not math.isnan(score)
    (config,) = read.Tensors("config/text_summary")
    assert b"CartPole-v1" in config.tensor_proto.string_val[0]


def test_training_has_curves_by_steps(tracked, session):
    """Points within generations, in order, on both; means of all agents."""
    expected = [
        (step, np.mean([value for value in row if value is not None]))
        for line in lines(tracked)
        for step, row in zip(line["training"]["env_steps"], line["training"]["loss"], strict=True)
        if any(value is not None for value in row)
    ]
    found = [(r["env_steps"], r["training/loss"]) for r in session.rows if "training/loss" in r]
    assert found == [(step, pytest.approx(value)) for step, value in expected]
    read = EventAccumulator(str(tracked / "tensorboard")).Reload()
    events = [(event.step, event.value) for event in read.Scalars("training/loss")]
    assert events == [(step, pytest.approx(value)) for step, value in expected]
    last = lines(tracked)[-1]["training"]["measured"]
    assert session.told[-1]["training/gradient_norm"] == pytest.approx(
        np.mean(last["gradient_norm"])
    )


def test_every_agent_has_curves_and_hparams(tracked):
    for id in births(tracked):
        read = EventAccumulator(str(tracked / "tensorboard" / "agents" / f"{id:04d}")).Reload()
        own = [line["fitness"] for (other, _), line in fitness(tracked).items() if other == id]
        assert [event.value for event in read.Scalars("fitness/own")] == pytest.approx(own)
        assert read.Scalars("fitness/highest")[0].value == pytest.approx(max(own))
        (start,) = read.PluginTagToContent("hparams").keys() & {"_hparams_/session_start_info"}
        assert start


def test_actors_have_curves(home, tmp_path):
    path = run(tmp_path, OFFLINE, "tracking.tensorboard=true", *ACTORS)
    (session,) = sessions(path)
    read = EventAccumulator(str(path / "tensorboard")).Reload()
    names = ("alive", "messages", "lag", "max_lag", "queue", "frames_per_second", "gone")
    for name in names:
        expected = [line["actors"][name] for line in lines(path)]
        assert [row[f"actors/{name}"] for row in session.told] == expected
        events = read.Scalars(f"actors/{name}")
        assert [event.value for event in events] == pytest.approx(expected)
    assert [row["actors/refused"] for row in session.told] == [0] * len(lines(path))
    assert min(row["actors/frames_per_second"] for row in session.told) > 0


@pytest.mark.parametrize(
    ("told", "reports"), [({}, False), ({"WANDB_ERROR_REPORTING": "true"}, True)]
)
def test_offline_reports_nothing_of_itself(home, tmp_path, told, reports):
    """Left alone, W&B tells its makers over the network how it is used."""
    code = (
        "import sys, threading; from tests.reporting.tracked import OFFLINE, run;"
        "run(sys.argv[1], OFFLINE); print(*(one.name for one in threading.enumerate()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        env=environment(**told, PYTHONPATH=os.pathsep.join([*sys.path])),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert ("Otel" in done.stdout) == reports
