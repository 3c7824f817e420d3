"""Lock-step A3C against A2C: one actor bit for bit, several as one larger batch."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from evorl.actors import WeightsMessage, copy_of
from evorl.algorithms import DDPG, DQN
from evorl.algorithms.ddpg import RANDOM
from evorl.config import parse_config
from evorl.errors import ConfigError
from evorl.evolution.lineage import read_lineage
from evorl.pipeline import Actor
from evorl.runs import RunDirectory
from evorl.training.trainer import train

from .parts import SEED, STEPS, Reference, inline, make_env, population_of

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:evaluation.every")

RUN = {
    "name": "run",
    "seed": 3,
    "compile": False,
    "env": {"id": "CartPole-v1", "num_envs": 3, "backend": "sync"},
    "algorithm": {"name": "a2c", "rollout_steps": 5, "lr": 1e-2, "entropy_coef": 0.01},
    "network": {"hidden": [16, 16], "activation": "tanh"},
    "population": {"size": 4},
    "evaluation": {"every": 40, "episodes": 2, "confirm_episodes": 2, "final_episodes": 2},
    "evolution": {"selection": {"min_gap": 0.0}, "mutation": {"architecture": 0.5}},
    "budget": {"env_steps": 4 * 3 * 40 * 5},
    "checkpoint": {"keep": 99},
}
ONE = ("algorithm.name=a3c", "mesh.actors=1", "actors.lockstep=true", "actors.place=inline")
CASES = {
    "discrete": (),
    "continuous": ("env.id=Pendulum-v1", "evaluation.max_steps=40"),
    "normalized": ("env.id=Pendulum-v1", "env.normalize={observations: true, rewards: true}"),
    "training": ("evaluation.source=training", "evolution.mutation.parameters=0.5"),
}


def run(folder, *overrides, resume=None, **sections):
    config = parse_config(RUN | sections, [f"run.folder={folder}", *overrides])
    return train(config, resume=resume).directory


def weights_of(directory):
    """The agents of every generation: their files' bytes."""
    return {
        path.parent.name: path.read_bytes()
        for path in sorted(directory.glob("checkpoints/*/population.safetensors"))
    }


def timeless(directory):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    left_out = ("seconds", "steps_per_second", "shares", "actors", "training")
    return [{k: v for k, v in line.items() if k not in left_out} for line in lines]


@pytest.mark.parametrize("case", CASES)
def test_one_actor_is_a2c_bit_for_bit(case, tmp_path):
    a2c = run(tmp_path / "a2c", *CASES[case])
    a3c = run(tmp_path / "a3c", *CASES[case], *ONE)
    assert len(weights_of(a2c)) == 5
    assert weights_of(a3c) == weights_of(a2c)
    assert timeless(a3c) == timeless(a2c)
    assert (a3c / "lineage.jsonl").read_bytes() == (a2c / "lineage.jsonl").read_bytes()
    births = read_lineage(a2c / "lineage.jsonl").births.values()
    assert any(birth.genome.parent is not None for birth in births)  # it has evolved
    told = json.loads((a3c / "metrics.jsonl").read_text().splitlines()[-1])["actors"]
    assert told.pop("frames_per_second") > 0
    assert told == {
        "alive": 1,
        "sent": 8,
        "messages": 8,
        "lag": 0.0,
        "max_lag": 0,
        "queue": 0.0,
        "refused": {},
        "lost": 0,
        "under_way": 0,
        "gone": 0,
        "wasted_steps": 0,
    }


@pytest.mark.parametrize("case", CASES)
def test_one_actor_is_impala_without_any_bit_for_bit(case, tmp_path):
    options = ["algorithm.name=impala", "algorithm.replay_unrolls=12", "algorithm.updates=3"]
    options += ["algorithm.replay_ratio=1.5", *CASES[case]]
    alone = run(tmp_path / "alone", *options)
    acted = run(tmp_path / "acted", *options, *ONE[1:])
    assert len(weights_of(alone)) == 5
    assert weights_of(acted) == weights_of(alone)
    assert timeless(acted) == timeless(alone)
    assert (acted / "lineage.jsonl").read_bytes() == (alone / "lineage.jsonl").read_bytes()


