"""Runs with actors as a user starts them: in one process, as children, as ranks; and their ends."""

import json
import random
import re
import signal
import time

import psutil
import pytest

from tests.distributed.runs import Run, deterministic, generation_of, some_time, wait_for

pytestmark = pytest.mark.slow

RANDOM = random.Random(11)
KILLS = 7  # of a run of each algorithm
CONFIG = """
name: run
seed: 3
env: {id: CartPole-v1, num_envs: 2, backend: sync}
algorithm: {name: a3c, rollout_steps: 5, lr: 1e-2}
network: {hidden: [16, 16], activation: tanh}
population: {size: 4}
evaluation: {every: 60, episodes: 2, confirm_episodes: 2, final_episodes: 2, max_steps: 100}
evolution: {selection: {min_gap: 0}, mutation: {architecture: 0.5}}
budget: {env_steps: 5760}
mesh: {actors: 2}
actors: {lockstep: true}
"""  # six generations of 960 steps
ALGORITHMS = {
    "a3c": "algorithm: {name: a3c, rollout_steps: 5, lr: 1e-2}",
    "impala": "algorithm: {name: impala, rollout_steps: 5, lr: 1e-2, replay_unrolls: 16}",
    "dqn": "algorithm: {name: dqn, learning_starts: 20, batch_size: 16}\n"
    "replay: {kind: prioritized, capacity: 301, share: agent}",
}
FREE, LONG = "actors.lockstep=false", "budget.env_steps=1000000000"


def begun(folder, *overrides, algorithm="a3c", **options):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG.replace(ALGORITHMS["a3c"], ALGORITHMS[algorithm]))
    return Run(folder, "train", "config.yaml", *overrides, **options)


def done(folder, *overrides, **options):
    """A whole run; its directory and what it said."""
    code, said = begun(folder, *overrides, **options).wait()
    assert code == 0, said
    return folder / "runs" / "run", said


