"""What lands in the replay against playing every environment by hand, one after another."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from evorl.algorithms.dqn import DQN
from evorl.algorithms.noise import BLOCK
from evorl.envs import EnvSpec, make_vector_env
from evorl.experience import ReplayBuffer, UniformSampler
from evorl.genome import Architecture, Genome
from evorl.networks.layout import network_part
from evorl.networks.module import to_module
from evorl.pipeline.collect import Collect
from evorl.pipeline.evaluate import TakeReturns
from evorl.pipeline.training_context import TrainingContext
from evorl.pipeline.training_log import TrainingLog
from evorl.seeding import generator, integers
from evorl.training.agents import observation_spec
from tests.pipeline.snapshots import alone
from tests.reference import population_of

torch.set_num_threads(1)

ID, SEED, ENVS, ROUNDS, CAPACITY = "Scripted-v0", 5, 3, 25, 500
HIDDEN = ((8, 8), (5,), (20,))


class Scripted(gymnasium.Env):
    """A number drawn at reset decides how long the episode is, and how it ends."""

    observation_space = spaces.Box(-2, 2, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.time = int(self.np_random.integers(1000)), 0
        return self._observe(0), {}

    def step(self, action):
        self.time += 1
        over = self.time >= 2 + self.number % 4
        kind = self.number // 4 % 2
        reward = self.number + self.time / 8 + int(action) / 64  # exact in float32
        return self._observe(action), reward, over and kind == 0, over and kind == 1, {}

    def _observe(self, action):
        return np.array([self.number / 500 - 1, self.time / 4, action - 1], np.float32)


@pytest.fixture(autouse=True)
def scripted():
    gymnasium.register(ID, entry_point=Scripted)
    yield
    del gymnasium.registry[ID]


def make_parts(agents, n_step=1, shared=False, **changed):
    env = make_vector_env(EnvSpec(ID, backend="sync"), agents, ENVS)
    values = {"epsilon_start": 0.9, "epsilon_end": 0.2, "epsilon_steps": 60} | changed
    genomes = [
        Genome(i, {"q": Architecture(HIDDEN[i % 3])}, DQN(**values).hyperparameters)
        for i in range(agents)
    ]
    spec = observation_spec(env.observation).giving(env.action.n, dueling=True)
    population = population_of(genomes, spec, DQN(), seed=SEED)
    observation = env.observation
    buffer = ReplayBuffer(
        CAPACITY, observation.shape, observation.dtype, n_step, 1 if shared else agents
    )
    sampler = UniformSampler(buffer, [np.random.default_rng(i) for i in range(agents)])
    collect = Collect(alone(), population, env, buffer, sampler, n_step=n_step, seed=SEED)
    return population, buffer, collect, TrainingContext(agents)


def run(agents, rounds=ROUNDS, generations=2, **options):
    population, buffer, collect, context = make_parts(agents, **options)
    for _ in range(generations):
        for _ in range(rounds):
            collect(context)
            context.iteration += 1
        collect.end_generation()
        context.generation += 1
    collect.env.close()
    return population, buffer, context


def held(buffer):
    """Each replay's items in the order in which they came: a list of dicts of arrays."""
    names = ("obs", "action", "rewards", "next_obs", "bootstrap")
    states = [buffer.state_dict(replay) for replay in range(buffer.num_replays)]
    return [{name: state[name].numpy() for name in names} for state in states]


