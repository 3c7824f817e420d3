"""The best agent is the one that wins on further seeds, and what is kept is a snapshot."""

import numpy as np
import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.config import parse_config
from evorl.envs import EnvSpec, make_episodes
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NetworkSpec
from evorl.pipeline import evaluate
from evorl.pipeline.evaluate import Confirm, Played, play
from evorl.runs.agent import read_agent
from evorl.runs.directory import RunDirectory
from evorl.seeding import held_out, integers
from tests.pipeline.snapshots import context_of
from tests.reference import population_of

torch.set_num_threads(1)


@pytest.fixture
def episodes():
    made = make_episodes(EnvSpec("CartPole-v1", "sync"), 6)
    yield made
    made.close()


def make_confirm(folder, episodes, confirm_episodes=4, stop_at=None):
    """The stage, the main rank's context, and the population that is alive."""
    genomes = [Genome(10 + i, {"q": Architecture((8,))}, DQN().hyperparameters) for i in range(3)]
    live = population_of(genomes, NetworkSpec(4, 2), seed=1)
    evaluation = {"confirm_episodes": confirm_episodes, "max_steps": 50}
    budget = {"env_steps": 1} | ({} if stop_at is None else {"stop_at": stop_at})
    given = {"env": {"id": "CartPole-v1"}, "evaluation": evaluation, "budget": budget, "seed": 5}
    directory = RunDirectory.create(folder, "run")
    return Confirm(live, episodes, directory, parse_config(given)), context_of(live), live


def evaluated(confirm, context, *fitness):
    context.snapshot.fitness = np.array(fitness)
    confirm(context)
    assert context.snapshot.best == confirm.score
    context.snapshot.generation += 1


@pytest.fixture
def confirmations(monkeypatch):
    """What the further episodes are to show, one number per confirmation."""
    left: list[float] = []

    def given(population, episodes, seeds, max_steps):
        return Played(np.full((1, len(seeds)), left.pop(0)), 7)

    monkeypatch.setattr(evaluate, "play", given)
    return left


def kept(confirm):
    return read_agent(confirm.directory.path / "best")


def test_the_further_episodes_are_played_by_the_agent_on_seeds_of_their_own(tmp_path, episodes):
    confirm, context, live = make_confirm(tmp_path, episodes)
    evaluated(confirm, context, 1.0, 9.0, 3.0)
    seeds = integers(5, "confirmation", count=4)
    assert confirm.seeds == seeds
    assert not set(seeds) & set(held_out(5, 100))
    assert not set(seeds) & set(integers(5, "evaluation", 0, count=10))
    one = make_episodes(EnvSpec("CartPole-v1", "sync"), 12)
    expected = play(live, one, seeds, 50)
    one.close()
    assert confirm.score == expected.returns[1].mean()
    assert context.snapshot.evaluation_steps == expected.returns[1].sum()  # CartPole pays 1 a step


