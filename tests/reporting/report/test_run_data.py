"""A run directory as plain data: finished, going on, just begun, damaged."""

import json

import pytest

from evorl.errors import EvorlError, RunError
from evorl.reporting.report.run_data import read_payload, read_run, unique_names
from evorl.runs.directory import LINEAGE, METRICS, RunDirectory
from tests.synthetic import FAMILY, birth, child, evaluated, family_lines, make_run, saved

from .runs import finished, going, just_begun, metrics, snapshot


def agent(run, id):
    return next(agent for agent in run["agents"] if agent["id"] == id)


def test_a_finished_run(tmp_path):
    directory = finished(tmp_path)
    before = snapshot(tmp_path)
    run = read_run(directory)
    assert snapshot(tmp_path) == before
    assert run["state"] == "finished"
    assert run["headline"]["score"] == {
        "mean": [450.0, 445.0, 455.0],
        "iqm": [450.0, 445.0, 455.0],
        "episodes": 100,
    }
    assert run["headline"]["env_steps"] == 1000
    assert run["best"] == {
        "id": 4,
        "generation": 4,
        "fitness": 404.0,
        "confirmed": 398.5,
        "own_steps": 5000,
    }
    assert run["rows"]["generation"] == [0, 1, 2, 3, 4]
    assert run["rows"]["env_steps"] == [4000, 8000, 12000, 16000, 20000]
    assert run["rows"]["rate"] == [2000.0] * 5
    three = agent(run, 3)
    assert (three["parent"], three["born"], three["left"], three["start"]) == (2, 2, 1, 2)
    assert three["fitness"] == [302.0, 303.0]
    assert three["error"] == [1.0, 1.0]
    assert three["architecture"] == "64-96 relu"
    assert three["change"] == "hidden 64-64 → 64-96"
    assert three["hyperparameters"] == {"lr": 0.00125, "gamma": 0.99, "batch_size": 128}
    assert run["fixed"]["tau"] == FAMILY[0].hyperparameters["tau"]
    json.dumps(run, allow_nan=False)


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


@pytest.mark.parametrize("text", [None, "", '{"event": "bir'])
def test_a_run_without_agents_can_be_read_only_while_it_runs(tmp_path, text):
    directory = just_begun(tmp_path)
    (directory.path / LINEAGE).unlink()
    if text is not None:
        (directory.path / LINEAGE).write_text(text)
    with pytest.raises(RunError, match=r"lineage\.jsonl"):
        read_run(directory)
    with directory.locked():
        run = read_run(directory)
    assert (run["state"], run["agents"], run["rows"]["ids"]) == ("running", [], [])


def test_a_report_of_a_run_without_a_generation_is_for_running_ones(tmp_path):
    directory = just_begun(tmp_path)
    with pytest.raises(RunError, match=r"before its first generation ended.* evorl resume"):
        read_payload([directory.path, finished(tmp_path).path])
    with directory.locked():
        assert read_payload([directory.path])["runs"][0]["state"] == "running"


def test_half_a_last_line_is_left_out(tmp_path):
    directory = going(tmp_path)
    whole = read_run(directory)
    for name, line in ((METRICS, metrics(3)), (LINEAGE, evaluated(0, 3))):
        with (directory.path / name).open("a") as file:
            file.write(json.dumps(line)[:40])
    again = read_run(directory)
    assert again | {"updated": 0} == whole | {"updated": 0}


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
    run = read_run(directory)
    assert run["rows"]["generation"] == [0, 1, 2]
    assert "1 generation of" in run["warnings"][0]


def test_time_goes_on_where_a_run_was_resumed(tmp_path):
    directory = going(tmp_path, generations=2)
    directory.append_lineage([birth(FAMILY[3], 1, FAMILY[2])])
    directory.append_metrics(metrics(2, seconds=1.0))
    rows = read_run(directory)["rows"]
    assert rows["seconds"] == [2.0, 4.0, 5.0]
    assert rows["rate"] == [2000.0, 2000.0, 4000.0]


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
        (lambda path: (path / METRICS).write_text("{}\n"), "line 1: not metrics of this version"),
        (lambda path: (path / METRICS).write_text("\0\n"), "line 1: not metrics of this version"),
        (
            lambda path: (path / METRICS).write_text(
                json.dumps(metrics(0, fitness=[1.0, 2.0, 3.0])) + "\n"
            ),
            "not equally long",
        ),
        (
            lambda path: (path / METRICS).write_text(
                f"{json.dumps(metrics(1))}\n{json.dumps(metrics(0))}\n"
            ),
            "line 2: the generations go back",
        ),
        (lambda path: (path / LINEAGE).write_text("no\n"), "lineage.jsonl: line 1"),
        (lambda path: (path / LINEAGE).unlink(), "lineage.jsonl: cannot be read"),
        (lambda path: (path / "summary.json").write_text("{"), "not a summary"),
        (lambda path: (path / "config.yaml").write_text("env: ["), "invalid YAML"),
        (lambda path: (path / "best" / "agent.json").write_text("[]"), "agent.json"),
        (lambda path: (path / "best" / "agent.json").write_text("{}"), "not an agent"),
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
    assert [group["runs"] for group in groups] == [["a-1", "a-2"], ["b"]]
    assert groups[0]["mean"][0] == 1.5
    assert groups[1]["mean"] == [3.0, None, None]
    assert data["comparison"]["improvements"][0]["probability"][0] == 0.0
    with pytest.raises(RunError, match="given twice"):
        read_payload([paths[0], paths[0]])
    assert read_payload(paths[3:])["comparison"] is None


def test_names_of_runs_in_different_folders(tmp_path):
    paths = [tmp_path / "a" / "same", tmp_path / "b" / "same", tmp_path / "other"]
    assert unique_names(paths) == [str(paths[0]), str(paths[1]), "other"]


def test_the_commands_quote_the_folder(tmp_path):
    finished(tmp_path).path.rename(tmp_path / "a b")
    again = read_run(RunDirectory(tmp_path / "a b"))["commands"]["again"]
    assert again == f"evorl train '{tmp_path}/a b/config.yaml' name=again"
