"""What is written after an evaluation."""

import json

import numpy as np
import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.genome import Architecture, Genome
from evorl.networks.layout import Problem
from evorl.pipeline.context import Context
from evorl.pipeline.evaluate import standard_errors
from evorl.pipeline.metrics import Track
from evorl.population.population import Population
from evorl.runs.directory import RunDirectory
from tests.pipeline.people import together

torch.set_num_threads(1)

LINE = {
    "generation",
    "env_steps",
    "evaluation_steps",
    "updates",
    "episodes",
    "failures",
    "seconds",
    "steps_per_second",
    "best",
    "ids",
    "fitness",
    "alive",
    "loss",
    "exploration",
    "hyperparameters",
    "hidden",
    "shares",
}


class Fame:
    """A hall of fame that takes every fitness for granted."""

    score = -np.inf

    def __call__(self, context):
        self.score = max(self.score, np.nan_to_num(context.fitness, nan=-np.inf).max())


def make_track(tmp_path):
    genomes = [
        Genome(20 + i, Architecture(hidden), DQN(lr=lr).hyperparameters)
        for i, (hidden, lr) in enumerate([((8,), 1e-3), ((8, 8), 1e-2), ((40,), 0.5)])
    ]
    everybody = together(Population(genomes, Problem(4, 2), DQN(), seed=1))
    directory = RunDirectory.create(tmp_path, "run")
    return Track(everybody, Fame(), directory), Context(3)


def lines(track, name="metrics.jsonl"):
    return [
        json.loads(line, parse_constant=pytest.fail)
        for line in (track.directory.path / name).read_text().splitlines()
    ]


def evaluated(track, context, *fitness):
    context.fitness = np.array(fitness)
    context.returns = context.fitness[:, None] + np.array([-1.0, 1.0])
    context.agent_steps = context.agent_steps + 10
    context.env_steps += 30
    track.hall(context)
    track(context)
    context.generation += 1


def test_lines_of_metrics(tmp_path):
    track, context = make_track(tmp_path)
    context.loss = np.array([0.5, np.nan, np.inf])
    context.epsilon = np.array([1.0, 0.5, 0.05])
    context.updates = 6
    context.episodes, context.evaluation_steps, context.failures = 4, 77, 2
    track.everybody.alive[0] = False
    with context.timer("act"):
        pass
    evaluated(track, context, -np.inf, 5.0, 3.0)
    evaluated(track, context, 1.0, 2.0, 3.0)
    first, second = lines(track)
    assert set(first) == set(second) == LINE
    assert [line["generation"] for line in (first, second)] == [0, 1]
    assert [line["env_steps"] for line in (first, second)] == [30, 60]
    assert (first["updates"], first["episodes"], first["evaluation_steps"]) == (6, 4, 77)
    assert first["failures"] == 2
    assert first["ids"] == [20, 21, 22]
    assert first["best"] == 5.0
    assert first["fitness"] == [None, 5.0, 3.0]
    assert first["alive"] == [False, True, True]
    assert first["loss"] == [0.5, None, None]
    assert first["exploration"] == [1.0, 0.5, 0.05]
    assert first["hyperparameters"]["lr"] == [1e-3, 1e-2, 0.5]
    assert set(first["hyperparameters"]) == set(DQN.hyperparameter_fields())
    assert first["hidden"] == {"q": [[8], [8, 8], [40]]}
    assert first["shares"] == {"act": 1.0}
    assert 0 <= first["seconds"] <= second["seconds"]
    assert first["steps_per_second"] > 0


def test_lines_of_lineage(tmp_path):
    track, context = make_track(tmp_path)
    evaluated(track, context, -np.inf, 5.0, 3.0)
    evaluated(track, context, 1.0, 2.0, 3.0)
    found = lines(track, "lineage.jsonl")
    assert [line["id"] for line in found] == [20, 21, 22] * 2
    assert found[0]["fitness"] is None
    assert found[0]["error"] is None
    assert found[1] == {
        "event": "fitness",
        "generation": 0,
        "env_steps": 30,
        "own_steps": 10,
        "place": 1,
        "id": 21,
        "fitness": 5.0,
        "error": 1.0,  # of returns 4 and 6
    }


def test_the_speed_of_a_run_that_goes_on_leaves_out_what_was_before(tmp_path):
    track, context = make_track(tmp_path)
    context.env_steps = 10**12
    track.begin(context)
    evaluated(track, context, 1.0, 5.0, 3.0)
    assert lines(track)[0]["steps_per_second"] < 10**9  # 30 steps


def test_standard_errors():
    returns = np.array([[1.0, 2.0, 6.0], [3.0, 3.0, 3.0], [0.0, -np.inf, 1.0]])
    found = standard_errors(returns)
    assert found[:2] == pytest.approx([np.sqrt(7 / 3), 0.0])
    assert np.isnan(found[2])
    assert np.isnan(standard_errors(returns[:, :1])).all()
