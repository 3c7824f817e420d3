"""A commented configuration to start from, for an environment that is only known by its id."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from evorl.config import parse_config
from evorl.config.yaml_text import parse_yaml
from evorl.envs.make import EnvSpec, find, make_env
from evorl.envs.spaces import ObservationSpec, adapt

AGENTS, ENVS = 4, 8
GENERATIONS = 12  # that the budget is enough for
SHORTEST, LONGEST = 1000, 10_000  # steps of a generation
SCHEMA = "evorl.schema.json"
HAVE_SCHEMA = "with the schema above editors show all options."
MAKE_SCHEMA = f"evorl schema > {SCHEMA} lets editors show all options."
PLAIN = re.compile(r"[A-Za-z][\w./:-]*[\w]")  # what YAML takes for a string without quotes
# Convolutions (channels, kernels, strides) for images of at least so many pixels on a side.
CONVOLUTIONS = (
    (64, ("[32, 64, 64]", "[8, 4, 3]", "[4, 2, 1]")),
    (24, ("[16, 32]", "[4, 3]", "[2, 2]")),
    (5, ("[16, 32]", "[3, 3]", "[1, 1]")),
    (1, ("[16, 32]", "[1, 1]", "[1, 1]")),
)


@dataclass(frozen=True)
class Surroundings:
    """What an environment is like."""

    id: str
    observation: ObservationSpec
    actions: int
    max_steps: int | None  # of an episode
    solved_at: float | None  # return from which its authors call it solved

    def __str__(self) -> str:
        """In words, such as `vectors of 4 numbers, 2 actions`."""
        shape = self.observation.shape
        seen = {
            "vector": f"vectors of {shape[0] if shape else 0} numbers",
            "image": f"images of {' × '.join(map(str, shape))}",
            "discrete": f"one of {self.observation.n} states",
        }[self.observation.kind]
        length = "no limit to"
        if self.max_steps is not None:
            length = f"up to {self.max_steps:,} steps"
        return f"{seen}, {self.actions} actions, {length} an episode"


def look_at(env_id: str) -> Surroundings:
    """Make the environment once and look; ConfigError if evorl cannot learn in it."""
    registered = find(env_id)
    env = make_env(EnvSpec(env_id))
    try:
        adapter = adapt(env_id, env.observation_space, env.action_space)
        limit = env.spec.max_episode_steps if env.spec else None
    finally:
        env.close()
    return Surroundings(
        env_id, adapter.observation, adapter.action.n or 0, limit, registered.reward_threshold
    )


def name_of(env_id: str) -> str:
    """A name for runs: lunar_lander for LunarLander-v3."""
    last = re.split(r"[:/]", env_id)[-1]
    words = re.sub(r"-v\d+$", "", last)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", words).strip("_").lower()
    return words[:100] or "run"


def starter(known: Surroundings, schema: str = SCHEMA) -> str:
    """The YAML text; it loads, or that is a bug."""
    every = min(max(SHORTEST, 2 * (known.max_steps or 0)), LONGEST)
    text = TEMPLATE.format(
        schema=schema,
        id=known.id,
        quoted_id=known.id if PLAIN.fullmatch(known.id) else json.dumps(known.id),
        editors=MAKE_SCHEMA if schema == SCHEMA else HAVE_SCHEMA,
        seen=known,
        name=name_of(known.id),
        every=every,
        agents=AGENTS,
        envs=ENVS,
        budget=every * ENVS * AGENTS * GENERATIONS,
        epsilon_steps=every * ENVS,
        network=_network(known.observation),
        capacity=_capacity(known.observation),
        stop_at=_stop_at(known.solved_at),
    )
    parse_config(parse_yaml(text, "starter"), source="starter")
    return text


def schema_beside(file: Path) -> str:
    """Where editors find the schema from a file: in a folder above it, or beside it."""
    here = file.absolute().parent
    for folder in (here, *here.parents):
        for place in (folder / SCHEMA, folder / "configs" / SCHEMA):
            if place.is_file():
                return Path(os.path.relpath(place, here)).as_posix()
    return SCHEMA


def _network(observation: ObservationSpec) -> str:
    if observation.kind == "discrete":
        return "  hidden: [64]            # units of each layer; a state is one input of many\n"
    if observation.kind == "vector":
        return "  hidden: [64, 64]        # units of each layer\n"
    side = min(observation.shape[1:])
    sizes = next(sizes for least, sizes in CONVOLUTIONS if side >= least)
    channels, kernels, strides = sizes
    return (
        f"  channels: {channels:14}# of each convolution; hidden layers come after them\n"
        f"  kernels: {kernels:15}# pixels\n"
        f"  strides: {strides:15}# pixels\n"
        "  hidden: [128]           # units of each layer\n"
    )


def _capacity(observation: ObservationSpec) -> int:
    """Transitions of about 1 GiB, and no more than help."""
    size = 2 * observation.dtype.itemsize
    for side in observation.shape:
        size *= side
    return max(10_000, min(100_000, 10_000 * (2**30 // max(size, 1) // 10_000)))


def _stop_at(solved_at: float | None) -> str:
    if solved_at is None:
        return "  # stop_at: 100          # or end early at this confirmed fitness\n"
    text = json.dumps(solved_at).removesuffix(".0")
    return f"  # stop_at: {text:12} # or end early: from this return on it counts as solved\n"


TEMPLATE = """\
# yaml-language-server: $schema={schema}
# DQN on {id}: {seen}.
# What is left out has its default; {editors}
# Change one value for one run on the command line: evorl train FILE algorithm.lr=1e-4

name: {name}
seed: 1

env:
  id: {quoted_id}
  num_envs: {envs}             # environments per agent
  # kwargs: {{}}            # arguments of gymnasium.make

algorithm:
  name: dqn
  lr: 1e-3
  gamma: 0.99             # discount per step: nearer to 1 looks further ahead
  tau: 0.01               # how far target weights move per update
  batch_size: 64          # transitions per update
  n_step: 1               # steps of reward before the estimate takes over
  learn_step: 2           # own environment steps per update
  learning_starts: 1000   # own environment steps before the first update
  epsilon_end: 0.05       # share of random actions, after
  epsilon_steps: {epsilon_steps:<8} # own environment steps over which exploration falls

network:
{network}  activation: relu

replay:
  capacity: {capacity:<13} # transitions
  share: rank             # all agents learn from all experience; agent: each from its own

population:
  size: {agents}
  # init: sample          # start from values drawn from the spaces below

evaluation:
  every: {every:<16} # steps of each environment between evaluations: a generation
  episodes: 10            # seeded episodes that all agents play for their fitness
  confirm_episodes: 20    # further ones, by which the best agent of the run is chosen
  final_episodes: 100     # held-out ones of the final score

evolution:
  method: evolution       # none: leave agents as they are; random_search: draw them once
  spaces:                 # what evolves, and between which bounds
    lr: {{kind: log, low: 1e-4, high: 1e-2}}
    gamma: {{kind: reverse_log, low: 0.95, high: 0.999}}
    tau: {{kind: log, low: 1e-3, high: 1e-1}}
  mutation:               # how children differ from their parents: relative probabilities
    hyperparameters: 0.6
    architecture: 0.2
    parameters: 0.2

budget:
  env_steps: {budget:<12} # training steps of all agents and environments together
{stop_at}
run:
  folder: runs
  if_exists: number       # runs/{name} is there: write beside it, with a number
"""
