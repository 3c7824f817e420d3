"""AgileRL as a contender of versus.py: its own evolutionary loop over DQN agents.

`train_off_policy` with its tournament, mutations and replay, on one process: it trains one agent
after another. Mutations have the weights of its own example for this task, as they meet all but the
elite, and not only children. Agents are drawn from evorl's spaces, and stay in them. What differs:
the head needs a hidden layer, so that networks have one of them more; the squared loss; no clipping
of gradients; epsilon falls by a factor and not linearly. The elite of a generation is what
its own evaluation found best, and the best of these evaluations is returned.

Mended, as it crashed: importing it needs peft, which the package does not ask for (versus.py says
how to install it).
"""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from agilerl.algorithms import DQN
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components import ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs
from versus_contender import Act, Job, Log, Space, main

SEARCHED = ("lr", "gamma", "tau", "batch_size", "learn_step")
ACTIVATIONS = {"relu": "ReLU", "tanh": "Tanh", "elu": "ELU"}
FACTORS = {"gamma": (0.99, 1.01)}  # by a fifth it would jump from bound to bound


class TimeUpError(Exception):
    """Ends AgileRL's loop, which counts steps only."""


class Keep(TournamentSelection):
    """AgileRL's tournament, which sees each generation's evaluations."""

    def __init__(self, job: Job, size: int) -> None:
        super().__init__(tournament_size=2, elitism=True, population_size=size)
        self.job, self.log, self.generations = job, Log(job, 0), 0

    def select(self, population: list[DQN]) -> Any:
        """Keep the elite; end when time is up."""
        self.generations += 1
        best = max(population, key=lambda agent: agent.fitness[-1])
        config = self.job.config
        steps = config["evaluation"]["every"] * config["env"]["num_envs"] * len(population)
        trials = max(agent.index for agent in population) + 1
        self.log.better(best.fitness[-1], self.generations * steps, trials, best.save_checkpoint)
        if self.job.left < 0:
            raise TimeUpError
        return super().select(population)


def make(job: Job, env: gymnasium.vector.VectorEnv, index: int) -> DQN:
    """An agent of the first generation."""
    found = {name: space for name, space in job.spaces.items() if name in SEARCHED}
    values = {name: job.values[name] for name in SEARCHED}
    values |= {name: space.value(draw(space)) for name, space in found.items()}
    ranges = {name: parameter(name, space) for name, space in found.items()}
    network = job.config["network"]
    own = {"activation": ACTIVATIONS[network["activation"]], "layer_norm": network["layer_norm"]}
    *hidden, last = network["hidden"]
    return DQN(
        env.single_observation_space,
        env.single_action_space,
        index=index,
        hp_config=HyperparameterConfig(**ranges),
        net_config={
            "latent_dim": last,
            "encoder_config": own | {"hidden_size": list(hidden)},
            "head_config": own | {"hidden_size": [last]},
        },
        double=job.values["double"],
        **values,
    )


def draw(space: Space) -> float:
    """A number that stands for a value."""
    low, high = space.bounds
    if space.whole:
        return random.randint(round(low), round(high))
    if space.log:
        return float(np.exp(random.uniform(np.log(low), np.log(high))))
    return random.uniform(low, high)


def parameter(name: str, space: Space) -> RLParameter:
    """How AgileRL mutates a hyperparameter."""
    low, high = sorted(space.value(bound) for bound in space.bounds)
    shrink, grow = FACTORS.get(name, (0.8, 1.2))
    kind = int if space.whole else float
    return RLParameter(low, high, shrink_factor=shrink, grow_factor=grow, dtype=kind)


def train(job: Job) -> None:
    """AgileRL's loop, until time is up."""
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    values, num_envs = job.values, job.config["env"]["num_envs"]
    # in this process: others cost more in messages than they save
    env = make_vect_envs(job.env, num_envs=num_envs, should_async_vector=False)
    size = job.config["population"]["size"]
    mutations = Mutations(
        no_mutation=0.4,
        architecture=0.2,
        new_layer_prob=0.2,
        parameters=0.2,
        activation=0.2,
        rl_hp=0.2,
        mutate_elite=False,
        rand_seed=job.seed,
    )
    fall = (values["epsilon_end"] / values["epsilon_start"]) ** (num_envs / values["epsilon_steps"])
    with suppress(TimeUpError):
        train_off_policy(
            env,
            job.env,
            "DQN",
            [make(job, env, index) for index in range(size)],
            ReplayBuffer(max_size=job.config["replay"]["capacity"]),
            max_steps=10**12,
            evo_steps=job.config["evaluation"]["every"] * num_envs,
            eval_loop=max(1, job.config["evaluation"]["episodes"] // num_envs),
            learning_delay=values["learning_starts"],
            eps_start=values["epsilon_start"],
            eps_end=values["epsilon_end"],
            eps_decay=fall,
            selection_strategy=Keep(job, size),
            mutation=mutations,
            verbose=False,
        )


def load(job: Job, path: Path) -> Act:
    """An elite that was kept."""
    agent = DQN.load(str(path))
    agent.set_training_mode(False)
    return agent.get_action


if __name__ == "__main__":
    main(train, load)
