"""A run directory as plain data: finished, going on, just begun, damaged."""

import json
import math
import subprocess
import sys

import pytest

from evorl.errors import EvorlError, RunError
from evorl.reporting.page import plain
from evorl.reporting.run_data import mutation_effects, read_payload, read_run
from evorl.reporting.training_data import training_curves
from evorl.runs.directory import LINEAGE, METRICS, RunDirectory
from tests.synthetic import (
    FAMILY,
    STEPS,
    birth,
    child,
    evaluated,
    family_lines,
    initial,
    make_run,
    saved,
)

from .runs import (
    TOLD,
    finished,
    going,
    just_begun,
    metrics,
    snapshot,
    training,
    with_actors,
    with_curves,
)


def agent(run, id):
    return next(agent for agent in run["agents"] if agent["id"] == id)


def test_a_finished_run(tmp_path):
    directory = finished(tmp_path)
    before = snapshot(tmp_path)
    run = read_run(directory)
    assert snapshot(tmp_path) == before
    assert run["state"] == "finished"
    score = (450.0, 445.0, 455.0)
    assert run["headline"]["score"] == {"mean": score, "iqm": score, "episodes": 100}
    assert run["headline"]["env_steps"] == 1000
    best = {"id": 4, "generation": 4, "fitness": 404.0, "confirmed": 398.5, "own_steps": 5000}
    assert run["best"] == best
    assert run["rows"]["generation"] == [0, 1, 2, 3, 4]
    assert run["rows"]["env_steps"] == [4000, 8000, 12000, 16000, 20000]
    assert run["rows"]["steps_per_second"] == [2000.0] * 5
    three = agent(run, 3)
    assert (three["parent"], three["born"], three["left"], three["start"]) == (2, 2, 1, 2)
    assert three["fitness"] == [302.0, 303.0]
    assert three["error"] == [1.0, 1.0]
    assert three["architecture"] == "64-96 relu"
    assert three["change"] == "hidden 64-64 → 64-96"
    assert three["hyperparameters"] == {"lr": 0.00125, "gamma": 0.99, "batch_size": 128}
    assert run["fixed"]["tau"] == FAMILY[0].hyperparameters["tau"]
    json.dumps(plain(run), allow_nan=False)


def test_axes_go_by_the_spaces_and_by_how_far_values_span(tmp_path):
    run = read_run(finished(tmp_path))
    assert run["hyperparameters"] == {"lr": "log", "gamma": "reverse_log", "batch_size": "linear"}


def test_a_run_before_its_first_evaluation(tmp_path):
    run = read_run(just_begun(tmp_path))
    assert (run["state"], run["best"]) == ("stopped", None)
    assert run["headline"]["score"] is None
    assert run["rows"]["generation"] == []
    assert [(one["id"], one["start"], one["fitness"]) for one in run["agents"]] == [
        (0, None, []),
        (1, None, []),
    ]


def test_a_run_with_actors(tmp_path):
    assert read_run(finished(tmp_path))["actors"] is None
    assert read_run(just_begun(tmp_path, mesh={"actors": 2}))["actors"] is None
    directory = with_actors(tmp_path)
    found = read_run(directory)["actors"]
    assert found["wanted"] == 2
    assert found["figures"]["alive"] == [2, 2, 1]
    assert found["figures"]["lag"] == [3.5] * 3
    assert found["figures"]["gone"] == [0, 0, 1]
    assert found["refused"] == {"generation": 12, "lag": 8, "range": 3, "<b>new</b>": 1}
    directory.append_metrics(metrics(3))  # it was resumed without
    assert read_run(directory)["actors"]["figures"]["queue"] == [1.25] * 3 + [None]
    directory.append_metrics(metrics(3, actors=TOLD | {"queue": "full"}))
    with pytest.raises(RunError, match=r"metrics\.jsonl: damaged, or"):
        read_run(directory)


def test_training_curves_of_a_run(tmp_path):
    run = read_run(with_curves(tmp_path))
    assert run["points"]["row"] == [row for row in range(1, 5) for _ in range(4)]
    assert run["points"]["share"] == [0.25, 0.5, 0.75, 1.0] * 4
    three = agent(run, 3)["training"]  # of generations 2 and 3, in place 1
    assert three["first"] == 4
    assert three["return"] == pytest.approx([20.1, 21.1, 22.1, 23.1, 30.1, 31.1, 32.1, 33.1])
    assert agent(run, 0)["measured"]["gradient_norm"] == [None, 3.0, 4.0, 5.0, 6.0]
    assert agent(run, 1)["training"] is None  # it was gone before there were any
    assert read_run(finished(tmp_path))["points"] == {"row": [], "share": []}


