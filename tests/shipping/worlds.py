"""Environments with every form of observation, and run directories of agents in them."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from evorl.algorithms.base import Trained
from evorl.algorithms.dqn import DQN
from evorl.config import dump_config, parse_config
from evorl.genome import ACTIVATIONS, Architecture, Genome
from evorl.networks.spec import NetworkSpec
from evorl.pipeline.snapshot import Snapshot
from evorl.population.population import Population
from evorl.runs.agent import Interface
from evorl.runs.directory import RunDirectory
from evorl.runs.reopening import make_checkpoints
from tests.synthetic import HYPERPARAMETERS, saved_agent

BINARY = spaces.MultiBinary([2, 3])
FORMS = {
    "vector": spaces.Box(-np.inf, np.inf, (5,), np.float32),
    "table": spaces.Box(-2, 3, (3, 2), np.float64),
    "bytes": spaces.Box(0, 100, (6,), np.uint8),
    "one number": spaces.Box(-1, 1, (), np.float32),
    "whole numbers": spaces.Box(-5, 2_000_000, (4,), np.int64),
    "bits": BINARY,
    "discrete": spaces.Discrete(7, start=3),
    "pixels": spaces.Box(0, 255, (8, 7, 3), np.uint8),
    "grey": spaces.Box(0, 255, (9, 8), np.uint8),
    "channels first": spaces.Box(0, 1, (2, 7, 8), np.float32),
}
SPECS = {
    "vector": NetworkSpec(5, 3),
    "table": NetworkSpec(6, 3),
    "bytes": NetworkSpec(6, 3, scale=1 / 100),
    "one number": NetworkSpec(1, 3),
    "whole numbers": NetworkSpec(4, 3),
    "bits": NetworkSpec(6, 3),
    "discrete": NetworkSpec(7, 3, one_hot=True),
    "pixels": NetworkSpec(0, 3, image=(3, 8, 7), scale=1 / 255),
    "grey": NetworkSpec(0, 3, image=(1, 9, 8), scale=1 / 255),
    "channels first": NetworkSpec(0, 3, image=(2, 7, 8)),
}
ACTION_START = 5


SPECS = {form: spec.giving(3, dueling=True) for form, spec in SPECS.items()}


class World(gymnasium.Env[Any, Any]):
    """Random observations of one form; the reward tells the action, and a picture the step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, form="vector", length=9, render_mode=None, fail_at=None):
        self.observation_space = FORMS[form]
        self.action_space = spaces.Discrete(3, start=ACTION_START)
        self.length, self.steps, self.fail_at = length, 0, fail_at
        self.render_mode = render_mode

    def _observation(self):
        space = self.observation_space
        if isinstance(space, spaces.Discrete):
            return space.start + self.np_random.integers(space.n)
        if isinstance(space, spaces.MultiBinary):
            return self.np_random.integers(2, size=space.shape, dtype=np.int8)
        if np.issubdtype(space.dtype, np.integer):
            high = np.minimum(space.high.astype(np.int64), 300)
            return self.np_random.integers(space.low, high, endpoint=True).astype(space.dtype)
        return np.clip(self.np_random.normal(size=space.shape), space.low, space.high).astype(
            space.dtype
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        if self.steps == self.fail_at:
            raise ValueError("the simulator broke")
        over = self.steps >= self.length + int(action == ACTION_START)
        return self._observation(), float(action) + 0.1 * self.steps, over, False, {}

    def render(self):
        picture = np.zeros((11, 15, 3), np.uint8)
        picture[:, : 1 + self.steps % 15] = (200, 40 + 10 * (self.steps % 20), 90)
        return picture


class Blind(World):
    """Cannot be seen."""

    metadata = {"render_modes": ["human"]}  # noqa: RUF012


class Unpictured(World):
    """Says that it can be seen, and gives no picture."""

    def render(self):
        return "a picture"


gymnasium.register("World-v0", entry_point=World)
gymnasium.register("Blind-v0", entry_point=Blind)
gymnasium.register("Unpictured-v0", entry_point=Unpictured)


def architectures(form):
    """Each activation, plain and gated, with LayerNorm, dueling, or both."""
    image = (((4, 6), (3, 2), (2, 1)), ((5,), (3,), (2,)))
    for k, activation in enumerate(ACTIVATIONS):
        for gated in (False, True):
            conv = image[k % 2] if SPECS[form].image else ()
            shape = ((16, 11, 11), activation, bool((k + gated) % 2), bool(k // 2 % 2))
            yield Architecture(*shape, (False, False, gated), *conv)


def population_of(form, some=None):
    """A population of all these architectures, with scales, shifts and gates that matter."""
    chosen = list(architectures(form)) if some is None else some
    genomes = [Genome(10 + i, {"q": own}, HYPERPARAMETERS) for i, own in enumerate(chosen)]
    population = Population(genomes, {"q": Trained(SPECS[form])}, DQN(), seed=3)
    random = torch.Generator().manual_seed(4)
    states = [population.state(i) for i in range(population.size)]
    for state in states:
        for name, value in state.online.items():
            if name.split(".")[2] in ("scale", "shift", "gate"):
                value += 0.3 + 0.5 * torch.rand(value.shape, generator=random)
    population.rebuild(genomes, states)
    obs = in_our_form(form, raw_observations(form, 100, seed=10**6))
    for state, values in zip(states, matrix_values(population, obs), strict=True):
        state.online["q.head.bias"][-3:] -= torch.from_numpy(values.mean(0))  # no favourite action
    population.rebuild(genomes, states)
    return population


def raw_observations(form, count, seed=0):
    """As the environment gives them, drawn by Gymnasium and not by evorl."""
    env = World(form)
    found = [env.reset(seed=seed + i)[0] for i in range(count)]
    return np.stack(found).astype(FORMS[form].dtype)


def in_our_form(form, raw):
    """By hand what networks see of raw observations."""
    if form == "discrete":
        return raw.astype(np.int64) - 3
    if form == "pixels":
        return np.ascontiguousarray(np.moveaxis(raw, -1, 1))
    if form == "grey":
        return raw[:, None]
    if form in ("bytes", "channels first"):
        return raw
    return raw.reshape(len(raw), -1).astype(np.float32)


def matrix_values(population, obs):
    """Q values [P, B, A] of every agent, from the matrices that train."""
    found = [None] * population.size
    with torch.no_grad():
        for numbers, group in zip(population.members, population.groups, strict=True):
            values = group.online["q"](torch.from_numpy(np.stack([obs] * group.size)))
            for number, own in zip(numbers, values, strict=True):
                found[number] = own.numpy()
    return np.stack(found)


INTERFACES = {
    form: Interface(
        space.shape,
        space.dtype.name,
        channels_last=form == "pixels",
        observation_start=3 if form == "discrete" else 0,
        action_start=ACTION_START,
    )
    for form, space in FORMS.items()
}


def saved(population, agent=0, form="vector", **facts):
    """One of the population's agents, outside of it; form None: as the network reads it."""
    genome, weights = population.genomes[agent], population.state(agent).online
    return saved_agent(genome, population.specs["q"], weights, INTERFACES.get(form), **facts)


def make_run(folder, population, env="World-v0", name="run", best=0, generation=4, **kwargs):
    """A run with a best agent, and a checkpoint of all agents."""
    directory = RunDirectory.create(folder, name)
    config = parse_config(
        {
            "name": name,
            "env": {"id": env, "kwargs": kwargs, "backend": "sync"},
            "population": {"size": population.size},
            "evaluation": {"final_episodes": 5},
        }
    )
    directory.write_config(dump_config(config))
    form = kwargs.get("form", "vector") if env != "CartPole-v1" else None
    facts = {"env": env, "generation": generation - 1, "fitness": 1.5}
    directory.save_best(saved(population, best, form, **facts))
    save_checkpoint(directory, population, generation)
    return directory


def save_checkpoint(directory, population, generation, dead=()):
    states = [population.state(i) for i in range(population.size)]
    alive = [genome.id not in dead for genome in population.genomes]
    snapshot = Snapshot(population.genomes, states, alive)
    draft = make_checkpoints(directory.config(), directory).begin(generation)
    files = [
        draft.write("population", snapshot.tensors()),
        draft.write("replay-0", {"obs": torch.zeros(3)}),
    ]
    draft.commit(snapshot.to_json(), files)
