"""The best agent is the one that wins on further seeds, and what is kept is a snapshot."""

import numpy as np
import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.config import parse_config
from evorl.envs import EnvSpec, make_episodes
from evorl.evolution import MEAN
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NetworkSpec
from evorl.pipeline import evaluate
from evorl.pipeline.champion import FIRST_WAVE, Champion, settled
from evorl.pipeline.evaluate import Played, play
from evorl.runs.agent import read_agent
from evorl.runs.directory import RunDirectory
from evorl.seeding import held_out, integers
from tests.pipeline.snapshots import alone, context_of
from tests.reference import population_of

torch.set_num_threads(1)


@pytest.fixture
def episodes():
    made = make_episodes(EnvSpec("CartPole-v1", "sync"), 6)
    yield made
    made.close()


def make_champion(folder, episodes, confirm_episodes=4, stop_at=None):
    """The stage, the main rank's context, and the population that is alive."""
    genomes = [Genome(10 + i, {"q": Architecture((8,))}, DQN().hyperparameters) for i in range(3)]
    live = population_of(genomes, NetworkSpec(4, 2), seed=1)
    evaluation = {"confirm_episodes": confirm_episodes, "max_steps": 50}
    budget = {"env_steps": 1} | ({} if stop_at is None else {"stop_at": stop_at})
    given = {"env": {"id": "CartPole-v1"}, "evaluation": evaluation, "budget": budget, "seed": 5}
    directory = RunDirectory.create(folder, "run")
    champion = Champion(alone(), live, episodes, directory, parse_config(given))
    return champion, context_of(live), live


def evaluated(champion, context, *fitness):
    context.snapshot.fitness = np.array(fitness)
    champion(context)
    assert context.snapshot.best == champion.score
    context.snapshot.generation += 1


@pytest.fixture
def confirmations(monkeypatch):
    """What the further episodes are to show, one number per confirmation."""
    left: list[float] = []

    def given(population, episodes, seeds, max_steps):
        return Played(np.full((1, len(seeds)), left.pop(0)), np.array([7]))

    monkeypatch.setattr(evaluate, "play", given)
    return left


def kept(champion):
    return read_agent(champion.directory.path / "best")


def test_the_further_episodes_are_played_by_the_agent_on_seeds_of_their_own(tmp_path, episodes):
    champion, context, live = make_champion(tmp_path, episodes)
    evaluated(champion, context, 1.0, 9.0, 3.0)
    seeds = integers(5, "confirmation", count=4)
    assert champion.seeds == seeds
    assert not set(seeds) & set(held_out(5, 100))
    assert not set(seeds) & set(integers(5, "evaluation", 0, count=10))
    one = make_episodes(EnvSpec("CartPole-v1", "sync"), 12)
    expected = play(live, one, seeds, 50)
    one.close()
    assert champion.score == expected.returns[1].mean()
    assert context.snapshot.evaluation_steps == expected.returns[1].sum()  # CartPole pays 1 a step


def test_a_lucky_fitness_does_not_replace_the_best(tmp_path, episodes, confirmations):
    champion, context, _ = make_champion(tmp_path, episodes)
    confirmations[:] = [20.0, 15.0, 20.0]
    context.snapshot.agent_steps[:] = 30
    context.snapshot.env_steps = 90
    evaluated(champion, context, 30.0, 5.0, 3.0)
    assert (champion.score, champion.agent.genome.id) == (20.0, 10)
    evaluated(champion, context, 1.0, 40.0, 3.0)  # the highest yet, but not confirmed
    assert (champion.score, champion.agent.genome.id) == (20.0, 10)
    evaluated(champion, context, 1.0, 19.0, 19.9)  # below the confirmed score: plays nothing
    assert len(confirmations) == 1
    context.snapshot.returns = np.array([[1.0, 1.0], [2.0, 2.0], [17.0, 21.0]])
    evaluated(champion, context, 1.0, 2.0, 19.0)  # below by less than its standard error, 2
    assert (champion.score, champion.agent.genome.id) == (20.0, 12)
    # as good, and it learned longer
    assert context.snapshot.evaluation_steps == 21
    assert kept(champion).genome.id == 12
    assert kept(champion).facts == {
        "env": "CartPole-v1",
        "place": 2,
        "fitness": 19.0,
        "confirmed": 20.0,
        "confirm_episodes": 4,
        "generation": 3,
        "env_steps": 90,
        "own_steps": 30,
    }


class Races:
    """What each agent is to show on the further seeds, round and round.

    And what was played: the agent, the first seed, and how many.
    """

    def __init__(self):
        self.returns, self.played, self.seeds = {}, [], []

    def __call__(self, population, episodes, seeds, max_steps):
        (genome,) = population.genomes
        places = [self.seeds.index(seed) for seed in seeds]
        self.played.append((genome.id, places[0], len(places)))
        return Played(np.array([self.returns[genome.id]])[:, places], np.array([len(seeds)]))

    def take(self):
        """What was played since the last time."""
        played, self.played = self.played, []
        return played


