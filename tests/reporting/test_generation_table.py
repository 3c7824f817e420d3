"""What a generation looks like as text."""

import re

import numpy as np
import pytest

from evorl.evolution.lineage import birth
from evorl.reporting.colour import Ink
from evorl.reporting.generation_table import (
    Evaluated,
    birth_lines,
    headline,
    hyperparameter_line,
    ranking,
    time_line,
)
from tests.synthetic import FAMILY, child, initial

TABLE = """\
  rank  agent  parent  mutation         fitness ± error        lr  architecture
     1      2       0  hyperparameters    201.5 ±  12.2    0.00125  64-64 relu
     2      0       —  initial             10.0 ±   1.0      0.001  64-64 relu
     3      1       —  initial             dead              0.0005  64-64 relu
"""


def some(fitness=(10.0, -np.inf, 201.5), errors=(1.0, np.nan, 12.25), ids=(0, 1, 2), generation=1):
    genomes = [FAMILY[id] for id in ids]
    return Evaluated(generation, 12_000, genomes, np.array(fitness), np.array(errors))


def many(agents):
    genomes = [initial(id) for id in range(agents)]
    return Evaluated(0, 100, genomes, np.arange(agents, dtype=float), np.ones(agents))


def test_the_best_comes_first():
    assert [line.split() for line in ranking(some())] == [
        line.split() for line in TABLE.splitlines()
    ]


def test_columns_stay_in_their_place():
    first = ranking(some())
    second = ranking(some((-250.4, 1.0, 0.0), (3.0, 100.0, np.nan)))
    assert len({line.index("64-64") for line in (*first[1:], *second[1:])}) == 1
    assert first[0].index("architecture") == first[1].index("64-64")
    assert {line.index("±") for line in (*first, *second) if "±" in line} == {first[0].index("±")}


def test_small_fitness_gets_decimals():
    assert "0.123 ± 0.010" in ranking(some((0.123, 0.1, 0.05), (0.01, 0.01, 0.01)))[1]


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


def test_colours_change_nothing_else():
    plain = [headline(some(), 210.0), *ranking(some()), *birth_lines(BIRTHS, OLD)]
    ink = Ink(True)
    painted = [headline(some(), 210.0, ink), *ranking(some(), ink), *birth_lines(BIRTHS, OLD, ink)]
    assert painted != plain
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in painted] == plain


def test_time_line():
    seconds = {"step": 1.0, "update": 3.0, "evolve": 0.0}
    assert time_line(seconds, 8000) == "  time: 4.0 s, 2,000 steps/s; update 75 %, step 25 %"
    assert time_line({}, 8000) == "  time: nothing was measured"


def test_hyperparameter_line():
    genomes = [FAMILY[0], FAMILY[2], FAMILY[4]]
    assert hyperparameter_line(genomes) == (
        "  hyperparameters: lr 0.001 to 0.00125, gamma 0.99 to 0.995, batch_size 64 to 128"
    )
    assert hyperparameter_line([FAMILY[0]]) == "  hyperparameters: the same for all agents"


OLD = [FAMILY[0], FAMILY[1]]
BIRTHS = [
    birth(FAMILY[2], 1, FAMILY[0], 0),
    birth(child(FAMILY[0], 9, 8, lr=0.002), 0, FAMILY[0], 3),
]


def test_birth_lines():
    assert list(birth_lines(BIRTHS, OLD)) == [
        "  birth: agent 2 replaces 1, child of 0:"
        " hyperparameters (lr 0.001 → 0.00125, batch_size 64 → 128)",
        "  birth: agent 9 replaces 0, child of 0 as of generation 3:"
        " hyperparameters (lr 0.001 → 0.002)",
    ]
    assert list(birth_lines([], OLD)) == ["  births: none, all agents stay"]