def played(population, agent, n_step, rounds=ROUNDS, generations=2):
    """One agent's windows by the definitions: (rows in order, steps, episodes)."""
    genome = population.genomes[agent]
    module = to_module(
        population.specs["q"],
        genome.architectures["q"],
        network_part(population.state(agent).online, "q"),
    )
    rows, steps, episodes = [], 0, 0
    for generation in range(generations):
        random = generator(SEED, "explore", generation, agent)
        chances, choices = random.random((BLOCK, ENVS)), random.integers(3, size=(BLOCK, ENVS))
        seeds = integers(SEED, "environment", generation, agent, count=ENVS)
        envs = [gymnasium.make(ID) for _ in range(ENVS)]
        obs = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
        pending = [[] for _ in envs]
        for t in range(rounds):
            rate = 0.9 + (0.2 - 0.9) * min(steps / 60, 1)
            for i, env in enumerate(envs):
                with torch.no_grad():
                    action = int(module(torch.from_numpy(obs[i])[None]).argmax())
                if chances[t, i] < rate:
                    action = int(choices[t, i])
                after, reward, terminated, truncated, _ = env.step(action)
                pending[i].append((obs[i], action, reward))
                over = terminated or truncated
                while pending[i] and (over or len(pending[i]) == n_step):
                    rows.append(window(pending[i], n_step, after, terminated))
                    pending[i].pop(0)
                obs[i] = env.reset()[0] if over else after
                episodes += over
            steps += ENVS
        for own, latest in zip(pending, obs, strict=True):  # the end cuts what is running
            while own:
                rows.append(window(own, n_step, latest, False))
                own.pop(0)
    return rows, steps, episodes


def window(pending, n_step, after, terminated):
    rewards = [reward for _, _, reward in pending]
    rewards += [0.0] * (n_step - len(pending))
    obs, action, _ = pending[0]
    return obs, action, rewards, after, 0 if terminated else len(pending)


@pytest.mark.parametrize("n_step", [1, 3])
def test_each_agents_replay_holds_what_it_played(n_step):
    population, buffer, context = run(3, n_step=n_step)
    assert context.agent_steps.tolist() == [2 * ROUNDS * ENVS] * 3
    assert context.new_steps.tolist() == [ENVS] * 3
    episodes = 0
    for agent, got in enumerate(held(buffer)):
        rows, steps, own_episodes = played(population, agent, n_step)
        episodes += own_episodes
        assert steps == len(rows) == len(got["action"])
        for name, expected in zip(got, zip(*rows, strict=True), strict=True):
            np.testing.assert_array_equal(got[name], np.array(expected), err_msg=name)
        assert set(got["bootstrap"]) == set(range(n_step + 1))  # ends of both kinds were met
    assert context.episodes == episodes


def test_a_shared_replay_holds_the_same_items_of_all_agents():
    _, apart, _ = run(2)
    _, together, _ = run(2, shared=True)
    (got,) = held(together)
    for name, rows in got.items():
        own = [part[name].reshape(2 * ROUNDS, ENVS, *rows.shape[1:]) for part in held(apart)]
        np.testing.assert_array_equal(rows, np.concatenate(own, 1).reshape(rows.shape))


def test_another_agent_changes_nobody_elses_experience():
    two, three = (held(run(agents)[1]) for agents in (2, 3))
    for agent in range(2):
        for name, rows in two[agent].items():
            np.testing.assert_array_equal(rows, three[agent][name])
    assert (two[0]["obs"] != two[1]["obs"]).any()  # agents have seeds of their own


def test_a_generation_has_seeds_of_its_own():
    first, second = (held(run(1, generations=g)[1])[0]["obs"] for g in (1, 2))
    np.testing.assert_array_equal(first, second[: len(first)])
    assert (second[: len(first)] != second[len(first) :]).any()


def test_exploration_follows_the_agents_own_steps():
    _, _, collect, context = make_parts(2)
    context.agent_steps = np.array([0, 30])
    np.testing.assert_allclose(collect.population.exploration(context.agent_steps), [0.9, 0.55])
    context.agent_steps = np.array([60, 10**9])
    np.testing.assert_allclose(collect.population.exploration(context.agent_steps), [0.2, 0.2])
    collect.env.close()


