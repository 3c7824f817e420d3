"""Evaluators score while the others train: always one generation behind, whatever their speed."""

import json
import random
import re

import pytest

from evorl.evolution.lineage import read_lineage
from evorl.runs.agent import read_agent

from .runs import Run, configured, deterministic, same_but_mesh, some_time, train

pytestmark = pytest.mark.slow

RANDOM = random.Random(5)
KILLS = 5
GENERATIONS = 6
OPTIONS = ("env.id=tests.distributed.slow:SlowCartPole-v1", "evaluation.confirm_episodes=7")


def evaluated(folder, evaluators=1, trainers=1, slow=None, **options):
    """A whole run on so many ranks."""
    environment = {} if slow is None else {"EVORL_TEST_SLOW": slow}
    wanted = (*OPTIONS, f"mesh.evaluators={evaluators}")
    return train(folder, *wanted, ranks=trainers + evaluators, environment=environment, **options)


def metrics(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """One rank trains, one evaluates."""
    return evaluated(tmp_path_factory.mktemp("one"))


def test_neither_their_number_nor_their_speed_nor_the_trainers_change_a_byte(one, tmp_path):
    slow = evaluated(tmp_path / "slow", slow="1:1.5")
    assert deterministic(slow) == deterministic(one)
    two = evaluated(tmp_path / "two", evaluators=2, trainers=2, slow="0:1")
    same_but_mesh(one, two)
    assert deterministic(two)[0] == deterministic(one)[0]
    timeless = [
        [{k: v for k, v in line.items() if "second" not in k and k != "shares"} for line in lines]
        for lines in map(metrics, (one, slow, two))
    ]
    assert timeless[0] == timeless[1] == timeless[2]
    for directory in (one, slow, two):
        assert all("evaluate" not in line["shares"] for line in metrics(directory))
    # who waits for whom
    waits = [metrics(directory)[-1]["shares"]["wait"] for directory in (slow, two)]
    assert waits[0] > 2 * waits[1]


def test_killed_at_random_and_resumed(one, tmp_path):
    kills, tries = 0, 0
    while kills < KILLS:
        folder, tries = tmp_path / str(tries), tries + 1
        directory = folder / "runs" / "run"
        words = ("train", configured(folder), *OPTIONS, "mesh.evaluators=1")
        run = Run(folder, *words, ranks=2)
        while kills < KILLS and some_time(RANDOM, run, directory):
            run.kill()
            run.launcher.wait()
            kills += 1
            begun = (directory / "config.yaml").exists()
            run = Run(folder, *(("resume", "runs/run") if begun else words), ranks=2)
        code, said = run.wait()
        assert code == 0 or "the run is finished" in said, said  # the last kill came too late
        assert deterministic(directory) == deterministic(one)


def test_more_to_spend_and_more_evaluators_are_as_if_they_had_always_been_there(one, tmp_path):
    """What the end of the first part evaluated is forgotten: the champion is what it was before."""
    train(tmp_path, *OPTIONS, "mesh.evaluators=1", "budget.env_steps=1440", ranks=2)
    words = ("resume", "runs/run", "budget.env_steps=2880", "mesh.evaluators=2")
    code, said = Run(tmp_path, *words, ranks=3).wait()
    assert code == 0, said
    assert deterministic(tmp_path / "runs" / "run") == deterministic(one)
    code, said = Run(
        tmp_path, "resume", "runs/run", "budget.env_steps=3360", "mesh.evaluators=0"
    ).wait()
    assert code == 0, said
    assert "mesh.evaluators is 0 now; the run resumes, but will not end with the same" in said


def test_fitness_is_that_of_the_generations_beginning(one):
    lines, lineage = metrics(one), read_lineage(one / "lineage.jsonl")
    # one for each generation, and one for what the last of them has trained
    assert [line["generation"] for line in lines] == list(range(GENERATIONS + 1))
    assert lines[-1]["env_steps"] == lines[-2]["env_steps"]
    assert lines[-1]["evaluation_steps"] > lines[-2]["evaluation_steps"]
    born = {birth.generation for birth in lineage.births.values()}
    assert 1 not in born  # at the end of generation 0 nobody makes room but the dead
    assert 2 in born
    assert lines[0]["best"] is None  # those who have not trained are no champions
    assert lines[1]["best_episodes"] == 5


def test_the_champion_is_the_snapshot_that_was_evaluated(one):
    best, lines = read_agent(one / "best"), metrics(one)
    generation = best.facts["generation"]  # at whose end it was this
    evaluated = lines[generation + 1]  # what the next one's evaluators found
    assert evaluated["ids"][best.facts["place"]] == best.genome.id
    assert evaluated["fitness"][best.facts["place"]] == best.facts["fitness"]
    assert best.facts["env_steps"] == lines[generation]["env_steps"]
    assert best.facts["own_steps"] <= 120 * (generation + 1)
    summary = json.loads((one / "summary.json").read_text())
    assert summary["best"]["confirmed"] == lines[-1]["best"]
    assert summary["evaluation_steps"] == lines[-1]["evaluation_steps"]


def test_an_evaluator_that_does_not_come_is_named(tmp_path):
    words = ("train", configured(tmp_path), *OPTIONS, "mesh.evaluators=1", "mesh.timeout=4")
    run = Run(tmp_path, *words, ranks=3, environment={"EVORL_TEST_SLOW": "2:60"})
    code, said = run.wait()
    assert code != 0
    (line,) = {line for line in said.splitlines() if line.startswith("error: the end of")}
    assert "the end of generation 0: rank 0 lost another one" in line
    assert re.search(r"[Rr]anks? 2\b", line.partition("(")[2]), line


def test_evaluators_wait_for_as_long_as_the_others_train(tmp_path):
    """Longer than ranks that train would wait for each other."""
    words = ("train", configured(tmp_path), *OPTIONS, "mesh.evaluators=1", "mesh.timeout=6")
    slow = {"EVORL_TEST_SLOW": "0:10"}
    code, said = Run(tmp_path, *words, "budget.env_steps=480", ranks=2, environment=slow).wait()
    assert code == 0, said


def test_refusals(tmp_path):
    for option, reason in (
        ("evaluation.source=training", "must be 0 with evaluation.source: training, which leaves"),
        ("evaluation.episodes=1", "must be at most evaluation.episodes, which they share, 1"),
    ):
        words = ("train", configured(tmp_path), "mesh.evaluators=2", option)
        code, said = Run(tmp_path, *words).wait()
        assert code == 2
        assert f"mesh.evaluators: {reason}" in said
    code, said = Run(tmp_path, "train", configured(tmp_path), "mesh.evaluators=1").wait()
    assert code == 2
    assert "mesh: population 1 × data 1 and 1 evaluator takes 2 ranks, got 1; start as many" in said
