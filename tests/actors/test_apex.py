"""Ape-X as a user starts it: replays at learners and at actors, two learners, a band, deaths."""

import itertools
import re
import signal

import pytest

from tests.distributed.runs import Run, deterministic, generation_of, newest, wait_for

from .test_processes import actors_of, metrics

pytestmark = pytest.mark.slow

CONFIG = """
name: run
seed: 3
env: {id: CartPole-v1, num_envs: 2, backend: sync}
algorithm: {name: dqn, learning_starts: 20, batch_size: 16, n_step: 2}
network: {hidden: [16, 16]}
replay: {kind: prioritized, capacity: 301, share: agent, at: actors}
population: {size: 4}
evaluation: {every: 60, episodes: 2, confirm_episodes: 2, final_episodes: 2, max_steps: 100}
evolution: {selection: {min_gap: 0}, mutation: {architecture: 0.5}}
budget: {env_steps: 3840}
mesh: {actors: 2}
actors: {lockstep: true, steps: 6}
compile: false
"""  # four generations of 960 steps
FREE, LONG = "actors.lockstep=false", "budget.env_steps=1000000000"


def begun(folder, *overrides, **options):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG)
    return Run(folder, "train", "config.yaml", *overrides, **options)


def done(folder, *overrides, **options):
    code, said = begun(folder, *overrides, **options).wait()
    assert code == 0, said
    return folder / "runs" / "run", said


def agents_of(directory):
    return newest(directory)[1]["population.safetensors"]


def test_lock_step_gives_the_same_bytes_wherever_actors_are(tmp_path):
    """And what they keep is not in the checkpoint: whoever resumes says so."""
    inline, _ = done(tmp_path / "inline", "actors.place=inline")
    children, _ = done(tmp_path / "children")
    ranks, _ = done(tmp_path / "ranks", ranks=3)
    assert deterministic(children) == deterministic(inline) == deterministic(ranks)
    for name in ("messages", "lag", "refused", "replay", "wasted_steps"):
        assert metrics(ranks)[-1]["actors"][name] == metrics(inline)[-1]["actors"][name]
    assert not [name for name in newest(inline)[1] if "replay" in name]
    run = Run(tmp_path / "children", "resume", "runs/run", "budget.env_steps=4800")
    code, said = run.wait()
    assert code == 0, said
    assert "warning: replays were with the actors and fill up first; the run resumes, but" in said
    assert metrics(children)[-1]["updates"] > metrics(children)[-2]["updates"]


@pytest.mark.parametrize("mesh", ["data", "population"])
def test_two_learners_with_an_actor_each(mesh, tmp_path):
    """What an actor keeps is drawn from as if its learner kept it."""
    two = ("actors.place=children", f"mesh.{mesh}=2", "replay.share=rank")
    shards, said = done(tmp_path / "actors", *two, ranks=2)
    learners, _ = done(tmp_path / "learners", *two, "replay.at=learners", ranks=2)
    assert agents_of(shards) == agents_of(learners)
    assert "actors:       2 (children, in lock-step)" in said


@pytest.mark.parametrize("at", ["learners", "actors"])
def test_two_learners_at_their_own_pace_in_a_band(at, tmp_path):
    """Both make the same updates, each on what its own actor has played."""
    band = ("replay.samples_per_insert=8", "replay.samples_per_insert_slack=20")
    two = ("actors.place=children", "mesh.data=2", "mesh.population=1", f"replay.at={at}")
    directory, _ = done(tmp_path, FREE, *two, *band, ranks=2)
    lines = metrics(directory)
    assert [line["actors"]["alive"] for line in lines] == [2] * len(lines)
    for line in lines[1:]:
        assert 6 < line["actors"]["samples_per_insert"] < 10


@pytest.mark.parametrize("ratio", [0.05, 20])
def test_whoever_is_slow_is_waited_for(ratio, tmp_path):
    """Learners that have next to nothing to do, and those that have far too much."""
    band = (f"replay.samples_per_insert={ratio}", "replay.samples_per_insert_slack=1")
    directory, _ = done(tmp_path, FREE, *band, "replay.at=learners")
    found = [line["actors"]["samples_per_insert"] for line in metrics(directory)[1:]]
    assert sum(found) / len(found) == pytest.approx(ratio, rel=0.1, abs=0.05)


def test_shards_whose_actors_are_killed_again_and_again(tmp_path):
    """Or stopped: the learner goes on with what others have, and new ones begin with nothing."""
    run = begun(tmp_path, FREE, LONG, "replay.samples_per_insert=4")
    directory = tmp_path / "runs" / "run"
    for kill in range(4):
        wait_for(lambda n=kill: generation_of(directory) > 2 * n)
        wait_for(lambda: len(actors_of(run)) == 2)
        actors_of(run)[kill % 2].send_signal(signal.SIGKILL)
    wait_for(lambda: len(actors_of(run)) == 2)
    stopped, last = actors_of(run)[0], generation_of(directory)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        stopped.send_signal(number)
        wait_for(lambda n=last: generation_of(directory) > n + 2)
        last = generation_of(directory)
    run.launcher.send_signal(signal.SIGINT)
    code, said = run.wait()
    assert code == 130, said
    warned = re.findall(r"warning: actor [01] \(process \d+\) ended by SIGKILL; another one", said)
    assert len(warned) == 4
    assert not re.search("error:|refused|cannot", said)
    assert re.search(
        r"warning: actor [01]: its part of the replay is left out until it sends", said
    )
    lines = metrics(directory)
    assert sum(line["actors"]["gone"] for line in lines) == 4
    assert sum(line["actors"]["replay"].get("late", 0) for line in lines) >= 1
    updates = [line["updates"] for line in lines]
    assert all(after > before for before, after in itertools.pairwise(updates))


def test_in_lock_step_samples_per_insert_are_a_fixed_ratio(tmp_path):
    """With an actor as without any, to the bit, and as many updates as it says."""
    options = ("replay.samples_per_insert=6", "replay.first_priority=error", "actors.steps=1")
    alone, _ = done(tmp_path / "alone", *options, "mesh.actors=0", "replay.at=learners")
    one = ("mesh.actors=1", "actors.place=inline", "replay.at=actors")
    acted, _ = done(tmp_path / "acted", *options, *one)
    assert agents_of(alone) == agents_of(acted)
    (per_agent,) = {line["env_steps"] // 4 for line in metrics(alone)[-1:]}
    assert metrics(alone)[-1]["updates"] == 4 * ((per_agent - 20) * 6 // 16)
