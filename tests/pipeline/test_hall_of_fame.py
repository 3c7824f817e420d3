"""The best agent is the one that wins on further seeds, and what is kept is a snapshot."""

import numpy as np
import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.config import EvaluationConfig
from evorl.envs import EnvSpec, make_episodes
from evorl.genome import Architecture, Genome
from evorl.networks.layout import Problem
from evorl.pipeline import champion as hall_of_fame
from evorl.pipeline.champion import HallOfFame
from evorl.pipeline.context import Context
from evorl.pipeline.evaluate import Played, play
from evorl.population.population import Population
from evorl.runs.directory import RunDirectory
from evorl.runs.saved_agent import read_agent
from evorl.seeding import held_out, integers
from tests.pipeline.people import together

torch.set_num_threads(1)


@pytest.fixture
def episodes():
    made = make_episodes(EnvSpec("CartPole-v1", "sync"), 6)
    yield made
    made.close()


def make_hall(folder, episodes, confirm_episodes=4, **options):
    genomes = [Genome(10 + i, Architecture((8,)), DQN().hyperparameters) for i in range(3)]
    live = Population(genomes, Problem(4, 2), DQN(), seed=1)
    everybody = together(live)
    directory = RunDirectory.create(folder, "run")
    config = EvaluationConfig(confirm_episodes=confirm_episodes, max_steps=50)
    hall = HallOfFame(
        everybody, episodes, directory, config, env_id="CartPole-v1", seed=5, **options
    )
    hall.live = live
    return hall, Context(3)


def evaluated(hall, context, *fitness):
    context.fitness = np.array(fitness)
    hall(context)
    context.generation += 1


@pytest.fixture
def confirmations(monkeypatch):
    """What the further episodes are to show, one number per confirmation."""
    left: list[float] = []

    def given(population, episodes, seeds, max_steps):
        return Played(np.full((1, len(seeds)), left.pop(0)), 7)

    monkeypatch.setattr(hall_of_fame, "play", given)
    return left


def kept(hall):
    return read_agent(hall.directory.path / "best")


def test_the_further_episodes_are_played_by_the_agent_on_seeds_of_their_own(tmp_path, episodes):
    hall, context = make_hall(tmp_path, episodes)
    evaluated(hall, context, 1.0, 9.0, 3.0)
    seeds = integers(5, "confirmation", count=4)
    assert hall.seeds == seeds
    assert not set(seeds) & set(held_out(5, 100))
    assert not set(seeds) & set(integers(5, "evaluation", 0, count=10))
    one = make_episodes(EnvSpec("CartPole-v1", "sync"), 12)
    expected = play(hall.live, one, seeds, 50)
    one.close()
    assert hall.score == expected.returns[1].mean()
    assert context.evaluation_steps == expected.returns[1].sum()  # CartPole pays 1 a step


def test_a_lucky_fitness_does_not_replace_the_best(tmp_path, episodes, confirmations):
    hall, context = make_hall(tmp_path, episodes)
    confirmations[:] = [20.0, 15.0, 20.0]
    context.agent_steps[:] = 30
    context.env_steps = 90
    evaluated(hall, context, 30.0, 5.0, 3.0)
    assert (hall.score, hall.best.genome.id) == (20.0, 10)
    evaluated(hall, context, 1.0, 40.0, 3.0)  # the highest yet, but not confirmed
    assert (hall.score, hall.best.genome.id) == (20.0, 10)
    evaluated(hall, context, 1.0, 19.0, 19.9)  # below the confirmed score: plays nothing
    assert len(confirmations) == 1
    context.returns = np.array([[1.0, 1.0], [2.0, 2.0], [17.0, 21.0]])
    evaluated(hall, context, 1.0, 2.0, 19.0)  # below by less than its standard error, 2
    assert (hall.score, hall.best.genome.id) == (20.0, 12)  # as good, and it learned longer
    assert context.evaluation_steps == 21
    assert kept(hall).genome.id == 12
    assert kept(hall).facts == {
        "env": "CartPole-v1",
        "place": 2,
        "fitness": 19.0,
        "confirmed": 20.0,
        "generation": 3,
        "env_steps": 90,
        "own_steps": 30,
    }


