"""Tiny environments whose Q values are known, learned with the real parts from end to end.

Behaviour is random throughout, so that every state and action is seen, and wherever an episode ends
its last observation is one that has values of its own: bootstrapping in the wrong place shows.
"""

from contextlib import closing
from dataclasses import dataclass, field

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import evorl.experience.transitions
from evorl.algorithms.dqn import DQN
from evorl.config import BudgetConfig, ReplayConfig, parse_config
from evorl.envs import EnvSpec, make_vector_env
from evorl.experience import PrioritisedSampler, ReplayBuffer, UniformSampler
from evorl.genome import Architecture, Genome
from evorl.pipeline.collect import Collect
from evorl.pipeline.learn import AnnealBeta, Learn
from evorl.pipeline.task import Task
from evorl.pipeline.training_context import TrainingContext
from evorl.population.population import Population
from evorl.runs.agent import load_agent
from evorl.seeding import generator
from evorl.training.agents import observation_spec
from evorl.training.trainer import train
from tests.pipeline.snapshots import alone

torch.set_num_threads(1)

TOLERANCE = 0.05
GAMMA = 0.9


class Table(gymnasium.Env):
    """table[state] holds (reward, next state, whether that ends the episode) for each action."""

    def __init__(self, table, starts=(0,), show="index"):
        self.table, self.starts, self.show = table, starts, show
        self.action_space = spaces.Discrete(len(table[0]))
        self.observation_space = {
            "index": spaces.Discrete(len(table)),
            "number": spaces.Box(-1, 1, (1,), np.float32),
            "image": spaces.Box(0, 255, (6, 5, 1), np.uint8),  # channels last
        }[show]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = int(self.np_random.choice(self.starts))
        return shown(self.show, len(self.table), self.state), {}

    def step(self, action):
        reward, self.state, ended = self.table[self.state][action]
        return shown(self.show, len(self.table), self.state), reward, ended, False, {}


def shown(how, states, state):
    """What an environment shows of a state."""
    if how == "index":
        return state
    if how == "number":
        return np.array([2 * state / (states - 1) - 1], np.float32)
    image = np.zeros((6, 5, 1), np.uint8)
    image[state : state + 2, state : state + 3] = 255
    return image


def both(*step):
    """The same whichever of two actions is taken."""
    return [step, step]


ONE_STEP = [both(1.0, 0, True)]
TWO_STEPS = [both(0.0, 1, False), both(2.0, 0, True)]
CONTEXTS = [[(x, 0, True), (-x, 0, True), (2 * x - 1, 0, True)] for x in (-1.0, 0.5, 2.0, 0.0)]
CHOICE = [[(0.0, 1, False), (1.0, 0, True)], [(3.0, 1, True), (-1.0, 0, True)]]
ONES = [both(1.0, (state + 1) % 3, False) for state in range(3)]
CYCLE = [both(reward, (state + 1) % 3, False) for state, reward in enumerate((2.0, 0.0, -1.0))]
CHAIN = [both(1.0, (state + 1) % 5, state == 4) for state in range(5)]

gymnasium.register("KnownOneStep-v0", Table, kwargs={"table": ONE_STEP})
gymnasium.register("KnownTwoSteps-v0", Table, kwargs={"table": TWO_STEPS})
gymnasium.register("KnownContexts-v0", Table, kwargs={"table": CONTEXTS, "starts": (0, 1, 2, 3)})
gymnasium.register("KnownChoice-v0", Table, kwargs={"table": CHOICE})
gymnasium.register("KnownOnes-v0", Table, max_episode_steps=5, kwargs={"table": ONES})
gymnasium.register("KnownCycle-v0", Table, max_episode_steps=5, kwargs={"table": CYCLE})
gymnasium.register("KnownEndless-v0", Table, kwargs={"table": CYCLE})
gymnasium.register("KnownChain-v0", Table, kwargs={"table": CHAIN})


