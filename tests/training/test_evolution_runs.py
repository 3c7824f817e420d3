"""Whole runs that evolve, tiny ones: repeatable, counted, and with a lineage that adds up."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from evorl.config import load_config, parse_config
from evorl.errors import RunError
from evorl.evolution.lineage import read_lineage
from evorl.evolution.schedule import Schedule, Segment, config_for_schedule
from evorl.genome import Architecture
from evorl.runs.agent import read_agent
from evorl.training.trainer import train

torch.set_num_threads(1)

BASE = {
    "env": {"id": "CartPole-v1", "num_envs": 2},
    "algorithm": {"learning_starts": 16, "batch_size": 8, "epsilon_steps": 100},
    "network": {"hidden": [16]},
    "replay": {"capacity": 300},
    "population": {"size": 4},
    "evaluation": {
        "every": 25,
        "episodes": 2,
        "confirm_episodes": 3,
        "final_episodes": 4,
        "max_steps": 40,
        "final_max_steps": 40,
    },
    "evolution": {"selection": {"fraction": 0.5, "min_gap": 0.0}, "mutation": {"activation": 0.2}},
    "budget": {"env_steps": 1200},
}
GENERATIONS = 6


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def tiny(folder, *overrides):
    return parse_config(BASE, [f"run.folder={folder}", *overrides])


def run(folder, *overrides):
    return train(tiny(folder, *overrides)).directory


def metrics(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def summary(path):
    return json.loads((path / "summary.json").read_text())


def timeless(lines):
    times = ("seconds", "steps_per_second", "shares")
    return [{name: value for name, value in line.items() if name not in times} for line in lines]


def assert_same_run(left, right):
    for name in ("lineage.jsonl", "best/weights.safetensors", "best/agent.json"):
        assert (left / name).read_bytes() == (right / name).read_bytes(), name
    assert timeless(metrics(left)) == timeless(metrics(right))
    assert timeless([summary(left)]) == timeless([summary(right)])


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return run(tmp_path_factory.mktemp("usual"))


KINDS = [
    [],
    ["evolution.selection={kind: tournament, size: 2, min_gap: 0.0}"],
    ["evolution.selection.min_gap=1.0", "evolution.selection.eval_loop=2"],
    ["evolution.explore.strategy=pb2"],
    ["evolution.explore.strategy=perturb", "population.init=sample"],
    ["replay.share=agent"],
    ["replay.kind=prioritized"],
    ["replay.kind=prioritized", "replay.share=agent", "algorithm.n_step=3"],
    ["network.layer_norm=true", "network.dueling=true", "evolution.mutation.architecture=1"],
    ["evolution.method=random_search"],
    ["budget.counts=all", "budget.env_steps=1500"],
    ["population.size=5", "evolution.mutation={parameters: 1, architecture: 0}"],
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: " ".join(options)[:60])
def test_kinds_of_runs_end_and_repeat(tmp_path, options):
    path = run(tmp_path / "a", *options)
    assert np.isfinite(summary(path)["score"]["mean"]["value"])
    assert_same_run(path, run(tmp_path / "b", *options))
    read_lineage(path / "lineage.jsonl")


def test_a_rerun_from_the_written_configuration_is_the_same_run(usual, tmp_path):
    config = load_config(usual / "config.yaml", [f"run.folder={tmp_path}"])
    assert_same_run(usual, train(config).directory)


def test_the_lineage_adds_up(usual):
    lineage = read_lineage(usual / "lineage.jsonl")
    lines = metrics(usual)
    assert len(lines) == GENERATIONS
    everybody = {id for line in lines for id in line["ids"]}
    assert everybody == set(lineage.births) == set(range(4 + 2 * (GENERATIONS - 1)))
    for line in lines:
        for place, id in enumerate(line["ids"]):
            birth = lineage.births[id]
            assert birth.place == place
            own = {found.generation: found for found in lineage.fitness[id]}
            assert own[line["generation"]].fitness == line["fitness"][place]
            for name, values in line["hyperparameters"].items():
                assert values[place] == birth.genome.hyperparameters[name]
            assert line["hidden"]["q"][place] == list(birth.genome.architectures["q"].hidden)
    for id, birth in lineage.births.items():
        genome = birth.genome
        assert (genome.parent is None) == (birth.generation == 0) == (id < 4)
        if genome.parent is not None:  # the parent was there when the child was born
            assert genome.parent in lines[birth.generation - 1]["ids"]
            assert genome.parent in lines[birth.generation]["ids"]


def test_the_best_of_each_generation_stays_as_it_is(usual):
    lines = metrics(usual)
    for line, later in pairwise(lines):
        best = int(np.argmax(line["fitness"]))
        assert later["ids"][best] == line["ids"][best]


def test_every_step_is_counted(usual):
    lineage, found = read_lineage(usual / "lineage.jsonl"), summary(usual)
    assert found["env_steps"] == 1200
    steps = [line.own_steps for lines in lineage.fitness.values() for line in lines]
    assert max(steps) == 300  # of one line: its own, and its ancestors'
    last = metrics(usual)[-1]
    assert found["evaluation_steps"] == last["evaluation_steps"]
    fitness = sum(2 * sum(line["fitness"]) for line in metrics(usual))  # CartPole pays 1 a step
    confirmed = found["evaluation_steps"] - fitness
    assert confirmed > 0  # what the further episodes took: three for each candidate
    assert found["total_steps"] == 1200 + found["evaluation_steps"] + found["final_steps"]


def test_fitness_from_training_takes_no_steps(tmp_path):
    """But for the race of the best; nobody is evaluated who has not ended an episode."""
    path = run(tmp_path, "evaluation.source=training", "evolution.selection.min_gap=1.0")
    again = run(tmp_path / "again", "evaluation.source=training", "evolution.selection.min_gap=1.0")
    assert timeless(metrics(path)) == timeless(metrics(again))
    assert (path / "lineage.jsonl").read_bytes() == (again / "lineage.jsonl").read_bytes()
    lines = metrics(path)
    assert len(lines) == GENERATIONS
    assert lines[-1]["evaluation_steps"] <= 2 * GENERATIONS * 3 * 40  # three episodes, of two
    assert 0 < lines[0]["evaluation_steps"] <= 3 * 40
    assert any(value is not None for line in lines for value in line["fitness"])


def test_a_run_in_which_no_episode_ends_trains_without_selection(tmp_path):
    """Acrobot takes 500 steps, and a generation has 25: nothing is known of anybody, ever."""
    given = [f"run.folder={tmp_path}", "evaluation.source=training", "env.id=Acrobot-v1"]
    with pytest.raises(RunError, match=r"finite fitness; no episode ended, set evaluation\.every"):
        train(parse_config(BASE, given))
    (path,) = tmp_path.iterdir()
    lines = metrics(path)
    assert [line["ids"] for line in lines] == [[0, 1, 2, 3]] * GENERATIONS
    assert [line["fitness"] for line in lines] == [[None] * 4] * GENERATIONS
    assert all(all(line["alive"]) for line in lines)


def test_evaluations_can_count(tmp_path):
    found = summary(run(tmp_path, "budget.counts=all", "budget.env_steps=2000"))
    assert found["env_steps"] < 2000
    assert 1900 < found["env_steps"] + found["evaluation_steps"] < 2300


def test_random_search_is_the_population_that_evolution_starts_from(tmp_path):
    spaces = "evolution.spaces={lr: {kind: log, low: 1e-5, high: 1e-1}}"
    evolved = metrics(run(tmp_path / "a", "population.init=sample", spaces))
    searched = metrics(run(tmp_path / "b", "evolution.method=random_search", spaces))
    unchanged = metrics(run(tmp_path / "c", "evolution.method=none", spaces))
    rates = searched[0]["hyperparameters"]["lr"]
    assert len(set(rates)) == 4
    assert all(1e-5 <= rate <= 1e-1 for rate in rates)
    assert evolved[0]["hyperparameters"] == searched[0]["hyperparameters"]
    assert evolved[0]["fitness"] == searched[0]["fitness"]
    assert evolved[-1]["ids"] != searched[-1]["ids"] == [0, 1, 2, 3]
    assert searched[-1]["hyperparameters"]["lr"] == rates
    assert unchanged[-1]["hyperparameters"]["lr"] == [1e-3] * 4


def test_a_run_stops_when_its_confirmed_score_is_reached(tmp_path):
    path = run(tmp_path, "budget.stop_at=5")
    assert len(metrics(path)) == 1
    assert summary(path)["env_steps"] == 200
    assert summary(path)["best"]["confirmed"] >= 5


def test_an_agent_that_diverges_makes_room(tmp_path):
    deep = "{lr: 1.0, max_grad_norm: 0, tau: 1.0, hidden: [64, 64, 64, 64, 64, 64, 64, 64]}"
    options = ["algorithm.loss_kind=mse", "replay.share=agent", "evolution.mutation.architecture=0"]
    with pytest.warns(UserWarning, match="agent 1 is dead"):
        path = run(tmp_path, *options, f"population.agents=[{{}}, {deep}]")
    first, second = metrics(path)[:2]
    assert first["alive"] == [True, False, True, True]
    assert second["alive"] == [True] * 4
    lineage = read_lineage(path / "lineage.jsonl")
    assert all(birth.genome.parent != 1 for birth in lineage.births.values())


def test_a_schedule_is_followed(tmp_path):
    base = tiny(tmp_path).agent_hyperparameters(0)
    architecture = Architecture((16, 16), "tanh", gated=(False, True))
    segments = (
        Segment(0, base | {"lr": 1e-2}),
        Segment(100, base | {"lr": 1e-3, "batch_size": 16}),
        Segment(150, base | {"lr": 1e-4, "batch_size": 16}),
    )
    schedule = Schedule("CartPole-v1", 200, {"q": architecture}, segments)
    path = train(config_for_schedule(tiny(tmp_path), schedule), schedule=schedule).directory
    lines = metrics(path)
    assert lines[-1]["env_steps"] == 200
    assert [line["hyperparameters"]["lr"] for line in lines] == [[1e-2], [1e-2], [1e-3], [1e-4]]
    assert lines[-1]["hyperparameters"]["batch_size"] == [16]
    assert read_agent(path / "best").genome.architectures == {"q": architecture}
