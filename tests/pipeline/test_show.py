"""What a person sees at a generation's end."""

import dataclasses

import numpy as np

from evorl.algorithms.dqn import DQN
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NetworkSpec
from evorl.pipeline.record import Show
from evorl.reporting.console import Console
from tests.pipeline.snapshots import context_of
from tests.reference import population_of

VALUES = DQN().hyperparameters


def show_all(quiet=False, verbose=False):
    """Two generations of three agents, between which one is replaced."""
    genomes = [Genome(20 + i, {"q": Architecture((8,))}, VALUES) for i in range(3)]
    context = context_of(population_of(genomes, NetworkSpec(4, 2), seed=1))
    show, snapshot = Show(Console(quiet, verbose)), context.snapshot
    snapshot.best, snapshot.env_steps = 5.5, 1000
    for generation in (3, 4):
        snapshot.generation, snapshot.finished = generation + 1, generation == 4
        snapshot.evolved = not snapshot.finished
        snapshot.env_steps += 30
        snapshot.fitness = np.array([1.0, 5.0, 3.0])
        snapshot.returns = snapshot.fitness[:, None] + np.array([-1.0, 1.0])
        show.evaluation(context)
        born = dataclasses.replace(genomes[1], id=23, parent=21, born=4, mutation="parameters")
        snapshot.genomes = [born, *genomes[1:]]


def test_a_table_per_generation(capsys):
    show_all()
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert [line.split()[:4] for line in out.splitlines()] == [
        ["generation", "3", "1,030", "steps"],
        ["rank", "agent", "parent", "mutation"],
        ["1", "21", "—", "initial"],
        ["2", "22", "—", "initial"],
        ["3", "20", "—", "initial"],
        ["generation", "4", "1,060", "steps"],
        ["rank", "agent", "parent", "mutation"],
        ["1", "21", "—", "initial"],
        ["2", "22", "—", "initial"],
        ["3", "23", "21", "parameters"],
    ]


def test_verbose_adds_hyperparameters(capsys):
    show_all(verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("  hyperparameters") for line in lines) == 2


def test_quiet_says_nothing(capsys):
    show_all(quiet=True)
    assert capsys.readouterr() == ("", "")
    show_all(quiet=True, verbose=True)
    assert capsys.readouterr() == ("", "")