@pytest.fixture
def waves(monkeypatch):
    """What the further episodes are to show, one number each; and the seeds that were played."""
    left: list[float] = []
    played: list[list[int]] = []

    def given(population, episodes, seeds, max_steps):
        played.append(list(seeds))
        now, left[:] = left[: len(seeds)], left[len(seeds) :]
        return Played(np.array([now]), len(seeds))

    monkeypatch.setattr(hall_of_fame, "play", given)
    return left, played


def test_a_candidate_that_is_clearly_behind_plays_no_further(tmp_path, episodes, waves):
    left, played = waves
    hall, context = make_hall(tmp_path, episodes, confirm_episodes=12)
    left[:] = [10.0] * 12
    evaluated(hall, context, 30.0, 1.0, 1.0)
    assert [len(seeds) for seeds in played] == [5, 5, 2]
    assert [seed for seeds in played for seed in seeds] == hall.seeds
    del played[:]
    left[:] = [9.0, 7.0, 9.0, 7.0, 9.0]  # behind by 1.8, with a standard error of 0.5
    evaluated(hall, context, 30.0, 1.0, 1.0)
    assert [len(seeds) for seeds in played] == [5]
    assert (hall.score, context.evaluation_steps) == (10.0, 17)
    del played[:]
    left[:] = [0.0, 18.0, 0.0, 18.0, 9.0] * 2 + [100.0, 100.0]  # behind by 1, the error is 4 or 3
    evaluated(hall, context, 30.0, 1.0, 1.0)
    assert [len(seeds) for seeds in played] == [5, 5, 2]
    assert hall.score == pytest.approx(290 / 12)


def test_what_the_best_played_is_known_after_going_on(tmp_path, episodes, waves):
    left, played = waves
    hall, context = make_hall(tmp_path / "a", episodes, confirm_episodes=12)
    left[:] = [10.0] * 12
    evaluated(hall, context, 30.0, 1.0, 1.0)
    other, context = make_hall(tmp_path / "b", episodes, confirm_episodes=12)
    other.restore(*hall.state())
    assert other.score == 10.0
    del played[:]
    left[:] = [9.0] * 12
    evaluated(other, context, 30.0, 1.0, 1.0)
    assert [len(seeds) for seeds in played] == [5]


def test_what_is_kept_does_not_learn_on(tmp_path, episodes):
    hall, context = make_hall(tmp_path, episodes)
    evaluated(hall, context, 5.0, 1.0, 1.0)
    before = {name: value.clone() for name, value in hall.everybody.state(0).online.items()}
    for group in hall.live.groups:
        group.theta.add_(1)
    for agent in (hall.best, kept(hall)):
        assert all(torch.equal(agent.parameters[name], value) for name, value in before.items())


def test_negative_fitness_is_kept_too_and_the_dead_never(tmp_path, episodes, confirmations):
    hall, context = make_hall(tmp_path, episodes)
    confirmations[:] = [-710.0]
    evaluated(hall, context, -np.inf, -np.inf, -np.inf)
    assert hall.best is None
    evaluated(hall, context, np.nan, -700.0, -800.0)
    assert (hall.score, hall.best.genome.id) == (-710.0, 11)


def test_the_first_is_kept_even_if_it_cannot_be_confirmed(tmp_path, episodes, confirmations):
    hall, context = make_hall(tmp_path, episodes)
    confirmations[:] = [np.nan, 1.0]
    evaluated(hall, context, 5.0, 1.0, 1.0)
    assert (hall.score, hall.best.genome.id) == (-np.inf, 10)
    assert kept(hall).facts["confirmed"] is None
    evaluated(hall, context, 0.0, 2.0, 1.0)
    assert (hall.score, hall.best.genome.id) == (1.0, 11)


def test_a_confirmed_score_ends_the_run(tmp_path, episodes, confirmations):
    hall, context = make_hall(tmp_path, episodes, stop_at=20.0)
    confirmations[:] = [19.0, 20.0]
    evaluated(hall, context, 30.0, 1.0, 1.0)
    assert not context.finished
    evaluated(hall, context, 30.0, 1.0, 1.0)
    assert context.finished