def test_a_lucky_fitness_does_not_replace_the_best(tmp_path, episodes, confirmations):
    confirm, context, _ = make_confirm(tmp_path, episodes)
    confirmations[:] = [20.0, 15.0, 20.0]
    context.snapshot.agent_steps[:] = 30
    context.snapshot.env_steps = 90
    evaluated(confirm, context, 30.0, 5.0, 3.0)
    assert (confirm.score, confirm.champion.genome.id) == (20.0, 10)
    evaluated(confirm, context, 1.0, 40.0, 3.0)  # the highest yet, but not confirmed
    assert (confirm.score, confirm.champion.genome.id) == (20.0, 10)
    evaluated(confirm, context, 1.0, 19.0, 19.9)  # below the confirmed score: plays nothing
    assert len(confirmations) == 1
    context.snapshot.returns = np.array([[1.0, 1.0], [2.0, 2.0], [17.0, 21.0]])
    evaluated(confirm, context, 1.0, 2.0, 19.0)  # below by less than its standard error, 2
    assert (confirm.score, confirm.champion.genome.id) == (20.0, 12)
    # as good, and it learned longer
    assert context.snapshot.evaluation_steps == 21
    assert kept(confirm).genome.id == 12
    assert kept(confirm).facts == {
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

    monkeypatch.setattr(evaluate, "play", given)
    return left, played


def test_a_candidate_that_is_clearly_behind_plays_no_further(tmp_path, episodes, waves):
    left, played = waves
    confirm, context, _ = make_confirm(tmp_path, episodes, confirm_episodes=12)
    left[:] = [10.0] * 12
    evaluated(confirm, context, 30.0, 1.0, 1.0)
    assert [len(seeds) for seeds in played] == [5, 5, 2]
    assert [seed for seeds in played for seed in seeds] == confirm.seeds
    del played[:]
    left[:] = [9.0, 7.0, 9.0, 7.0, 9.0]  # behind by 1.8, with a standard error of 0.5
    evaluated(confirm, context, 30.0, 1.0, 1.0)
    assert [len(seeds) for seeds in played] == [5]
    assert (confirm.score, context.snapshot.evaluation_steps) == (10.0, 17)
    del played[:]
    left[:] = [0.0, 18.0, 0.0, 18.0, 9.0] * 2 + [100.0, 100.0]  # behind by 1, the error is 4 or 3
    evaluated(confirm, context, 30.0, 1.0, 1.0)
    assert [len(seeds) for seeds in played] == [5, 5, 2]
    assert confirm.score == pytest.approx(290 / 12)


def test_what_the_best_played_is_known_after_resuming(tmp_path, episodes, waves):
    left, played = waves
    confirm, context, _ = make_confirm(tmp_path / "a", episodes, confirm_episodes=12)
    left[:] = [10.0] * 12
    evaluated(confirm, context, 30.0, 1.0, 1.0)
    other, context, _ = make_confirm(tmp_path / "b", episodes, confirm_episodes=12)
    other.restore(*confirm.state())
    assert other.score == 10.0
    del played[:]
    left[:] = [9.0] * 12
    evaluated(other, context, 30.0, 1.0, 1.0)
    assert [len(seeds) for seeds in played] == [5]


def test_what_is_kept_does_not_learn_on(tmp_path, episodes):
    confirm, context, live = make_confirm(tmp_path, episodes)
    evaluated(confirm, context, 5.0, 1.0, 1.0)
    before = {name: value.clone() for name, value in context.snapshot.states[0].online.items()}
    for group in live.groups:
        group.theta.add_(1)
    for agent in (confirm.returned(), kept(confirm)):
        assert all(torch.equal(agent.parameters[name], value) for name, value in before.items())


def test_negative_fitness_is_kept_too_and_the_dead_never(tmp_path, episodes, confirmations):
    confirm, context, _ = make_confirm(tmp_path, episodes)
    confirmations[:] = [-710.0]
    evaluated(confirm, context, -np.inf, -np.inf, -np.inf)
    assert confirm.champion is None
    evaluated(confirm, context, np.nan, -700.0, -800.0)
    assert (confirm.score, confirm.champion.genome.id) == (-710.0, 11)


def test_the_first_is_kept_even_if_it_cannot_be_confirmed(tmp_path, episodes, confirmations):
    confirm, context, _ = make_confirm(tmp_path, episodes)
    confirmations[:] = [np.nan, 1.0]
    evaluated(confirm, context, 5.0, 1.0, 1.0)
    assert (confirm.score, confirm.champion.genome.id) == (-np.inf, 10)
    assert kept(confirm).facts["confirmed"] is None
    evaluated(confirm, context, 0.0, 2.0, 1.0)
    assert (confirm.score, confirm.champion.genome.id) == (1.0, 11)


def test_a_confirmed_score_ends_the_run(tmp_path, episodes, confirmations):
    confirm, context, _ = make_confirm(tmp_path, episodes, stop_at=20.0)
    confirmations[:] = [19.0, 20.0]
    evaluated(confirm, context, 30.0, 1.0, 1.0)
    assert not context.snapshot.finished
    evaluated(confirm, context, 30.0, 1.0, 1.0)
    assert context.snapshot.finished