@pytest.fixture
def races(monkeypatch):
    made = Races()
    monkeypatch.setattr(evaluate, "play", made)
    return made


@pytest.fixture
def begin(tmp_path, episodes, races):
    """A stage and its context, with what agents are to show on so many further seeds."""

    def begun(returns, confirm_episodes, stop_at=None, name="run"):
        champion, context, _ = make_champion(tmp_path / name, episodes, confirm_episodes, stop_at)
        races.returns, races.seeds = returns, champion.seeds
        return champion, context

    return begun


def spread(mean, error, count=100):
    """Returns of which any five in a row have this mean, and nearly this standard error."""
    return mean + error * np.sqrt(5) * np.resize([0.0, 1.1, -1.1, 0.9, -0.9], count)


def champion_of(champion):
    return champion.agent.genome.id, pytest.approx(champion.score), len(champion.played)


def test_the_first_to_come_has_nobody_to_beat(begin, races):
    champion, context = begin({10: spread(10, 2)}, 12)
    evaluated(champion, context, 30.0, 1.0, 1.0)
    assert races.take() == [(10, 0, 5)]
    assert champion_of(champion) == (10, 10, 5)
    assert context.snapshot.best_episodes == kept(champion).facts["confirm_episodes"] == 5


def test_a_race_ends_when_it_is_settled_either_way(begin, races):
    champion, context = begin(
        {10: np.full(100, 50.0), 11: spread(47.5, 2), 12: spread(53.5, 2)}, 100
    )
    evaluated(champion, context, 90.0, 1.0, 1.0)
    races.take()
    evaluated(champion, context, 1.0, 90.0, 1.0)  # behind by 1.25 standard errors
    assert races.take() == [(11, 5, 5), (10, 5, 5)]
    assert champion_of(champion) == (10, 50.0, 10)
    evaluated(champion, context, 1.0, 1.0, 90.0)  # ahead by 1.75
    assert races.take() == [(12, 10, 5), (10, 10, 5)]
    assert champion_of(champion) == (12, 53.5, 5)


def test_what_the_champion_has_not_played_it_plays_when_a_race_comes_to_that(begin, races):
    champion, context = begin({10: np.full(30, 50.0), 11: spread(51, 1.2), 12: spread(51, 1.2)}, 30)
    evaluated(champion, context, 90.0, 1.0, 1.0)
    races.take()
    evaluated(champion, context, 1.0, 90.0, 1.0)  # ahead by 0.8 of an error, then by 1.2
    waves = [(5, 5), (10, 5)]
    assert races.take() == [(agent, *wave) for wave in waves for agent in (11, 10)]
    assert champion_of(champion) == (11, 51, 10)
    races.returns[12] = races.returns[11] + spread(0, 0.1)
    evaluated(champion, context, 1.0, 1.0, 90.0)  # on the whole the same: of equals the later one
    # round and round; the champion has played 5 to 15
    one, other = [(12, 10, 5), (12, 15, 5), (12, 20, 10), (12, 0, 10)], [(11, 15, 5), (11, 20, 10)]
    played = races.take()
    assert [wave for wave in played if wave[0] == 12] == one
    assert [wave for wave in played if wave[0] == 11] == [*other, (11, 0, 5)]
    assert champion_of(champion) == (12, 51, 30)


def test_agents_that_are_alike_at_first_are_told_apart_later(begin, races):
    """Where returns are at their highest."""
    often = np.where(np.arange(100) % 25 == 20, 0.0, 1.0)  # an episode in 25 fails
    champion, context = begin({10: often, 11: np.ones(100)}, 100)
    evaluated(champion, context, 1.0, 0.0, 0.0)
    evaluated(champion, context, 0.0, 1.0, 0.0)
    assert champion_of(champion)[0] == 11


def test_a_champion_that_was_lucky_is_known_better_after_the_next_race(begin, races):
    lucky = np.r_[spread(50, 4, 5), spread(10, 4, 15)]
    champion, context = begin({10: lucky, 11: spread(5, 1, 20)}, 20)
    evaluated(champion, context, 90.0, 1.0, 1.0)
    assert champion_of(champion) == (10, 50, 5)
    evaluated(champion, context, 1.0, 90.0, 1.0)
    assert races.take() == [(10, 0, 5), (11, 5, 5), (10, 5, 5)]
    assert champion_of(champion) == (10, 30, 10)
    assert kept(champion).facts["confirm_episodes"] == 10
    assert kept(champion).facts["confirmed"] == pytest.approx(30)