REPLAYED = {
    "dqn": ("algorithm.name=dqn",),
    "dueling": ("algorithm.name=dqn", "network.dueling=true", "replay.share=agent"),
    "ddpg": ("algorithm.name=ddpg", "env.id=Pendulum-v1", "evaluation.max_steps=40"),
    "td3": ("algorithm.name=td3", "env.id=Pendulum-v1", "evaluation.max_steps=40"),
}


@pytest.mark.parametrize("first", ["error", "highest"])
@pytest.mark.parametrize("case", REPLAYED)
def test_one_actor_is_a_prioritised_replay_without_any_bit_for_bit(case, first, tmp_path):
    """With messages of one step: otherwise updates would come later."""
    own = {"rollout_steps", "entropy_coef"}
    algorithm = {name: value for name, value in RUN["algorithm"].items() if name not in own}
    algorithm |= {"n_step": 3, "learning_starts": 10, "batch_size": 8}
    options = ["replay.kind=prioritized", f"replay.first_priority={first}", *REPLAYED[case]]
    alone = run(tmp_path / "alone", *options, algorithm=algorithm)
    acted = run(tmp_path / "acted", *options, *ONE[1:], "actors.steps=1", algorithm=algorithm)
    assert len(weights_of(alone)) == 5
    assert weights_of(acted) == weights_of(alone)
    assert timeless(acted) == timeless(alone)
    replays = sorted(alone.glob("checkpoints/generation-000004/replay-*"))
    assert replays
    for path in (alone / "lineage.jsonl", *replays):
        assert (acted / path.relative_to(alone)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("case", ["dueling", "ddpg"])
def test_what_one_actor_keeps_is_drawn_from_as_if_its_learner_kept_it(case, tmp_path):
    """With what was cut at a generation's end, and all that children inherit."""
    own = {"rollout_steps", "entropy_coef"}
    algorithm = {name: value for name, value in RUN["algorithm"].items() if name not in own}
    algorithm |= {"n_step": 3, "learning_starts": 10, "batch_size": 8}
    options = ["replay.kind=prioritized", "replay.capacity=200", *REPLAYED[case], *ONE[1:]]
    options += ["actors.steps=4"]
    learner = run(tmp_path / "learner", *options, algorithm=algorithm)
    actor = run(tmp_path / "actor", *options, "replay.at=actors", algorithm=algorithm)
    assert len(weights_of(learner)) == 5
    assert weights_of(actor) == weights_of(learner)
    assert timeless(actor) == timeless(learner)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_actors_are_one_larger_batch(count):
    env = make_env()
    ours, theirs = (population_of(env, dtype=torch.float64) for _ in range(2))
    learner, actors = inline(ours, count)
    reference = Reference(env, theirs, count)
    for _ in range(4):
        learner.iterate()
        reference.update(actors)
        for own, other in zip(ours.groups, theirs.groups, strict=True):
            for name in ("theta", "m", "v"):
                a, b = (getattr(group.matrices, name) for group in (own, other))
                torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    assert learner.context.updates == reference.context.updates == 4 * ours.size
    assert not torch.equal(ours.groups[0].theta, population_of(env).groups[0].theta.double())


def test_actors_play_different_episodes():
    population = population_of(make_env())
    learner, actors = inline(population, 2)
    learner.iterate()
    seen = [actor.upload.rollout._fields["obs"] for actor in actors]
    assert not (seen[0] == seen[1]).all(-1).any()
    assert learner.context.agent_steps.tolist() == [2 * 3 * 6] * 3


def test_an_actor_that_takes_anothers_place_plays_other_episodes():
    population = population_of(make_env())
    weights = WeightsMessage(population)(0, np.zeros(3, np.int64))
    seen = []
    for number, incarnation in ((1, 0), (1, 1), (1, 2), (2, 0)):
        copy = copy_of(weights, population.networks, population.algorithm)
        own = {"number": number, "fellows": 3, "incarnation": incarnation}
        actor = Actor(copy, make_env(), STEPS, seed=SEED, **own)
        actor.load(weights, 0)
        actor.play()
        seen.append(actor.upload.rollout._fields["obs"][:, 0])
    for one, other in itertools.combinations(seen, 2):
        assert not (one == other).all(-1).any()


def test_another_generation_begins_with_new_episodes():
    population = population_of(make_env())
    learner, (actor,) = inline(population, 1)
    learner.iterate(3)
    learner.context.generation = 1
    learner.iterate()
    times = actor.upload.rollout._fields["obs"][..., 1]
    assert (times[:, 0] == 0).all()


def test_an_interrupted_run_resumes_to_the_same_bytes(tmp_path):
    whole = run(tmp_path / "whole", *ONE[:1], "mesh.actors=2", *ONE[2:])
    half = run(tmp_path / "half", *ONE[:1], "mesh.actors=2", *ONE[2:], "budget.env_steps=2400")
    config = parse_config(
        RUN, [f"run.folder={tmp_path / 'half'}", *ONE[:1], "mesh.actors=2", *ONE[2:]]
    )
    train(config, resume=RunDirectory(Path(half)))
    assert weights_of(half) == weights_of(whole)


REPLAY = ("algorithm={name: dqn}",)
SHARES = ("replay.at=actors", "replay.kind=prioritized")


def test_refusals(tmp_path):
    for overrides, reason in (
        (("mesh.actors=2",), "mesh.actors: must be 0 with algorithm.name: a2c, which has none"),
        (
            ("algorithm.name=a3c", "mesh.actors=2", "actors.place=inline"),
            "actors.lockstep: must be true with actors.place: inline",
        ),
        (
            ("algorithm.name=a3c", "mesh.actors=3", "mesh.data=2"),
            "mesh.actors: must be as many for each of 2 learners",
        ),
        (
            ("algorithm.name=a3c", "mesh.actors=2", "compile=true"),
            "compile: must be auto or false with actors of a3c",
        ),
        (
            (*REPLAY, "replay.at=actors", "replay.kind=prioritized"),
            "replay.at: must be learners without mesh.actors, got the string 'actors'",
        ),
        (
            (*REPLAY, "replay.at=actors", "mesh.actors=2"),
            r"replay.kind: must be prioritized with replay.at: actors \(with replay.alpha: 0",
        ),
        (
            (*REPLAY, *SHARES, "mesh.actors=2", "replay.share=world"),
            "replay.share: must be rank or agent where there are actors",
        ),
        (
            (*REPLAY, "replay.samples_per_insert=0"),
            "replay.samples_per_insert: must be greater than 0",
        ),
    ):
        with pytest.raises(ConfigError, match=reason):
            parse_config(RUN, overrides)
    with pytest.raises(ConfigError, match=r"actors.place: got ranks, but none of 1 launched"):
        run(tmp_path, "algorithm.name=a3c", "mesh.actors=2", "actors.place=ranks")


def test_actors_explore_as_ape_x_has_it():
    """Epsilon_i = epsilon^(1 + 7 i / (N - 1)), and all of the noise down to a quarter of it."""
    epsilon = np.array([0.4, 0.1])
    for i in range(8):
        found = DQN().exploration_of(epsilon, i / 7)
        np.testing.assert_allclose(found, epsilon ** (1 + i), rtol=1e-12)
        noise = DDPG().exploration_of(np.array([0.2, RANDOM]), i / 7)
        np.testing.assert_allclose(noise, [0.2 * 0.25 ** (i / 7), RANDOM], rtol=1e-12)