def test_of_long_runs_some_points_are_left_out(tmp_path):
    lines = [metrics(0, training=training(0)) | {"env_steps": 4 * STEPS * g} for g in range(1000)]
    for number, line in enumerate(lines):
        steps = [STEPS * (4 * number + k + 1) for k in range(4)]
        line["env_steps"], line["training"] = steps[-1], line["training"] | {"env_steps": steps}
    places, agents = training_curves(lines)
    assert 1000 <= len(places["row"]) <= 1500
    assert len(agents[0]["return"]) == len(places["row"])
    assert max(places["share"]) <= 1


def test_half_a_last_line_is_left_out(tmp_path):
    directory = going(tmp_path)
    whole = read_run(directory)
    for name, line in ((METRICS, metrics(3)), (LINEAGE, evaluated(0, 3))):
        with (directory.path / name).open("a") as file:
            file.write(json.dumps(line)[:40])
    assert read_run(directory) == whole


def test_metrics_may_be_ahead_of_the_fitness_in_the_lineage(tmp_path):
    directory = going(tmp_path)
    directory.append_metrics(metrics(3))  # the births of generation 3 are there: there are none
    run = read_run(directory)
    assert run["rows"]["generation"] == [0, 1, 2, 3]
    assert agent(run, 3)["fitness"] == [302.0, 303.0]
    assert agent(run, 3)["error"] == [1.0, None]


def test_metrics_of_agents_that_the_lineage_does_not_know(tmp_path):
    directory = going(tmp_path)
    directory.append_metrics(metrics(4))  # as while a run is resumed: agent 4 is not born
    with pytest.raises(RunError, match="agent 4 is not in the lineage"):
        read_run(directory)


def test_time_goes_on_where_a_run_was_resumed(tmp_path):
    directory = going(tmp_path, generations=2)
    directory.append_lineage([birth(FAMILY[3], 1, FAMILY[2])])
    directory.append_metrics(metrics(2, seconds=1.0))
    rows = read_run(directory)["rows"]
    assert rows["seconds"] == [2.0, 4.0, 5.0]


def test_dead_agents_have_no_fitness(tmp_path):
    directory = just_begun(tmp_path)
    directory.append_metrics(metrics(0, fitness=[float("-inf"), 1.0], best=None))
    run = read_run(directory)
    assert agent(run, 0)["fitness"] == [None]
    assert run["rows"]["best"] == [None]


def test_a_child_of_an_earlier_generation_of_its_parent(tmp_path):
    directory = finished(tmp_path)
    late = child(FAMILY[0], 5, 5, lr=0.002)
    directory.append_lineage([birth(late, 1, FAMILY[0], copied=2)])
    assert agent(read_run(directory), 5)["left"] == 2


def test_a_schedule_changes_values_during_a_life(tmp_path):
    directory = just_begun(tmp_path)
    for generation in (0, 1):
        line = metrics(generation, ids=(0, 1))
        line["hyperparameters"]["tau"] = [0.01 * (generation + 1)] * 2
        directory.append_metrics(line)
    run = read_run(directory)
    assert agent(run, 0)["hyperparameters"]["tau"] == [0.01, 0.02]
    assert agent(run, 0)["hyperparameters"]["lr"] == 0.001


def test_states(tmp_path):
    directory = going(tmp_path)
    assert read_run(directory)["state"] == "stopped"
    with directory.locked():
        assert read_run(directory)["state"] == "running"
        with pytest.raises(RunError, match="another process"), directory.locked():
            pass
    assert read_run(directory)["state"] == "stopped"
    (directory.path / ".lock").touch()  # left by a kill
    assert read_run(directory)["state"] == "stopped"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / METRICS).write_text("{}\n"), "metrics.jsonl: damaged, or"),
        (lambda path: (path / METRICS).write_text("\0\n"), "metrics.jsonl: damaged, or"),
        (
            lambda path: (path / METRICS).write_text(json.dumps(metrics(0, fitness=[1.0])) + "\n"),
            "metrics.jsonl: damaged, or",
        ),
        (lambda path: (path / LINEAGE).write_text("no\n"), "lineage.jsonl: line 1"),
        (lambda path: (path / LINEAGE).unlink(), "lineage.jsonl: cannot be read"),
        (lambda path: (path / "summary.json").write_text("{"), "not a summary"),
        (lambda path: (path / "config.yaml").write_text("env: ["), "invalid YAML"),
        (lambda path: (path / "best" / "agent.json").write_text("[]"), "agent.json"),
        (lambda path: (path / "best" / "agent.json").write_text("{}"), r"\.json: not an agent of"),
    ],
)
def test_damage_is_one_line(tmp_path, damage, message):
    directory = finished(tmp_path)
    damage(directory.path)
    with pytest.raises(EvorlError, match=message) as caught:
        read_run(directory)
    assert "\n" not in str(caught.value)