def test_how_often_a_race_errs():
    """The figures of docs/evolution.md, by simulation: differences are normal, with spread 1."""
    advantages = (-0.5, -0.2, -0.1, 0, 0.1, 0.2, 0.5, 1)
    known = {
        20: ((4, 21, 33, 48, 62, 73, 94, 100), (7, 10, 11, 11, 11, 11, 8, 6)),
        100: ((1, 10, 21, 43, 67, 82, 97, 100), (10, 23, 30, 34, 33, 28, 13, 6)),
    }
    for most, (wins, counts) in known.items():
        for advantage, won, count in zip(advantages, wins, counts, strict=True):
            found = [raced(np.random.default_rng((7, i)), advantage, most) for i in range(1000)]
            assert 100 * np.mean([own for own, _ in found]) == pytest.approx(won, abs=4)
            assert np.mean([played for _, played in found]) == pytest.approx(count, rel=0.1, abs=1)


def raced(random, advantage, most):
    """Whether a candidate with this advantage wins by the rule of a race, and when that is over."""
    difference, count = random.normal(advantage, 1, most), 0
    while count < most:
        count = min(max(FIRST_WAVE, 2 * count), most)
        lead, over = settled(MEAN, difference[:count], np.zeros(count), most)
        if over:
            break
    return lead >= 0, count


def test_what_the_best_played_is_known_after_resuming(begin, races):
    returns = {10: np.full(100, 50.0), 11: spread(50.2, 2)}
    champion, context = begin(returns, 12)
    evaluated(champion, context, 30.0, 1.0, 1.0)
    other, later = begin(returns, 12, name="other")
    other.restore(*champion.state())
    assert champion_of(other) == (10, 50.0, 5)
    later.snapshot.generation = context.snapshot.generation
    played = []
    for stage, own in ((champion, context), (other, later)):
        races.take()
        evaluated(stage, own, 1.0, 60.0, 1.0)
        played.append(races.take())
    assert played[0] == played[1]
    assert (10, 5, 5) in played[0]


def test_what_is_kept_does_not_learn_on(tmp_path, episodes):
    champion, context, live = make_champion(tmp_path, episodes)
    evaluated(champion, context, 5.0, 1.0, 1.0)
    before = {name: value.clone() for name, value in context.snapshot.states[0].online.items()}
    for group in live.groups:
        group.theta.add_(1)
    for agent in (champion.saved_agent(), kept(champion)):
        assert all(torch.equal(agent.parameters[name], value) for name, value in before.items())


def test_negative_fitness_is_kept_too_and_the_dead_never(tmp_path, episodes, confirmations):
    champion, context, _ = make_champion(tmp_path, episodes)
    confirmations[:] = [-710.0]
    evaluated(champion, context, -np.inf, -np.inf, -np.inf)
    assert champion.agent is None
    evaluated(champion, context, np.nan, -700.0, -800.0)
    assert (champion.score, champion.agent.genome.id) == (-710.0, 11)


def test_the_first_is_kept_even_if_it_cannot_be_confirmed(tmp_path, episodes, confirmations):
    champion, context, _ = make_champion(tmp_path, episodes)
    confirmations[:] = [np.nan, 1.0]
    evaluated(champion, context, 5.0, 1.0, 1.0)
    assert (champion.score, champion.agent.genome.id) == (-np.inf, 10)
    assert kept(champion).facts["confirmed"] is None
    evaluated(champion, context, 0.0, 2.0, 1.0)
    assert (champion.score, champion.agent.genome.id) == (1.0, 11)


def test_a_confirmed_score_ends_the_run(tmp_path, episodes, confirmations):
    champion, context, _ = make_champion(tmp_path, episodes, stop_at=20.0)
    confirmations[:] = [19.0, 20.0]
    evaluated(champion, context, 30.0, 1.0, 1.0)
    assert not context.snapshot.finished
    evaluated(champion, context, 30.0, 1.0, 1.0)
    assert context.snapshot.finished


def test_only_all_further_episodes_can_end_the_run(begin, races):
    fades = np.r_[spread(30, 2, 5), spread(60, 2, 5), spread(40, 2, 30)]
    champion, context = begin(
        {10: spread(50, 2), 11: fades, 12: spread(54.9, 0.5)}, 40, stop_at=55.0
    )
    evaluated(champion, context, 90.0, 1.0, 1.0)
    assert races.take() == [(10, 0, 5)]  # nowhere near
    evaluated(champion, context, 1.0, 90.0, 1.0)
    assert races.take() == [(11, 5, 5), (10, 5, 5), (11, 0, 5)]  # looks good, until it does not
    assert champion_of(champion) == (11, 45, 10)
    assert not context.snapshot.finished
    evaluated(champion, context, 1.0, 1.0, 90.0)  # 54.9, with an error of 0.5 and then 0.3
    assert races.take() == [(12, 10, 5), (11, 10, 5), *[(12, 0, 5), (12, 5, 10), (12, 20, 20)]]
    assert champion_of(champion) == (12, 54.9, 40)
    assert not context.snapshot.finished
    races.returns[10] = spread(55.2, 0.5)
    evaluated(champion, context, 90.0, 1.0, 1.0)
    assert champion_of(champion) == (10, 55.2, 40)
    assert champion.reached_stop_at
    assert context.snapshot.finished
