"""One poisoned run in a folder is listed as damaged, whatever is in it, and the others stay."""

import json

import pytest

from evorl.runs.status import find_runs, is_run
from tests.synthetic import make_family_run

LINE = {"generation": 3, "env_steps": 500, "evaluation_steps": 100, "best": 9.5}


@pytest.fixture
def run(tmp_path):
    """A stopped run beside a finished one."""
    make_family_run(tmp_path, "good")
    directory = make_family_run(tmp_path, "bad")
    directory.remove_summary()
    directory.append_metrics(LINE)
    assert [state.state for state in find_runs(tmp_path)].count("finished") == 1
    return directory.path


def metrics(text):
    return lambda run: (run / "metrics.jsonl").write_text(text + "\n")


def config(old, new):
    def change(run):
        text = (run / "config.yaml").read_text()
        assert old in text
        (run / "config.yaml").write_text(text.replace(old, new))

    return change


def bomb(run):
    """Nine of nine of nine … of a letter."""
    lines = ["a0: &a0 [x]\n"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 30)]
    (run / "config.yaml").write_text("".join(lines) + "env: {id: *a29}\n")


POISON = {
    "infinite steps": metrics(json.dumps(LINE | {"env_steps": float("inf")})),
    "huge steps": metrics(json.dumps(LINE).replace("500", "1" + 400 * "0")),
    "endless steps": metrics(json.dumps(LINE).replace("500", "1" + 9000 * "0")),
    "text": metrics(json.dumps(LINE | {"best": "x"})),
    "deep": metrics("[" * 100_000),
    "no object": metrics("7"),
    "anchors": bomb,
    "deep config": lambda run: (run / "config.yaml").write_text("[" * 100_000),
    "not UTF-8": lambda run: (run / "config.yaml").write_bytes(b"name: \xff"),
    "no budget": config("env_steps: 100000", "env_steps: many"),
    "failure of nothing": lambda run: (run / "failure.json").write_text("{}"),
    "actors of nothing": metrics(json.dumps(LINE | {"actors": [1]})),
    "summary of nothing": lambda run: (run / "summary.json").write_text("{}"),
}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
def test_poisoned_runs(tmp_path, run, poison):
    poison(run)
    states = {state.path.name: state for state in find_runs(tmp_path)}
    assert states["good"].state == "finished"
    assert states["bad"].state == "damaged"
    assert "\n" not in states["bad"].problem
    assert str(run) in states["bad"].problem
    json.dumps(states["bad"].to_json(), allow_nan=False)


def test_a_run_is_known_by_its_files(tmp_path):
    (tmp_path / "config.yaml").write_text("env: {id: CartPole-v1}\n")
    assert not is_run(tmp_path)
    (tmp_path / "lineage.jsonl").touch()
    assert is_run(tmp_path)