def cycle_values(gamma):
    """r0 + gamma r1 + gamma² r2, and so on round and round."""
    rewards = [row[0][0] for row in CYCLE]
    turn = [sum(gamma**k * rewards[(s + k) % 3] for k in range(3)) for s in range(3)]
    return [[value / (1 - gamma**3)] * 2 for value in turn]


def chain_values(gamma):
    """1 + gamma + ... over the steps that are left."""
    return [[(1 - gamma ** (5 - s)) / (1 - gamma)] * 2 for s in range(5)]


# id → gamma → Q values [states, actions]
KNOWN = {
    "KnownOneStep-v0": lambda gamma: [[1.0, 1.0]],
    "KnownTwoSteps-v0": lambda gamma: [[2 * gamma] * 2, [2.0, 2.0]],
    "KnownContexts-v0": lambda gamma: [[r for r, _, _ in row] for row in CONTEXTS],
    "KnownChoice-v0": lambda gamma: [[3 * gamma, 1.0], [3.0, -1.0]],
    "KnownOnes-v0": lambda gamma: [[1 / (1 - gamma)] * 2] * 3,
    "KnownCycle-v0": cycle_values,
    "KnownEndless-v0": cycle_values,
    "KnownChain-v0": chain_values,
}


@dataclass(frozen=True)
class Setup:
    """How to learn an environment."""

    env_id: str
    gammas: tuple[float, ...] = (GAMMA,)  # one agent each
    iterations: int = 600  # steps of each of four environments, and updates of each agent
    generation: int = 10**9  # iterations between cuts
    show: str = "index"
    n_step: int = 1
    prioritised: bool = False
    own_replay: bool = False
    periodic: bool = False
    algorithm: DQN = field(default_factory=DQN)
    architecture: Architecture = field(default_factory=lambda: Architecture((32,), "tanh"))
    lr: float = 2e-2  # at first

    def genomes(self):
        common = {
            "lr": self.lr,
            "tau": 0.2,
            "batch_size": 32,
            "learn_step": 4,
            "max_grad_norm": 10.0,
            "target_period": 8,
            "epsilon_start": 1.0,
            "epsilon_end": 1.0,
            "epsilon_steps": 1,
        }
        return [
            Genome(i, {"q": self.architecture}, common | {"gamma": gamma})
            for i, gamma in enumerate(self.gammas)
        ]


def unbroken(collect):
    pass


def learned(setup, breaking=unbroken, seed=5):
    """A population that has learned; `breaking` may spoil the collect stage first."""
    agents = len(setup.gammas)
    spec = EnvSpec(setup.env_id, "sync", {"show": setup.show})
    with closing(make_vector_env(spec, agents, 4)) as env:
        kind = "periodic" if setup.periodic else "soft"
        algorithm = setup.algorithm.model_copy(update={"target_update": kind})
        networks = algorithm.networks(observation_spec(env.observation), env.action)
        population = Population(setup.genomes(), networks, algorithm, seed=seed)
        buffer = ReplayBuffer(
            2000,
            env.observation.shape,
            env.observation.dtype,
            setup.n_step,
            num_replays=agents if setup.own_replay else 1,
        )
        kind = PrioritisedSampler if setup.prioritised else UniformSampler
        sampler = kind(buffer, [generator(seed, "sample", 0, i) for i in range(agents)])
        collect = Collect(alone(), population, env, buffer, sampler, n_step=setup.n_step, seed=seed)
        breaking(collect)

        def advance(context):
            """Learning rates fall to 0: Adam keeps oscillating at a fixed one."""
            rest = 1 - (context.iteration + 1) / setup.iterations
            for group in population.groups:
                group.hp["lr"][:] = setup.lr * rest
            context.finished = context.iteration + 1 >= setup.iterations

        def cut(context):
            collect.end_generation()
            context.generation += 1

        task = Task(TrainingContext(agents))
        budget = BudgetConfig(env_steps=setup.iterations * agents * 4)
        task.use(AnnealBeta(sampler, ReplayConfig(), budget, agents * 4))
        task.use(collect)
        task.use(Learn(alone(), population, buffer, sampler))
        task.use(advance)
        task.use(cut, every=setup.generation)
        task.run()
    for agent in range(agents):
        assert population.state(agent).updates > setup.iterations - setup.n_step
    assert population.alive.all()
    return population


