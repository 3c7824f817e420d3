"""Populations of every algorithm on every kind of action, and by hand what they do."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from evorl.algorithms.a2c import A2C
from evorl.algorithms.base import Algorithm, Trained
from evorl.algorithms.ddpg import DDPG, TD3
from evorl.algorithms.dqn import DQN
from evorl.algorithms.impala import IMPALA
from evorl.algorithms.ppo import PPO
from evorl.algorithms.sac import SAC
from evorl.envs.spaces import ActionSpec
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NORMALIZER, NetworkSpec, NormalizerSpec
from evorl.population.population import Population
from evorl.runs.agent import Interface, SavedAgent

INPUTS = 5
LOW, HIGH = (-2.0, 0.1, -5.0), (2.0, 0.7, -1.0)  # of a box
PARTS, STARTS = (3, 2, 4), (0, 5, -1)  # of MultiDiscrete actions
MEAN = np.array([30.0, -4.0, 0.0, 200.0, 7.0])  # of normalised observations
SPREAD = np.array([3.0, 0.01, 50.0, 20.0, 0.5])
BOX = ActionSpec("continuous", None, (3,), np.dtype(np.float32), LOW, HIGH)
CHOICE = ActionSpec("discrete", 4)
CHOICES = ActionSpec("multidiscrete", None, (3,), parts=PARTS)
READS = Interface((INPUTS,))
INTERFACES = {
    "continuous": dataclasses.replace(
        READS, action_shape=(3,), action_dtype="float32", low=LOW, high=HIGH
    ),
    "discrete": dataclasses.replace(READS, action_start=5),
    "multidiscrete": dataclasses.replace(READS, action_start=STARTS, action_shape=(3,)),
}


class Case(NamedTuple):
    """An algorithm on one kind of action."""

    algorithm: Algorithm
    action: ActionSpec
    mask: int = 0
    changes: Mapping[str, Any] = MappingProxyType({})  # of the interface
    normalize: bool = False

    @property
    def interface(self) -> Interface:
        return dataclasses.replace(INTERFACES[self.action.kind], **self.changes)

    @property
    def reads(self) -> str:
        """The network that actions come from."""
        return {"dqn": "q", "a2c": "policy", "ppo": "policy", "impala": "policy"}.get(
            self.algorithm.name, "actor"
        )


CASES = {
    "dqn": Case(DQN(), CHOICE),
    "ddpg": Case(DDPG(), BOX),
    "td3": Case(TD3(), BOX),
    "td3 in float64": Case(TD3(), BOX, 0, {"action_dtype": "float64"}),
    "sac": Case(SAC(), BOX),
    "sac in a column": Case(SAC(), BOX, 0, {"action_shape": (3, 1)}),
    "a2c discrete": Case(A2C(), CHOICE),
    "a2c multidiscrete": Case(A2C(), CHOICES),
    "a2c continuous": Case(A2C(), BOX),
    "impala": Case(IMPALA(), CHOICE),
    "ppo discrete": Case(PPO(), CHOICE),
    "ppo multidiscrete": Case(PPO(), CHOICES, 0, {"action_dtype": "int32"}),
    "ppo continuous": Case(PPO(), BOX),
    "sac normalised": Case(SAC(), BOX, normalize=True),
    "ppo normalised": Case(PPO(), BOX, normalize=True),
    "ppo masked": Case(PPO(), CHOICE, 4),
    "ppo masked multidiscrete": Case(PPO(), CHOICES, sum(PARTS)),
}
SHAPES = [
    Architecture((16, 16), "tanh"),
    Architecture((9, 12, 12), "relu", gated=(False, False, True)),
    Architecture((24,), "silu", layer_norm=True),
    Architecture((8, 11), "elu", layer_norm=True),
]


def population_of(case: Case, seed: int) -> Population:
    """Agents of mixed architectures, each with others for its networks; outputs are large.

    Of one seed, networks of equal shapes are equal in every algorithm: each case has its own.
    """
    observation = NetworkSpec(INPUTS, 0, mask=case.mask, normalize=case.normalize)
    networks = case.algorithm.networks(observation, case.action)
    if case.normalize:
        networks[NORMALIZER] = Trained(NormalizerSpec(INPUTS))
    named = [name for name, own in networks.items() if isinstance(own.spec, NetworkSpec)]
    genomes = [
        Genome(
            i,
            {name: SHAPES[(i + k) % len(SHAPES)] for k, name in enumerate(named)},
            case.algorithm.hyperparameters,
        )
        for i in range(len(SHAPES))
    ]
    population = Population(genomes, networks, case.algorithm, seed=seed)
    random = torch.Generator().manual_seed(seed)
    states = [population.state(i) for i in range(population.size)]
    for state in states:
        for name, value in state.online.items():
            if name.endswith(("scale", "shift", "gate")):
                value += 0.3 + 0.5 * torch.rand(value.shape, generator=random)
            if name.endswith("head.weight"):
                value.copy_(torch.randn(value.shape, generator=random))
            if name.endswith(("obs_mean", "obs_var")):
                own = torch.rand(INPUTS, generator=random, dtype=torch.float64).numpy()
                found = MEAN + SPREAD * own if name.endswith("mean") else SPREAD**2 * (0.5 + own)
                value.copy_(torch.from_numpy(found))
    population.rebuild(genomes, states)
    return population


def saved(case: Case, population: Population, agent: int) -> SavedAgent:
    """One of the population's agents, outside of it."""
    algorithm = case.algorithm.model_dump(mode="json")
    parts = population.specs, population.state(agent).online, algorithm, case.interface
    return SavedAgent(population.genomes[agent], *parts, {})


def inputs_of(case: Case, count: int, seed: int = 0) -> list[Any]:
    """Observations, and masks that leave a choice of every part."""
    random = np.random.default_rng(seed)
    obs = random.normal(size=(count, INPUTS))
    inputs: list[Any] = [(MEAN + SPREAD * obs if case.normalize else obs).astype(np.float32)]
    if case.mask:
        parts = [random.random((count, size)) < 0.4 for size in case.action.choices]
        for part in parts:
            part[~part.any(1), -1] = True
        inputs.append(np.concatenate(parts, 1).astype(np.int8))
    return inputs


def expected(case: Case, population: Population, inputs: list[Any]) -> Any:
    """The environment's actions [P, B, ...] by hand, from what the matrices think is best."""
    obs = np.concatenate(inputs, 1).astype(np.float32)
    best = population.greedy(np.stack([obs] * population.size))
    if case.action.kind == "continuous":
        low, high = np.array(LOW), np.array(HIGH)
        best = low + (np.clip(best.astype(np.float64), -1, 1) + 1) / 2 * (high - low)
    else:
        best = best + np.array(case.interface.action_start)
    return best.reshape(*best.shape[:2], *case.interface.action_shape)
