"""Labels of a process, from its rank and from EVORL_LABELS."""

import pytest

from evorl.distributed.labels import VARIABLE, labels_of, match_everywhere
from evorl.errors import ConfigError


def test_by_rank(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert labels_of(0, 1) == {"standalone", "node.0", "main"}
    assert labels_of(0, 4) == {"distributed", "node.0", "main"}
    assert labels_of(3, 4) == {"distributed", "node.3"}


def test_by_the_environment_for_all_for_one_and_for_a_range(monkeypatch):
    monkeypatch.setenv(VARIABLE, "gpu;1=evaluator; 2-3=collector;2=fast.disk")
    own = [labels_of(rank, 4) - {"distributed", "main", f"node.{rank}"} for rank in range(4)]
    assert own == [
        {"gpu"},
        {"gpu", "evaluator"},
        {"gpu", "collector", "fast.disk"},
        {"gpu", "collector"},
    ]


@pytest.mark.parametrize(
    "value",
    [
        "gpu;",
        ";",
        "1=",
        "=x",
        "x=1",
        "1-=x",
        "3-2=x",
        "-1=x",
        "a b",
        "1=2",
        "1,2=x",
        "gpu,cpu",
        "ü",
    ],
)
def test_a_malformed_value_is_refused_in_one_line(monkeypatch, value):
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ConfigError, match=r"^EVORL_LABELS: expected .*, got '.*'$"):
        labels_of(7, 8)


@pytest.mark.parametrize("label", ["main", "node.1", "standalone", "distributed", "async"])
def test_labels_that_the_rank_gives_are_nobody_elses_to_give(monkeypatch, label):
    monkeypatch.setenv(VARIABLE, f"1={label}")
    with pytest.raises(ConfigError, match=f"EVORL_LABELS: {label} is not yours to give; expected"):
        labels_of(0, 2)


def test_what_all_processes_have_is_known_to_match_everywhere():
    labels = {"distributed", "node.1", "gpu"}
    assert match_everywhere(labels, ["distributed"])
    assert match_everywhere(labels, ["node.*"])
    assert match_everywhere(labels, ["*"])
    assert not match_everywhere(labels, ["node.1", "standalone"])
    assert not match_everywhere(labels, ["gpu"])
