"""One agent on disk: weights as safetensors, everything else as JSON. Nothing in it can execute."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from evorl.algorithms import Algorithm
from evorl.config import resolve
from evorl.envs import SpaceAdapter
from evorl.errors import ConfigError, RunError, one_line
from evorl.genome import Genome
from evorl.networks import NetworkSpec, Parameters, Spec, freeze, row_shapes

WEIGHTS, FACTS = "weights.safetensors", "agent.json"


@dataclasses.dataclass(frozen=True)
class Interface:
    """How the environment gives its observations and counts its actions."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (when read from a file)

    shape: tuple[int, ...]  # of one observation
    dtype: str = "float32"
    channels_last: bool = False  # images are [H, W, C]
    observation_start: int = 0  # the first of numbered observations
    action_start: int = 0

    @classmethod
    def of(cls, spaces: SpaceAdapter) -> "Interface":
        """That of an environment."""
        starts = spaces.observation_start, spaces.action_start
        return cls(spaces.raw_shape, spaces.raw_dtype, spaces.transpose, *starts)


class SavedAgent(NamedTuple):
    """All that an agent is outside of training."""

    genome: Genome
    specs: dict[str, Spec]  # of its networks and bare parameters, as the algorithm names them
    parameters: Parameters  # by names such as `q.hidden0.weight`
    algorithm: dict[str, Any]  # its name and options, as in the configuration
    interface: Interface
    facts: dict[str, Any]  # what else is known of it: environment, fitness, steps

    @property
    def spec(self) -> NetworkSpec:
        """The first network's, to see what observations look like; all networks read the same."""
        return next(spec for spec in self.specs.values() if isinstance(spec, NetworkSpec))

    def check(self) -> None:
        """ValueError unless all parts fit each other."""
        names = {name for name, spec in self.specs.items() if isinstance(spec, NetworkSpec)}
        if not names or names != set(self.genome.architectures):
            raise ValueError("networks and architectures don't have the same names")
        if not all(name.isidentifier() for name in self.specs):
            raise ValueError("names of networks must be like those of variables")
        if not isinstance(self.algorithm.get("name"), str):
            raise ValueError("the algorithm has no name")
        _check_interface(self.interface, self.spec)
        expected = row_shapes(self.specs, self.genome.architectures)
        if {name: tuple(value.shape) for name, value in self.parameters.items()} != expected:
            raise ValueError(
                "the weights don't fit the architecture, the observations or the actions"
            )
        if not all(value.is_floating_point() for value in self.parameters.values()):
            raise ValueError("the weights are not floating-point numbers")
        if not all(bool(value.isfinite().all()) for value in self.parameters.values()):
            raise ValueError("the weights are not finite")


@dataclasses.dataclass(frozen=True)
class AgentFile:
    """What agent.json says."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (when read from a file)

    format: Literal[2]
    genome: Genome
    specs: dict[str, Spec]
    algorithm: dict[str, Any]
    interface: Interface
    facts: dict[str, Any]


def save_agent(folder: Path, agent: SavedAgent) -> None:
    """Write the agent's two files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # not by save_file, which lets nobody else read what it writes
    (folder / WEIGHTS).write_bytes(save(freeze(agent.parameters)))
    write_facts(folder, agent)


def write_facts(folder: Path, agent: SavedAgent) -> None:
    """Write agent.json: everything but the weights."""
    values = {
        "format": 2,
        "genome": agent.genome.to_json(),
        "specs": {name: dataclasses.asdict(spec) for name, spec in agent.specs.items()},
        "algorithm": agent.algorithm,
        "interface": dataclasses.asdict(agent.interface),
        "facts": dict(sorted(agent.facts.items())),
    }
    text = json.dumps(values, indent=2, allow_nan=False)
    (folder / FACTS).write_text(text + "\n", encoding="utf-8")


def read_agent(folder: str | Path) -> SavedAgent:
    """Read an agent; RunError if the files are missing, damaged or don't fit each other."""
    folder = Path(folder)
    try:
        text = (folder / FACTS).read_bytes()
        parameters = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(one_line(f"{folder}: no readable agent there: {reason}")) from None
    try:
        read = TypeAdapter(AgentFile).validate_json(text, strict=True)
        parts = read.specs, parameters, read.algorithm, read.interface, read.facts
        agent = SavedAgent(read.genome, *parts)
        agent.check()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = f"{where:.100}: {first['msg'].splitlines()[0]:.100}"
        raise RunError(one_line(f"{folder}: not an agent of this version: {reason}")) from None
    except ValueError as error:
        raise RunError(one_line(f"{folder}: not a usable agent: {error}")) from None
    return agent


def _check_interface(interface: Interface, spec: NetworkSpec) -> None:
    try:
        known = np.dtype(interface.dtype).kind in "biuf"
    except (TypeError, ValueError):
        known = False
    if not known:
        raise ValueError(f"observations cannot be of type {interface.dtype!r:.40}")
    shape = interface.shape
    if spec.one_hot:
        fits = shape == ()
    elif interface.channels_last:
        fits = (*shape[-1:], *shape[:-1]) == spec.image
    else:
        fits = math.prod(shape) == math.prod(spec.image or (spec.inputs,))
    if not fits or min(shape, default=1) < 1 or not 0 < spec.scale < math.inf:
        raise ValueError(f"the networks don't fit observations of shape {shape!s:.40}")


def make_algorithm(values: Mapping[str, Any]) -> Algorithm:
    """The algorithm that an agent was trained with; ConfigError if it cannot be had."""
    try:
        found: Algorithm = resolve("algorithm", values["name"]).model_validate(dict(values))
    except ConfigError as error:
        raise ConfigError(f"algorithm.name: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("algorithm", *first["loc"]))
        raise ConfigError(f"{where}: {first['msg']}") from None
    return found
