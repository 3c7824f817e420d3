"""Which mutations helped, against figures worked out by hand."""

import math
from pathlib import Path

from evorl.evolution.lineage import read_lineage
from evorl.reporting.report.agents import mutation_effects
from evorl.runs.directory import RunDirectory
from tests.synthetic import birth, child, evaluated, initial


def effects(tmp_path: Path, lines):
    directory = RunDirectory.create(tmp_path, "run")
    directory.append_lineage(lines)
    return mutation_effects(read_lineage(directory.path / "lineage.jsonl"))


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
    assert (best["kind"], best["count"], best["mean"], best["error"]) == (
        "add layer",
        1,
        30.0,
        None,
    )
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
