"""Which agent is kept, and what is written and said of the others."""

import json

import numpy as np
import pytest
import torch

from evorl.agent_file import load_agent
from evorl.algorithms.dqn import DQN
from evorl.config import Hyperparameters
from evorl.console import Console, generation_line
from evorl.genome import Architecture, Genome
from evorl.networks.layout import Problem
from evorl.pipeline.context import Context
from evorl.pipeline.track import Track
from evorl.population import Population
from evorl.run_directory import RunDirectory

torch.set_num_threads(1)

LINE = {
    "generation",
    "env_steps",
    "evaluation_steps",
    "updates",
    "episodes",
    "seconds",
    "steps_per_second",
    "fitness",
    "alive",
    "loss",
    "exploration",
    "hyperparameters",
    "hidden",
    "shares",
}


def make_track(tmp_path, quiet=True):
    genomes = [
        Genome(i, Architecture(hidden), Hyperparameters(lr=lr).model_dump())
        for i, (hidden, lr) in enumerate([((8,), 1e-3), ((8, 8), 1e-2), ((40,), 0.5)])
    ]
    population = Population(genomes, Problem(4, 2), DQN(), seed=1)
    directory = RunDirectory.create(tmp_path, "run")
    return Track(population, directory, Console(quiet), "CartPole-v1"), Context(3)


def lines(track):
    return [
        json.loads(line, parse_constant=pytest.fail)
        for line in (track.directory.path / "metrics.jsonl").read_text().splitlines()
    ]


def evaluated(track, context, *fitness):
    context.fitness = np.array(fitness)
    context.agent_steps = context.agent_steps + 10
    track(context)
    context.generation += 1


def kept(track):
    return track.directory.path / "best"


def test_the_best_yet_is_kept_with_its_weights(tmp_path):
    track, context = make_track(tmp_path)
    evaluated(track, context, 1.0, 5.0, 3.0)
    agent = load_agent(kept(track))
    assert agent.genome == track.population.genomes[1]
    assert agent.facts == {
        "env": "CartPole-v1",
        "agent": 1,
        "fitness": 5.0,
        "generation": 0,
        "env_steps": 30,
    }
    for name, value in track.population.state(1).online.items():
        assert torch.equal(agent.parameters[name], value)
    evaluated(track, context, 4.9, -9.0, 4.0)  # no better: stays
    assert load_agent(kept(track)).facts["generation"] == 0
    evaluated(track, context, 0.0, 0.0, 5.0)  # as good, and later: replaces it
    assert load_agent(kept(track)).facts["agent"] == 2
    assert track.best.genome.id == 2
    assert track.best_fitness == 5.0


def test_later_learning_does_not_move_what_was_kept(tmp_path):
    track, context = make_track(tmp_path)
    evaluated(track, context, 5.0, 1.0, 1.0)
    before = {name: value.clone() for name, value in track.best.parameters.items()}
    for group in track.population.groups:
        group.theta.add_(1)
    assert all(torch.equal(track.best.parameters[name], value) for name, value in before.items())


def test_negative_fitness_is_kept_too_and_the_dead_never(tmp_path):
    track, context = make_track(tmp_path)
    evaluated(track, context, -np.inf, -np.inf, -np.inf)
    assert track.best is None
    assert not kept(track).exists()
    evaluated(track, context, -np.inf, -700.0, -800.0)
    assert load_agent(kept(track)).facts["agent"] == 1


def test_lines_of_metrics(tmp_path):
    track, context = make_track(tmp_path)
    context.loss = np.array([0.5, np.nan, np.inf])
    context.epsilon = np.array([1.0, 0.5, 0.05])
    context.agent_updates = np.array([1, 2, 3])
    context.episodes, context.evaluation_steps = 4, 77
    track.population.alive[0] = False
    with context.timer("act"):
        pass
    evaluated(track, context, -np.inf, 5.0, 3.0)
    evaluated(track, context, 1.0, 2.0, 3.0)
    first, second = lines(track)
    assert set(first) == set(second) == LINE
    assert [line["generation"] for line in (first, second)] == [0, 1]
    assert [line["env_steps"] for line in (first, second)] == [30, 60]
    assert (first["updates"], first["episodes"], first["evaluation_steps"]) == (6, 4, 77)
    assert first["fitness"] == [None, 5.0, 3.0]
    assert first["alive"] == [False, True, True]
    assert first["loss"] == [0.5, None, None]
    assert first["exploration"] == [1.0, 0.5, 0.05]
    assert first["hyperparameters"]["lr"] == [1e-3, 1e-2, 0.5]
    assert set(first["hyperparameters"]) == set(Hyperparameters.model_fields)
    assert first["hidden"] == [[8], [8, 8], [40]]
    assert first["shares"] == {"act": 1.0}
    assert 0 <= first["seconds"] <= second["seconds"]
    assert first["steps_per_second"] > 0


def test_what_is_said(tmp_path, capsys):
    track, context = make_track(tmp_path, quiet=False)
    evaluated(track, context, 1.0, 5.0, 3.0)
    evaluated(track, context, 2.0, -np.inf, 3.0)
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == (
        [
            "generation",
            "0",
            "30",
            "steps",
            "best",
            "5.0",
            "(agent",
            "1)",
            "mean",
            "3.0",
            "worst",
            "1.0",
            "best",
            "so",
            "far",
            "5.0",
        ]
    )
    assert second.split() == [
        "generation",
        "1",
        "60",
        "steps",
        "best",
        "3.0",
        "(agent",
        "2)",
        "mean",
        "2.5",
        "worst",
        "2.0",
        "best",
        "so",
        "far",
        "5.0,",
        "1",
        "dead",
    ]
    assert "all agents are dead" in generation_line(0, 10, np.full(2, -np.inf), -np.inf)


def test_a_fitness_that_is_not_a_number_does_not_hide_the_best(tmp_path):
    track, context = make_track(tmp_path)
    evaluated(track, context, 1.0, np.nan, 3.0)
    assert load_agent(kept(track)).facts["agent"] == 2
