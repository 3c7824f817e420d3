"""What is written after an evaluation."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.evolution.lineage import birth
from evorl.evolution.selection import MEAN
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NetworkSpec
from evorl.pipeline.record import Record
from evorl.runs.directory import RunDirectory
from tests.pipeline.snapshots import context_of
from tests.reference import population_of

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
    "best_episodes",
    "ids",
    "fitness",
    "alive",
    "loss",
    "exploration",
    "hyperparameters",
    "hidden",
    "shares",
}


def make_record(tmp_path):
    genomes = [
        Genome(20 + i, {"q": Architecture(hidden)}, DQN(lr=lr).hyperparameters)
        for i, (hidden, lr) in enumerate([((8,), 1e-3), ((8, 8), 1e-2), ((40,), 0.5)])
    ]
    population = population_of(genomes, NetworkSpec(4, 2), seed=1)
    return Record(RunDirectory.create(tmp_path, "run")), context_of(population)


def lines(record, name="metrics.jsonl"):
    return [
        json.loads(line, parse_constant=pytest.fail)
        for line in (record.directory.path / name).read_text().splitlines()
    ]


def evaluated(record, context, *fitness):
    snapshot = context.snapshot
    snapshot.fitness = np.array(fitness)
    snapshot.best = max(snapshot.best, max(fitness))
    snapshot.returns = snapshot.fitness[:, None] + np.array([-1.0, 1.0])
    snapshot.agent_steps = snapshot.agent_steps + 10
    snapshot.env_steps += 30
    record.evaluation(context)
    snapshot.generation += 1


def test_lines_of_metrics(tmp_path):
    record, context = make_record(tmp_path)
    snapshot = context.snapshot
    snapshot.loss = np.array([0.5, np.nan, np.inf])
    snapshot.exploration = np.array([1.0, 0.5, 0.05])
    snapshot.updates = 6
    snapshot.episodes, snapshot.evaluation_steps, snapshot.failures = 4, 77, 2
    snapshot.alive[0] = False
    with context.timer("act"):
        pass
    evaluated(record, context, -np.inf, 5.0, 3.0)
    evaluated(record, context, 1.0, 2.0, 3.0)
    first, second = lines(record)
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
    record, context = make_record(tmp_path)
    genomes = context.snapshot.genomes
    record.directory.append_lineage([birth(g, i, None) for i, g in enumerate(genomes)])
    record.births(context)  # nobody was born
    evaluated(record, context, -np.inf, 5.0, 3.0)
    child = birth(dataclasses.replace(genomes[1], id=23, parent=21, born=1), 0, genomes[1], 0)
    context.snapshot.births = [child]
    record.births(context)
    evaluated(record, context, 1.0, 2.0, 3.0)
    found = lines(record, "lineage.jsonl")
    assert [line["event"] for line in found] == [
        *["birth"] * 3,
        *["fitness"] * 3,
        *["birth"] * 1,
        *["fitness"] * 3,
    ]
    assert [line["genome"]["id"] for line in found if line["event"] == "birth"] == [20, 21, 22, 23]
    assert found[6] == json.loads(json.dumps(child))
    fitness = [line for line in found if line["event"] == "fitness"]
    assert [line["id"] for line in fitness] == [20, 21, 22] * 2
    assert fitness[0]["fitness"] is None
    assert fitness[0]["error"] is None
    assert fitness[1] == {
        "event": "fitness",
        "generation": 0,
        "env_steps": 30,
        "own_steps": 10,
        "place": 1,
        "id": 21,
        "fitness": 5.0,
        "error": 1.0,  # of returns 4 and 6
    }


def test_the_speed_of_a_resumed_run_leaves_out_what_was_before(tmp_path):
    record, context = make_record(tmp_path)
    context.snapshot.env_steps = context.before["env_steps"] = 10**12
    evaluated(record, context, 1.0, 5.0, 3.0)
    assert lines(record)[0]["steps_per_second"] < 10**9  # 30 steps


def test_standard_errors():
    returns = np.array([[1.0, 2.0, 6.0], [3.0, 3.0, 3.0], [0.0, -np.inf, 1.0]])
    found = MEAN.errors(returns)
    assert found[:2] == pytest.approx([np.sqrt(7 / 3), 0.0])
    assert np.isnan(found[2])
    assert np.isnan(MEAN.errors(returns[:, :1])).all()