def observations(show, states):
    """All states, as networks see them."""
    obs = np.stack([shown(show, states, state) for state in range(states)])
    return torch.from_numpy(obs.transpose(0, 3, 1, 2).copy() if show == "image" else obs)


def errors(setup, population):
    """Each agent's largest error over all states and actions."""
    found = []
    for i, gamma in enumerate(setup.gammas):
        known = torch.tensor(KNOWN[setup.env_id](gamma))
        (group,) = population.groups
        obs = observations(setup.show, len(known))
        values = group.online["q"](torch.stack([obs] * group.size))[i]
        found.append((values - known).abs().max().item())
    return found


def assert_learns(setup):
    found = errors(setup, learned(setup))
    assert max(found) < TOLERANCE, found


@pytest.mark.parametrize("env_id", KNOWN)
def test_one_step_rewards(env_id):
    assert_learns(Setup(env_id))


@pytest.mark.parametrize(
    "env_id", ["KnownTwoSteps-v0", "KnownOnes-v0", "KnownCycle-v0", "KnownChain-v0"]
)
def test_n_step_rewards_have_the_same_values(env_id):
    assert_learns(Setup(env_id, n_step=3))


@pytest.mark.parametrize("show", ["number", "image"])
@pytest.mark.parametrize("env_id", ["KnownContexts-v0", "KnownCycle-v0"])
def test_observations_of_every_kind(env_id, show):
    image = {"channels": (4,), "kernels": (3,), "strides": (1,)} if show == "image" else {}
    architecture = Architecture((32,), "tanh", **image)
    assert_learns(Setup(env_id, show=show, architecture=architecture))