def test_one_that_is_being_replaced_is_no_damage(tmp_path):
    directory = finished(tmp_path)
    (directory.path / "best" / "agent.json").unlink()
    assert read_run(directory)["best"] is None
    directory.save_best(saved(child(FAMILY[4], 77, 9)))  # not in the lineage yet
    assert read_run(directory)["best"] is None


def test_foreign_and_missing_folders(tmp_path):
    with pytest.raises(RunError, match="no such run"):
        read_payload([tmp_path / "nothing"])
    with pytest.raises(RunError, match="not a run directory"):
        read_payload([tmp_path])


def test_several_runs_are_compared(tmp_path):
    runs = [
        make_run(tmp_path, "a-1", score=1.0, seed=1),
        make_run(tmp_path, "a-2", score=2.0, seed=2),
        make_run(tmp_path, "b", score=3.0, options=["algorithm.lr=0.01"]),
    ]
    for run in runs:
        run.append_lineage(family_lines())
    paths = [run.path for run in (*runs, going(tmp_path))]
    data = read_payload(paths)
    assert [run["name"] for run in data["runs"]] == ["a-1", "a-2", "b", "going"]
    groups = data["comparison"]["groups"]
    assert [group["runs"] for group in groups] == [2, 1]
    assert groups[0]["mean"][0] == 1.5
    assert groups[1]["mean"] == [3.0, None, None]
    assert data["comparison"]["improvements"][0]["probability"][0] == 0.0
    assert len(read_payload([paths[0], paths[0]])["runs"]) == 1
    assert read_payload(paths[3:])["comparison"] is None


def test_names_of_runs_in_different_folders(tmp_path):
    paths = [finished(tmp_path / folder, "same").path for folder in "ab"]
    assert [run["name"] for run in read_payload(paths)["runs"]] == [str(path) for path in paths]


def test_the_commands_quote_the_folder(tmp_path):
    finished(tmp_path).path.rename(tmp_path / "a b")
    again = read_run(RunDirectory(tmp_path / "a b"))["commands"]["again"]
    assert again == f"evorl train '{tmp_path}/a b/config.yaml' name=again"


def effects(tmp_path, lines):
    directory = RunDirectory.create(tmp_path, "run")
    directory.append_lineage(lines)
    return mutation_effects(directory.lineage())


def test_mean_change_by_kind(tmp_path):
    adam, eve = initial(0), initial(1)
    lines = [
        *(birth(one, place, None) for place, one in enumerate((adam, eve))),
        evaluated(0, 0, 10.0),
        evaluated(1, 0, 5.0),
        birth(child(adam, 2, 1), 1, adam, copied=0),
        evaluated(0, 1, 12.0),
        evaluated(2, 1, 16.0),  # 6 better than its parent was, which gained 2 meanwhile
        birth(child(adam, 3, 2), 1, adam, copied=0),  # of its parent's generation 0, not 1
        evaluated(3, 2, 8.0),  # 2 worse
        evaluated(0, 2, 11.0),  # the parent gained 1 since generation 0
        birth(child(adam, 4, 3, "add layer"), 0, adam, copied=2),
        evaluated(4, 3, 41.0),  # 30 better; its parent is gone
        birth(child(adam, 5, 4, "parameters"), 1, adam, copied=2),  # not evaluated yet
    ]
    found = effects(tmp_path, lines)
    best, other = found["kinds"]
    assert (best["kind"], best["changes"], best["error"]) == ("add layer", [30.0], None)
    assert (other["kind"], other["ids"], other["changes"]) == (
        "hyperparameters",
        [2, 3],
        [6.0, -2.0],
    )
    assert (other["mean"], other["helped"]) == (2.0, 1)
    assert math.isclose(other["error"], math.sqrt(32 / 2))
    assert found["parents"]["changes"] == [2.0, 1.0]


def test_dead_children_and_runs_without_any(tmp_path):
    adam = initial(0)
    lines = [
        birth(adam, 0, None),
        evaluated(0, 0, 10.0),
        birth(child(adam, 1, 1), 0, adam),
        evaluated(1, 1, float("nan")),
    ]
    assert effects(tmp_path, lines) == {"kinds": [], "parents": None}


CODE = """
import sys
from pathlib import Path
from evorl.reporting.page import render
from evorl.reporting.run_data import read_payload
from evorl.reporting.server import find_inside

folder = Path(sys.argv[1])
data = read_payload([folder / "family", folder / "going"])
render({"kind": "report", "data": data, "live": None}, "two runs")
assert len(find_inside(folder)) == 2
print({"torch", "rich", "accelerate"} & {*sys.modules})
"""


def test_neither_a_report_nor_the_dashboard_load_torch(tmp_path):
    finished(tmp_path)
    going(tmp_path)
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