def test_native_rows_that_are_no_steps_are_neither_stored_nor_counted():
    env = make_vector_env(EnvSpec("CartPole-v1", backend="native"), 2, 4)
    spec = observation_spec(env.observation).giving(env.action.n, dueling=True)
    hyperparameters = DQN().hyperparameters
    genomes = [Genome(i, {"q": Architecture((8,))}, hyperparameters) for i in range(2)]
    population = population_of(genomes, spec, DQN())
    buffer = ReplayBuffer(1000, (4,), torch.float32, 1, num_replays=2)
    sampler = UniformSampler(buffer, [np.random.default_rng(i) for i in range(2)])
    collect = Collect(alone(), population, env, buffer, sampler, n_step=1, seed=1)
    context = TrainingContext(2)
    resets = 0
    for _ in range(60):
        before, episodes = context.env_steps, context.episodes
        collect(context)
        assert context.env_steps - before == 8 - resets
        resets = context.episodes - episodes  # each costs its slot the next round
    env.close()
    assert context.episodes > 0
    assert buffer.sizes.tolist() == context.agent_steps.tolist()
    for part in held(buffer):  # a transition moves x by 0.02 times its speed: no jumps
        obs, next_obs = part["obs"], part["next_obs"]
        np.testing.assert_allclose(next_obs[:, 0], obs[:, 0] + 0.02 * obs[:, 1], atol=1e-6)
        assert (part["bootstrap"] == 0).sum() > 0


@pytest.mark.parametrize("backend", ["sync", "native"])
def test_returns_are_those_of_the_episodes_that_ended(backend):
    """CartPole pays 1 a step: by hand they are lengths."""
    env = make_vector_env(EnvSpec("CartPole-v1", backend), 2, 3)
    spec = observation_spec(env.observation).giving(env.action.n, dueling=True)
    genomes = [Genome(i, {"q": Architecture((8,))}, DQN().hyperparameters) for i in range(2)]
    population = population_of(genomes, spec, DQN())
    buffer = ReplayBuffer(1000, (4,), torch.float32, 1, num_replays=2)
    sampler = UniformSampler(buffer, [np.random.default_rng(i) for i in range(2)])
    collect = Collect(alone(), population, env, buffer, sampler, n_step=1, seed=1)
    context, take = TrainingContext(2), TakeReturns(population, collect.returns)
    for generation in range(2):
        context.generation, context.episodes = generation, 0
        lengths, expected = np.zeros(6), [[], []]
        counted, add = [], collect.returns.add
        collect.returns.add = lambda *step, add=add, counted=counted: (
            counted.append(step),
            add(*step),
        )
        for _ in range(60):
            collect(context)
        collect.returns.add = add
        for step, valid, _ in counted:
            lengths += valid
            for slot in np.flatnonzero((step.terminated | step.truncated) & valid):
                expected[slot // 3].append(lengths[slot])
                lengths[slot] = 0
        take(context)
        assert context.episodes == sum(map(len, expected)) > 6
        for own, row in zip(expected, context.returns, strict=True):
            assert row[: len(own)].tolist() == own
            assert np.isnan(row[len(own) :]).all()
        sums = context.log.sums
        assert sums["episodes"].sum(0).tolist() == [len(own) for own in expected]
        assert sums["return"].sum(0).tolist() == sums["length"].sum(0).tolist()
        assert sums["return"].sum(0).tolist() == [sum(own) for own in expected]
        context.log = TrainingLog(2)
        collect.end_generation()
    population.alive[0] = False
    take(context)
    assert context.returns[0, 0] == -np.inf
    assert np.isnan(context.returns[0, 1:]).all()
    env.close()


@pytest.mark.parametrize("n_step", [1, 3])
def test_the_dead_teach_nobody_and_spend_nothing(n_step):
    population, buffer, collect, context = make_parts(3, n_step, shared=True)
    for _ in range(5):
        collect(context)
    before = context.agent_steps.copy()
    stored = [int(buffer.sizes[0])]
    population.alive[1] = False
    for _ in range(4):
        collect(context)
    collect.end_generation()
    collect.env.close()
    assert (context.agent_steps - before).tolist() == [4 * ENVS, 0, 4 * ENVS]
    # the others' windows all arrive; of the dead one only those that were complete before
    stored.append(int(buffer.sizes[0]))
    assert stored[1] <= 9 * 2 * ENVS + 5 * ENVS
    assert stored[1] >= 9 * 2 * ENVS