@pytest.mark.parametrize("env_id", ["KnownOnes-v0", "KnownChain-v0"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_agents_on_one_replay_keep_their_own_discounts(env_id, n_step):
    assert_learns(Setup(env_id, gammas=(0.5, 0.9, 0.0), n_step=n_step))


VARIANTS = {
    "prioritised": {"prioritised": True},
    "prioritised, own": {"prioritised": True, "own_replay": True, "gammas": (0.9, 0.5)},
    "own replay": {"own_replay": True, "gammas": (0.9, 0.5)},
    "dueling": {"architecture": Architecture((32,), "tanh", dueling=True)},
    "LayerNorm": {"architecture": Architecture((32,), "tanh", layer_norm=True)},
    "deeper": {"architecture": Architecture((32, 32), "silu", gated=(False, True))},
    "periodic target": {"periodic": True},
    "squared error": {"algorithm": DQN(loss_kind="mse")},
    "single": {"algorithm": DQN(double=False)},
    "everything": {
        "prioritised": True,
        "own_replay": True,
        "gammas": (0.9, 0.8),
        "n_step": 3,
        "periodic": True,
        "algorithm": DQN(loss_kind="mse"),
        "architecture": Architecture((32, 32), "elu", True, True, (False, True)),
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_learns_what_truncation_hides(variant):
    assert_learns(Setup("KnownCycle-v0", **VARIANTS[variant]))


@pytest.mark.parametrize("env_id", ["KnownEndless-v0", "KnownChain-v0"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_generation_s_end_counts_as_truncation(env_id, n_step):
    assert_learns(Setup(env_id, n_step=n_step, generation=13))


def test_training_from_a_configuration(tmp_path):
    """The trainer, its generations cut in mid-episode, and the agent that it leaves behind."""
    setup = Setup("KnownCycle-v0")
    (hyper,) = (g.hyperparameters for g in setup.genomes())
    config = {
        "compile": False,
        "env": {"id": setup.env_id, "backend": "sync", "num_envs": 4},
        "algorithm": {**hyper, "n_step": 3, "learning_starts": 0, "lr": 3e-3},
        "network": {"hidden": [32], "activation": "tanh", "dueling": True},
        "replay": {"kind": "prioritized", "capacity": 2000},
        "population": {"size": 2},
        "evaluation": {"every": 99, "episodes": 1, "final_episodes": 2},
        "budget": {"env_steps": 2 * 4 * 700},
        "run": {"folder": str(tmp_path)},
    }
    result = train(parse_config(config))
    agent = load_agent(result.directory / "best")
    with torch.no_grad():
        values = agent.networks["q"](observations("index", 3))
    known = torch.tensor(cycle_values(GAMMA))
    assert (values - known).abs().max() < TOLERANCE
    # the return of any greedy episode: 2 + 0 - 1 + 2 + 0
    assert result.score.mean.value == pytest.approx(3)


# These tests can fail: each fault is put in on purpose, and must be seen.


def truncation_ends(collect):
    push = collect.windows.push

    def broken(obs, action, reward, next_obs, terminated, truncated, valid):
        return push(obs, action, reward, next_obs, terminated | truncated, truncated, valid)

    collect.windows.push = broken


def termination_goes_on(collect):
    push = collect.windows.push

    def broken(obs, action, reward, next_obs, terminated, truncated, valid):
        over = terminated | truncated
        return push(obs, action, reward, next_obs, np.zeros_like(over), over, valid)

    collect.windows.push = broken


def next_episode_follows(collect):
    step = collect.env.step
    collect.env.step = lambda actions: (found := step(actions))._replace(next_obs=found.obs)


def windows_outlive_episodes(collect):
    push = collect.windows.push

    def broken(obs, action, reward, next_obs, terminated, truncated, valid):
        never = np.zeros_like(truncated)
        return push(obs, action, reward, next_obs, terminated, never, valid)

    collect.windows.push = broken


def cut_ends(collect):
    flush = collect.windows.flush

    def broken():
        found = flush()
        return found._replace(bootstrap=np.zeros_like(found.bootstrap))

    collect.windows.flush = broken


def cut_is_forgotten(collect):
    collect.end_generation = lambda: setattr(collect, "_obs", None)


FAULTS = {
    "truncation ends": (truncation_ends, Setup("KnownOnes-v0")),
    "truncation ends, n-step": (truncation_ends, Setup("KnownOnes-v0", n_step=3)),
    "one step goes on": (termination_goes_on, Setup("KnownOneStep-v0")),
    "a chain goes on": (termination_goes_on, Setup("KnownChain-v0")),
    "a chain goes on, n-step": (termination_goes_on, Setup("KnownChain-v0", n_step=3)),
    "next episode follows": (next_episode_follows, Setup("KnownCycle-v0")),
    "windows outlive episodes": (windows_outlive_episodes, Setup("KnownCycle-v0", n_step=3)),
    "cut ends": (cut_ends, Setup("KnownEndless-v0", n_step=3, generation=13)),
    "cut is forgotten": (cut_is_forgotten, Setup("KnownEndless-v0", n_step=3, generation=13)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_would_be_seen(fault):
    breaking, setup = FAULTS[fault]
    assert max(errors(setup, learned(setup, breaking))) > 3 * TOLERANCE


@pytest.mark.parametrize("fault", ["one gamma for all", "gamma once for n steps"])
def test_a_wrong_discount_would_be_seen(fault, monkeypatch):
    discounted = evorl.experience.transitions.n_step_return

    def broken(rewards, bootstrap, gamma):
        if fault == "one gamma for all":
            return discounted(rewards, bootstrap, gamma.mean().expand_as(gamma))
        return discounted(rewards, bootstrap.clamp(max=1), gamma)

    monkeypatch.setattr(evorl.experience.transitions, "n_step_return", broken)
    setup = Setup("KnownCycle-v0", gammas=(0.5, 0.9), n_step=3)
    assert max(errors(setup, learned(setup))) > 3 * TOLERANCE
