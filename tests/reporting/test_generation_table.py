"""What a generation looks like as text."""

import io
import re

import numpy as np
import pytest

from evorl.genome import Architecture, Genome
from evorl.reporting.console import as_text
from evorl.reporting.generation_table import (
    Evaluated,
    actors_line,
    headline as headline_text,
    hyperparameter_line,
    ranking as ranking_table,
)
from tests.synthetic import FAMILY, initial

TABLE = """\
  rank  agent  parent  mutation         fitness ± error         lr  architecture
     1      2       0  hyperparameters    201.5 ±  12.2    0.00125  64-64 relu
     2      0       —  initial             10.0 ±   1.0      0.001  64-64 relu
     3      1       —  initial             dead             0.0005  64-64 relu
"""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def headline(found, best):
    return as_text(io.StringIO(), headline_text(found, best))


def ranking(found, width=80, **options):
    return as_text(io.StringIO(), ranking_table(found, **options), width=width).splitlines()


def some(fitness=(10.0, -np.inf, 201.5), errors=(1.0, np.nan, 12.25), ids=(0, 1, 2), generation=1):
    genomes = [FAMILY[id] for id in ids]
    return Evaluated(generation, 12_000, genomes, np.array(fitness), np.array(errors))


def many(agents):
    genomes = [initial(id) for id in range(agents)]
    return Evaluated(0, 100, genomes, np.arange(agents, dtype=float), np.ones(agents))


def test_the_best_comes_first():
    assert ranking(some()) == TABLE.splitlines()


def test_columns_stay_in_their_place():
    first = ranking(some())
    second = ranking(some((-250.4, 1.0, 0.0), (3.0, 100.0, np.nan)))
    assert len({line.index("64-64") for line in (*first[1:], *second[1:])}) == 1
    assert first[0].index("architecture") == first[1].index("64-64")
    assert {line.index("±") for line in (*first, *second) if "±" in line} == {first[0].index("±")}


def test_digits_go_by_the_error():
    assert "0.123 ± 0.010" in ranking(some((0.123, 0.1, 0.05), (0.01, 0.01, 0.01)))[1]
    assert "   415 ±    19" in ranking(some((415.4, 243.9, 10.2), (19.1, 34.5, 2.0)))[1]
    assert "  best so far 421 " in headline(some((415.4, 10.0, -np.inf), (19.1, 18.5, 2.0)), 420.6)


TOLD = {
    "alive": 2,
    "messages": 20,
    "lag": 3.75,
    "max_lag": 6,
    "queue": 1.8,
    "frames_per_second": 18442.4,
    "refused": {"generation": 6},
    "gone": 0,
}


def told(always=False, **changes):
    line = actors_line(TOLD | changes, 2, always)
    return None if line is None else as_text(io.StringIO(), line)


def test_actors_are_told_of_if_something_is_off():
    assert told() is None
    usual = "lag 3.8 (at most 6), queue 1.8, 18,442 frames per second"
    assert told(always=True) == f"  actors: 2 of 2 alive, {usual}"
    assert told(alive=1) == f"  actors: 1 of 2 alive, {usual}"
    assert told(gone=1) == f"  actors: 2 of 2 alive (1 gone), {usual}"
    assert told(always=True, alive=3) == f"  actors: 3 alive, {usual}"
    refused = {"generation": 6, "lag": 4, "range": 1}
    assert told(refused=refused) == f"  actors: 2 of 2 alive, {usual}, refused: 4 lag, 1 range"


@pytest.mark.parametrize("agents", [1, 9, 10])
def test_small_populations_are_shown_whole(agents):
    assert len(ranking(many(agents))) == 1 + agents


def test_large_populations_are_shortened():
    lines = ranking(many(33))
    assert [line.split()[0] for line in lines[1:9]] == [str(rank) for rank in range(1, 9)]
    assert lines[9].strip() == "… 24 more"
    assert lines[10].split()[:2] == ["33", "0"]
    assert len(lines) == 11
    assert len(ranking(many(33), everyone=True)) == 34


def test_headline():
    assert headline(some(), 210.0) == (
        "generation 1  12,000 steps  mean fitness 105.8  best so far 210.0  1 dead"
    )
    dead = some((-np.inf,) * 3)
    assert headline(dead, -np.inf) == "generation 1  12,000 steps  all agents are dead"


def test_colours_change_nothing_else(monkeypatch):
    parts = headline_text(some(), 210.0), ranking_table(some())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    painted = as_text(Terminal(), *parts, width=120)
    assert "\x1b[32m  201.5 ±  12.2\x1b[0m" in painted
    plain = re.sub(r"\x1b\[\d+m", "", painted).splitlines()
    assert [line.rstrip() for line in plain] == as_text(io.StringIO(), *parts).splitlines()


def test_any_algorithm_with_any_networks():
    networks = {"actor": Architecture((64, 64)), "critic": Architecture((128, 96), "tanh")}
    genomes = [Genome(0, networks, {"actor_lr": 0.001, "critic_lr": 0.01})]
    found = Evaluated(0, 100, genomes, np.array([1.5]), np.array([0.25]))
    wide = ranking(found, width=120)
    assert wide[0].split()[-2:] == ["actor_lr", "architecture"]
    assert wide[1].endswith("0.001  actor 64-64 relu, critic 128-96 tanh")
    narrow = ranking(found, width=80)
    assert max(map(len, narrow)) <= 80
    assert " ".join(" ".join(narrow[1:]).split()) == " ".join(wide[1].split())
    assert hyperparameter_line(genomes) == "  hyperparameters: the same for all agents"


def test_an_algorithm_without_hyperparameters():
    found = Evaluated(0, 1, [Genome(7, {"q": Architecture()}, {})], np.ones(1), np.ones(1))
    assert " ".join(ranking(found)[1].split()) == "1 7 — initial 1.0 ± 1.0 64-64 relu"


def test_hyperparameter_line():
    genomes = [FAMILY[0], FAMILY[2], FAMILY[4]]
    assert hyperparameter_line(genomes) == (
        "  hyperparameters: lr 0.001 to 0.00125, gamma 0.99 to 0.995, batch_size 64 to 128"
    )
    assert hyperparameter_line([FAMILY[0]]) == "  hyperparameters: the same for all agents"
