"""A small A3C population, its actors and the learner's end, in one process."""

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from evorl.actors import Inbox, InlineExchange, Limits, WeightsMessage, copy_of
from evorl.algorithms import A3C
from evorl.distributed import ActorWorld
from evorl.envs import EnvSpec, Failures, make_vector_env
from evorl.experience import RolloutBuffer, RolloutSampler
from evorl.genome import Architecture, Genome
from evorl.pipeline import Actor, ApplyGradients, LearnRollout, Receive, TrainingContext
from evorl.population import Population
from evorl.training import observation_spec
from tests.pipeline.snapshots import alone

ID, SEED, ENVS, STEPS = "Ends-v0", 5, 3, 6
HIDDEN = ((8, 8), (5,), (20,))


class Ends(gymnasium.Env):
    """A number drawn at reset decides how long the episode is, and how it ends."""

    observation_space = spaces.Box(-2, 2, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.time = int(self.np_random.integers(1000)), 0
        return self._observe(0), {}

    def step(self, action):
        self.time += 1
        over, kind = self.time >= 2 + self.number % 4, self.number // 4 % 2
        reward = self.number / 1000 + int(action) / 4
        return self._observe(action), reward, over and kind == 0, over and kind == 1, {}

    def _observe(self, action):
        return np.array([self.number / 500 - 1, self.time / 4, action - 1], np.float32)


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=Ends)
SPEC = EnvSpec(ID, backend="sync")


def make_env(agents=3):
    return make_vector_env(SPEC, agents, ENVS)


def algorithm_of(**options):
    return A3C(rollout_steps=STEPS, lr=1e-2, entropy_coef=0.01, **options)


def networks_of(env, algorithm):
    return algorithm.networks(observation_spec(env.observation), env.action)


def population_of(env, algorithm=None, hidden=HIDDEN, dtype=torch.float32):
    algorithm = algorithm or algorithm_of()
    names = [name for name in networks_of(env, algorithm) if name != "log_std"]
    genomes = [
        Genome(
            i,
            {name: Architecture(own, activation="tanh") for name in names},
            algorithm.hyperparameters | {"gamma": 0.9 + i / 100},
        )
        for i, own in enumerate(hidden)
    ]
    networks = networks_of(env, algorithm)
    return Population(genomes, networks, algorithm, seed=SEED, dtype=dtype)


def rollout_of(env, agents, count=1):
    """Of so many actors."""
    obs, action = env.observation, env.action
    kinds = ((obs.shape, obs.dtype), (action.shape, action.dtype))
    return RolloutBuffer(STEPS, agents, count * ENVS, *kinds)


def actors_of(population, count, **options):
    """Actors that play for a population, each with environments of its own."""
    weights = WeightsMessage(population)(0, np.zeros(population.size, np.int64))
    found = []
    for number in range(count):
        copy = copy_of(weights, population.networks, population.algorithm, dtype=population.dtype)
        env = make_env(population.size)
        found.append(Actor(copy, env, STEPS, seed=SEED, number=number, fellows=count, **options))
    return found


def inbox_of(population, slots, max_lag=None):
    env = make_env(1)
    n_step = getattr(population.algorithm, "n_step", 1)
    limits = Limits(population.size, ENVS, STEPS, env.observation, env.action, n_step)
    return Inbox(population, limits, slots, max_lag)


class Learner:
    """A population with the stages of a run, and its context."""

    def __init__(self, population, exchange):
        self.population, self.context = population, TrainingContext(population.size)
        streams = [np.random.default_rng(i) for i in range(population.size)]
        sampler = RolloutSampler(rollout_of(make_env(1), population.size), streams)
        failures = Failures(SPEC)
        self.receive = Receive(alone(), population, exchange, failures, sampler, seed=SEED)
        self.apply = ApplyGradients(alone(), population)

    def iterate(self, count=1):
        for _ in range(count):
            self.receive(self.context)
            self.apply(self.context)
            self.context.iteration += 1


def inline(population, count):
    """A learner, and so many actors within its process."""
    actors = actors_of(population, count)
    return Learner(population, InlineExchange(inbox_of(population, count), actors)), actors


def message_of(population, version=0):
    """What an actor sends, as it stands before an inbox that has begun with version 0."""
    (actor,) = actors_of(population, 1)
    actor.load(WeightsMessage(population)(0, np.zeros(population.size, np.int64)), version)
    return actor.play() | {"slot": 0, "session": 1, "sequence": 1}


class Reference:
    """The same agents, learning by A2C from all that actors have seen as one batch."""

    def __init__(self, env, population, count):
        self.population, self.context = population, TrainingContext(population.size)
        self.rollout = rollout_of(env, population.size, count)
        streams = [np.random.default_rng(i) for i in range(population.size)]
        self.learn = LearnRollout(ActorWorld(), population, RolloutSampler(self.rollout, streams))

    def update(self, actors):
        """From the rollouts that actors have just sent the gradients of."""
        for k, actor in enumerate(actors):
            for name, own in actor.upload.rollout._fields.items():
                self.rollout._fields[name][:, :, k * ENVS : (k + 1) * ENVS] = own
        self.rollout.length = STEPS
        self.learn(self.context)
