"""Playing in step against one episode after another, with the exported networks."""

import warnings
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from evorl.algorithms.dqn import DQN
from evorl.config import EvaluationConfig
from evorl.envs import EnvSpec, make_episodes
from evorl.genome import Architecture, Genome
from evorl.networks.layout import network_part
from evorl.networks.module import to_module
from evorl.pipeline.evaluate import Evaluate, play, tell_endless
from evorl.pipeline.training_context import TrainingContext
from evorl.seeding import integers
from evorl.training.agents import observation_spec
from tests.reference import population_of

torch.set_num_threads(1)

SEEDS = [11, 2**31 - 1, 7, 123456, 0]
SHAPES = [Architecture((16, 16)), Architecture((5,)), Architecture((40,), "tanh", True, True)]


class Counted(gymnasium.Env):
    """Notes the steps of every episode, by the seed that it began with."""

    observation_space = spaces.Box(0, 9, (2,), np.float32)
    action_space = spaces.Discrete(2)
    taken: list[int] = []  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.left = seed, 2 + seed % 3
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.taken.append(self.seed)
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}


@pytest.fixture
def counted():
    gymnasium.register("Counted-v0", entry_point=Counted)
    Counted.taken.clear()
    yield Counted.taken
    del gymnasium.registry["Counted-v0"]


def make_population(episodes, shapes=SHAPES):
    hyperparameters = DQN().hyperparameters
    genomes = [Genome(i, {"q": shape}, hyperparameters) for i, shape in enumerate(shapes)]
    spec = observation_spec(episodes.observation).giving(episodes.action.n, dueling=True)
    return population_of(genomes, spec, DQN(), seed=4)


def by_hand(population, agent, env_id, seed, max_steps):
    """(return, steps) of one greedy episode."""
    genome = population.genomes[agent]
    module = to_module(
        population.specs["q"],
        genome.architectures["q"],
        network_part(population.state(agent).online, "q"),
    )
    env = gymnasium.make(env_id)
    obs, _ = env.reset(seed=seed)
    total = steps = 0
    over = False
    while not over and steps < max_steps:
        with torch.no_grad():
            action = int(module(torch.as_tensor(np.asarray(obs))[None]).argmax())
        obs, reward, terminated, truncated, _ = env.step(action)
        total, steps, over = total + reward, steps + 1, terminated or truncated
    env.close()
    return total, steps


@pytest.mark.parametrize(
    ("env_id", "max_steps"),
    [("CartPole-v1", 500), ("CartPole-v1", 9), ("Acrobot-v1", 60), ("FrozenLake-v1", 100)],
)
def test_play_equals_playing_by_hand(env_id, max_steps):
    episodes = make_episodes(EnvSpec(env_id, backend="sync"), len(SHAPES) * len(SEEDS))
    population = make_population(episodes)
    ended = []
    got = play(population, episodes, SEEDS, max_steps, ended.append)
    episodes.close()
    expected = np.array(
        [
            [by_hand(population, agent, env_id, seed, max_steps) for seed in SEEDS]
            for agent in range(len(SHAPES))
        ]
    )
    np.testing.assert_array_equal(got.returns, expected[:, :, 0])
    assert got.steps == expected[:, :, 1].sum()
    assert sum(ended) == expected[:, :, 1].size


def test_only_running_episodes_are_stepped(counted):
    episodes = make_episodes(EnvSpec("Counted-v0", backend="sync"), 6)
    population = make_population(episodes, SHAPES[:2])
    counted.clear()
    got = play(population, episodes, [3, 4, 5], 100)
    assert got.returns.tolist() == [[2, 3, 4]] * 2
    assert got.steps == len(counted) == 18
    counted.clear()
    got = play(population, episodes, [3, 4, 5], 3)
    assert got.returns.tolist() == [[2, 3, 3]] * 2
    assert got.steps == len(counted) == 16
    episodes.close()


