"""A commented configuration to start from, for an environment that is only known by its id."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import yaml

from evorl.config import dump_yaml, parse_config
from evorl.envs import EnvSpec, ObservationSpec, adapt, find, make_env

AGENTS, ENVS = 4, 8
GENERATIONS = 12  # that the budget is enough for
SHORTEST, LONGEST = 1000, 10_000  # steps of a generation
EPISODES = {"episodes": 10, "confirm_episodes": 20, "final_episodes": 100}
MUTATION = {"hyperparameters": 0.6, "architecture": 0.2, "parameters": 0.2}
# Convolutions (channels, kernels, strides) for images of at least N pixels on a side.
CONVOLUTIONS = (
    (64, ([32, 64, 64], [8, 4, 3], [4, 2, 1])),
    (24, ([16, 32], [4, 3], [2, 2])),
    (5, ([16, 32], [3, 3], [1, 1])),
    (1, ([16, 32], [1, 1], [1, 1])),
)
SCHEMA = "evorl.schema.json"
HEADING = """\
# yaml-language-server: $schema={schema}
# {algorithm} on {known.id}: {known}.
# What is left out has its default; {editors}
# Change one value for one run on the command line: evorl train FILE seed=2

"""
COMMENTS, WIDTH = 26, 100  # the column in which comments begin, and the longest line


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
    """The YAML text; options have the comments of the schema, and all of the algorithm's are in."""
    every = min(max(SHORTEST, 2 * (known.max_steps or 0)), LONGEST)
    evolution: dict[str, Any] = {"method": "evolution", "mutation": MUTATION}
    chosen: dict[str, Any] = {
        "name": name_of(known.id),
        "seed": 1,
        "env": {"id": known.id, "num_envs": ENVS},
        "algorithm": {},
        "network": _network(known.observation),
        "replay": {"capacity": _capacity(known.observation), "share": "rank"},
        "population": {"size": AGENTS},
        "evaluation": {"every": every} | EPISODES,
        "evolution": evolution,
        "run": {"folder": "runs", "if_exists": "number"},
        "budget": {"env_steps": every * ENVS * AGENTS * GENERATIONS},
    }
    config = parse_config(chosen, source="starter")
    chosen["algorithm"] = config.algorithm.model_dump()
    evolution["spaces"] = config.evolution.model_dump()["spaces"]
    editors = "with the schema above editors show all options."
    if schema == SCHEMA:
        editors = f"evorl schema > {SCHEMA} lets editors show all options."
    name = config.algorithm.name
    heading = HEADING.format(schema=schema, algorithm=name, known=known, editors=editors)
    return heading + "\n".join([*_lines(chosen, config), _stop_at(known.solved_at), ""])


def _lines(chosen: Mapping[str, Any], section: Any, indent: str = "") -> Iterator[str]:
    """Keys and values as YAML, each with what the section's class says of it."""
    fields = getattr(type(section), "model_fields", {})
    for name, value in chosen.items():
        if not isinstance(value, dict):
            text = indent + dump_yaml({name: value}).strip()
        elif "kind" in value:  # a space
            flow = yaml.safe_dump(value, default_flow_style=True, sort_keys=False).strip()
            text = f"{indent}{name}: {flow}"
        else:
            text = f"{indent}{name}:" if indent else f"\n{name}:"
        about = fields[name].description if name in fields else None
        line = f"{text:{COMMENTS - 2}}  # {about}" if about and indent else text
        yield line if len(line) <= WIDTH else f"{indent}# {about}\n{text}"
        if text.endswith(":"):
            yield from _lines(value, getattr(section, name), indent + "  ")


def schema_beside(file: Path) -> str:
    """Where editors find the schema from a file: in a folder above it, or beside it."""
    here = file.absolute().parent
    for folder in (here, *here.parents):
        for place in (folder / SCHEMA, folder / "configs" / SCHEMA):
            if place.is_file():
                return Path(os.path.relpath(place, here)).as_posix()
    return SCHEMA


def _network(observation: ObservationSpec) -> dict[str, Any]:
    if observation.kind == "discrete":  # one input for each state
        return {"hidden": [64], "activation": "relu"}
    if observation.kind == "vector":
        return {"hidden": [64, 64], "activation": "relu"}
    side = min(observation.shape[1:])
    sizes = next(sizes for least, sizes in CONVOLUTIONS if side >= least)
    convolutions = dict(zip(("channels", "kernels", "strides"), sizes, strict=True))
    return {**convolutions, "hidden": [128], "activation": "relu"}


def _capacity(observation: ObservationSpec) -> int:
    """Transitions of about 1 GiB, and no more than help."""
    size = 2 * observation.dtype.itemsize * prod(observation.shape)
    return max(10_000, min(100_000, 10_000 * (2**30 // max(size, 1) // 10_000)))


def _stop_at(solved_at: float | None) -> str:
    if solved_at is None:
        return "  # stop_at: 100          # End early, at this confirmed fitness."
    return f"  # stop_at: {solved_at:<13g}# End early: from this return on it counts as solved."