def metrics(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def actors_of(run):
    """The processes of a learner's children: those of the one that starts them."""
    try:
        (nursery,) = psutil.Process(run.launcher.pid).children()
        return nursery.children()
    except (psutil.Error, ValueError):
        return []


@pytest.fixture(scope="module")
def inlines(tmp_path_factory):
    """In one process; by algorithm."""
    return {
        name: done(tmp_path_factory.mktemp(name), "actors.place=inline", algorithm=name)[0]
        for name in ALGORITHMS
    }


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lock_step_gives_the_same_bytes_on_one_process_and_on_three(algorithm, inlines, tmp_path):
    inline = inlines[algorithm]
    children, said = done(tmp_path / "children", algorithm=algorithm)
    assert "actors:       2 (children, in lock-step)" in said
    assert deterministic(children) == deterministic(inline)
    ranks, said = done(tmp_path / "ranks", ranks=3, algorithm=algorithm)
    assert "actors:       2 (ranks, in lock-step)" in said
    assert deterministic(ranks) == deterministic(inline)
    told, alone = (metrics(one)[-1]["actors"] for one in (ranks, inline))
    timed = ("queue", "frames_per_second")
    assert all(told[name] >= 0 for name in timed)
    assert all(told[name] == alone[name] for name in alone.keys() - timed)


def agents_of(directory):
    return deterministic(directory)[1][1]["population.safetensors"]


def test_two_learners_with_an_actor_each(inlines, tmp_path):
    """Along data an agent has as many actors as before, along population one of them."""
    replicas, _ = done(tmp_path / "data", "mesh.data=2", "mesh.population=1", ranks=4)
    assert agents_of(replicas) == agents_of(inlines["a3c"])
    children = ("actors.place=children", "mesh.population=2")
    apart, said = done(tmp_path / "apart", *children, ranks=2)
    assert "actors:       2 (children, in lock-step)" in said
    alone, _ = done(tmp_path / "alone", "actors.place=inline", "mesh.actors=1")
    assert agents_of(apart) == agents_of(alone)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_killed_at_random_and_resumed(algorithm, inlines, tmp_path):
    kills, tries = 0, 0
    while kills < KILLS:
        folder, tries = tmp_path / str(tries), tries + 1
        directory = folder / "runs" / "run"
        run = begun(folder, algorithm=algorithm)
        while kills < KILLS and some_time(RANDOM, run, directory):
            run.kill()
            run.launcher.wait()
            kills += 1
            started = (directory / "config.yaml").exists()
            run = (
                Run(folder, "resume", "runs/run") if started else begun(folder, algorithm=algorithm)
            )
        code, said = run.wait()
        assert code == 0 or "the run is finished" in said, said  # the last kill came too late
        assert deterministic(directory) == deterministic(inlines[algorithm])


def test_actors_that_are_killed_again_and_again(tmp_path):
    run, directory = begun(tmp_path, FREE, LONG), tmp_path / "runs" / "run"
    for kill in range(5):
        wait_for(lambda n=kill: generation_of(directory) > 2 * n)
        wait_for(lambda: len(actors_of(run)) == 2)
        actors_of(run)[kill % 2].send_signal(signal.SIGKILL)
    last = generation_of(directory)
    wait_for(lambda: generation_of(directory) > last + 2)
    run.launcher.send_signal(signal.SIGINT)
    code, said = run.wait()
    assert code == 130, said
    warned = re.findall(r"warning: actor [01] \(process \d+\) ended by SIGKILL; another one", said)
    assert len(warned) == 5
    assert sum(line["actors"]["gone"] for line in metrics(directory)) == 5
    code, said = Run(tmp_path, "resume", "runs/run", "budget.env_steps=1000").wait()
    assert code == 0, said
    assert "actors play at their own pace; the run resumes, but will not end with the same" in said


def test_a_learner_that_is_killed_leaves_nothing_behind(tmp_path):
    run, directory = begun(tmp_path, FREE, LONG), tmp_path / "runs" / "run"
    wait_for(lambda: generation_of(directory) >= 1)
    nursery = psutil.Process(run.launcher.pid).children()
    before = time.monotonic()
    run.launcher.send_signal(signal.SIGKILL)
    wait_for(lambda: not any(own.is_running() for own in nursery))
    assert time.monotonic() - before < 10
    wait_for(lambda: not run.processes())
    for slot in range(2):
        assert f"error: actor {slot}: the learner is gone (its connection closed);" in run.said()
    code, said = Run(tmp_path, "resume", "runs/run", "budget.env_steps=20000").wait()
    assert code == 0, said


def test_an_actor_that_cannot_begin_ends_the_run(tmp_path):
    run = begun(tmp_path, FREE, "env.id=tests.actors.worlds:BrokenInActors-v0")
    code, said = run.wait()
    assert code == 2, said
    assert re.search(
        r"error: actor [01] \(process \d+\) ended with exit code 2, and 3 times before it", said
    )
    assert "error: actor 0: env.id: 'tests.actors.worlds:BrokenInActors-v0' cannot be" in said


def test_in_lock_step_a_dead_actor_ends_the_run(tmp_path):
    run, directory = begun(tmp_path, LONG), tmp_path / "runs" / "run"
    wait_for(lambda: generation_of(directory) >= 1)
    actors_of(run)[0].send_signal(signal.SIGKILL)
    code, said = run.wait()
    assert code == 2, said
    assert re.search(
        r"error: actor [01] \(process \d+\) ended by SIGKILL, and in lock-step nobody", said
    )


def test_failures_of_the_actors_environments_are_the_runs(tmp_path):
    wanted = ("env.id=tests.actors.worlds:Fragile-v0", "env.max_failures=1000")
    folders = [tmp_path / name for name in ("inline", "children")]
    one, said = done(folders[0], *wanted, "actors.place=inline")
    two, also = done(folders[1], *wanted)
    assert deterministic(one) == deterministic(two)
    assert metrics(one)[-1]["failures"] == metrics(two)[-1]["failures"] > 5
    for text in (said, also):
        assert "raised, and a new environment took its place (1 of 1000 allowed by" in text
    code, said = begun(tmp_path / "few", *wanted[:1], "env.max_failures=3").wait()
    assert code == 2
    assert "env.max_failures: 'tests.actors.worlds:Fragile-v0' raised too often (4, 3" in said


def test_a_rank_that_was_not_launched(tmp_path):
    code, said = begun(tmp_path, ranks=2).wait()
    assert code != 0
    assert "mesh: population 1 × data 1 and 2 actors takes 3 ranks, got 2; start as many" in said