class Noted(Counted):
    """Notes every step in a file, from whatever process."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def step(self, action):
        with open(self.file, "ab") as file:
            file.write(b"x")
        return super().step(action)


def test_workers_take_no_steps_that_nobody_counts(tmp_path):
    """Not in slots that are left over, or a dead agent's, or after an episode."""
    gymnasium.register("Noted-v0", entry_point=Noted)
    file = tmp_path / "steps"
    spec = EnvSpec("Noted-v0", backend="async", kwargs={"file": str(file)})
    episodes = make_episodes(spec, 6)
    try:
        population = make_population(episodes, SHAPES[:2])
        for alive, seeds in ((True, [3, 4, 5]), (True, [3, 4]), (False, [3, 4, 5])):
            population.alive[1] = alive
            file.write_bytes(b"")
            got = play(population, episodes, seeds, 100)
            assert got.returns[0].tolist() == [seed - 1 for seed in seeds]
            assert got.steps == len(file.read_bytes())
            assert got.steps == sum(seed - 1 for seed in seeds) * (1 + alive)
    finally:
        episodes.close()
        del gymnasium.registry["Noted-v0"]


@pytest.mark.parametrize("backend", ["sync", "async", "envpool"])
def test_any_number_of_slots_plays_the_same_episodes(backend):
    """EnvPool takes seeds for all slots at once only: there the next begin when all are over."""
    if backend == "envpool":
        pytest.importorskip("envpool")
    seeds = list(range(7))
    played = []
    for slots in (3 * 7, 3 * 3, 2, 1):
        episodes = make_episodes(EnvSpec("CartPole-v1", backend), slots)
        ended = []
        played.append(play(make_population(episodes), episodes, seeds, 60, ended.append))
        assert sum(ended) == 3 * 7
        episodes.close()
    for other in played[1:]:
        assert other.steps == played[0].steps
        np.testing.assert_array_equal(other.returns, played[0].returns)


def test_the_dead_are_not_stepped(counted):
    episodes = make_episodes(EnvSpec("Counted-v0", backend="sync"), 9)
    population = make_population(episodes)
    counted.clear()
    population.alive[1] = False
    got = play(population, episodes, [3, 4, 5], 100)
    assert got.steps == len(counted) == 18
    assert got.returns.tolist() == [[2, 3, 4], [0, 0, 0], [2, 3, 4]]
    population.alive[:] = False
    counted.clear()
    assert play(population, episodes, [3, 4, 5], 100).steps == len(counted) == 0
    episodes.close()


def test_returns_are_those_on_the_generations_seeds():
    episodes = make_episodes(EnvSpec("CartPole-v1", backend="sync"), 3 * 4)
    population = make_population(episodes)
    evaluate = Evaluate(population, episodes, EvaluationConfig(episodes=4, max_steps=50), seed=9)
    context, seen = TrainingContext(3), []
    for generation in range(2):
        context.generation = generation
        evaluate(context)
        seen.append(context.returns)
        seeds = integers(9, "evaluation", generation, count=4)
        expected = play(population, episodes, seeds, 50).returns
        np.testing.assert_array_equal(context.returns, expected)
    assert (seen[0] != seen[1]).any()  # a generation has episodes of its own
    assert context.evaluation_steps == sum(int(returns.sum()) for returns in seen)
    episodes.close()


def test_an_agent_whose_weights_are_not_finite_is_dead():
    episodes = make_episodes(EnvSpec("CartPole-v1", backend="sync"), 3)
    population = make_population(episodes)
    for numbers, group in zip(population.members, population.groups, strict=True):
        group.theta[numbers == 1, 0] = torch.inf
    evaluate = Evaluate(population, episodes, EvaluationConfig(episodes=1, max_steps=50), seed=9)
    context = TrainingContext(3)
    with pytest.warns(UserWarning, match="agent 1 is dead: its weights are no") as warned:
        evaluate(context)
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(context)  # it is named once
    assert population.alive.tolist() == [True, False, True]
    assert (context.returns[1] == -np.inf).all()
    assert np.isfinite(context.returns[[0, 2]]).all()
    episodes.close()


def test_a_return_that_is_no_number_is_said_with_its_agent():
    agents = [SimpleNamespace(id=0), SimpleNamespace(id=1)]
    population = SimpleNamespace(alive=np.ones(2, bool), genomes=agents)
    with pytest.warns(UserWarning, match="dead") as warned:
        tell_endless(population, np.array([[1.0, np.nan], [1.0, 2.0]]))
    (told,) = warned
    assert str(told.message) == (
        "agent 0 is dead: a return of its episodes is nan; look at the rewards; its fitness is -inf"
    )
    population.alive[0] = False  # of something else, which was said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tell_endless(population, np.array([[1.0, np.nan], [1.0, 2.0]]))
