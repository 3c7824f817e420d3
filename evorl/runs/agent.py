"""An agent outside of training, for any algorithm: observations in, actions out.

    agent = load_agent("runs/cartpole/best")
    action = agent.act(obs)

On disk: weights as safetensors, everything else as JSON. Nothing in it can execute.
Legend: P agents, which is 1 here, B batch.
"""

import dataclasses
import json
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from evorl.algorithms import Algorithm
from evorl.config import resolve
from evorl.envs import SpaceAdapter
from evorl.errors import ConfigError
from evorl.evolution import first_problem
from evorl.genome import Genome
from evorl.networks import (
    NORMALIZER,
    VALUE,
    NetworkSpec,
    Parameters,
    ParameterSpec,
    PlainNetwork,
    Spec,
    freeze,
    network_part,
    row_shapes,
    to_module,
)
from evorl.runs.files import reason, run_error

WEIGHTS, FACTS = "weights.safetensors", "agent.json"


@dataclasses.dataclass(frozen=True)
class Interface:
    """How the environment gives its observations and counts its actions."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (when read from a file)

    shape: tuple[int, ...]  # of one observation
    dtype: str = "float32"
    channels_last: bool = False  # images are [H, W, C]
    observation_start: int = 0  # the first of numbered observations
    action_start: int | tuple[int, ...] = 0  # the first choice; of MultiDiscrete for each part

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
        expected = row_shapes(self.specs, self.genome.architectures)
        if {name: tuple(value.shape) for name, value in self.parameters.items()} != expected:
            raise ValueError("the weights don't fit the architecture, observations or actions")
        values = self.parameters.values()
        if not all(value.is_floating_point() and bool(value.isfinite().all()) for value in values):
            raise ValueError("the weights are not finite numbers")


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
    text = json.dumps(values, indent=2, allow_nan=False) + "\n"
    (folder / FACTS).write_text(text, encoding="utf-8")


def read_agent(folder: str | Path) -> SavedAgent:
    """Read an agent; RunError if the files are missing, damaged or don't fit each other."""
    folder = Path(folder)
    try:
        text = (folder / FACTS).read_bytes()
        read = TypeAdapter(AgentFile).validate_json(text, strict=True)
        parts = load_file(folder / WEIGHTS), read.algorithm, read.interface, read.facts
        agent = SavedAgent(read.genome, read.specs, *parts)
        agent.check()
    except ValidationError as error:
        problem = f"not an agent of this version: {first_problem(error):.200}"
    except (OSError, ValueError, SafetensorError) as error:
        problem = f"no usable agent there: {reason(error)}"
    else:
        return agent
    raise run_error(folder, problem)


def make_algorithm(values: Mapping[str, Any]) -> Algorithm:
    """The algorithm that an agent was trained with; ConfigError if it cannot be had."""
    try:
        found: Algorithm = resolve("algorithm", values["name"]).model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"algorithm.{first_problem(error)}") from None
    return found


class Agent(nn.Module):
    """Takes observations as the environment gives them, and gives its actions, greedily.

    `networks["q"]` is one of its networks as an ordinary module; it reads observations in evorl's
    form, which `prepare` makes of the environment's.
    """

    def __init__(self, saved: SavedAgent) -> None:
        super().__init__()
        self.saved = saved
        self.networks: dict[str, PlainNetwork] = {}  # not a ModuleDict, which refuses some names
        statistics = network_part(saved.parameters, NORMALIZER)
        for name, spec in saved.specs.items():
            own = network_part(saved.parameters, name)
            if isinstance(spec, NetworkSpec):
                architecture = saved.genome.architectures[name]
                self.networks[name] = to_module(spec, architecture, own, statistics)
                self.add_module(f"network_{name}", self.networks[name])
            elif isinstance(spec, ParameterSpec):
                self.register_parameter(f"parameter_{name}", nn.Parameter(own[VALUE].clone()))
        self.eval()

    @cached_property
    def algorithm(self) -> Any:
        """The algorithm that trained it; a user's own module is imported here, not on loading."""
        return make_algorithm(self.saved.algorithm)

    def forward(self, obs: Tensor) -> Tensor:
        """Actions [B] for the environment's observations [B, ...]."""
        return self.decide(obs)[0]

    def decide(self, obs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions [B], and what the networks gave on the way, each [B, outputs]."""
        networks = GroupOfOne(self)
        action = self.algorithm.greedy(networks, self.prepare(obs).unsqueeze(0)).squeeze(0)
        start = self.saved.interface.action_start
        return action + torch.tensor(start) if np.any(start) else action, networks.outputs

    def prepare(self, obs: Tensor) -> Tensor:
        """The environment's observations [B, ...] as networks read them."""
        interface, spec = self.saved.interface, self.saved.spec
        if interface.channels_last:
            return obs.permute(0, 3, 1, 2)
        if spec.one_hot:
            return obs - interface.observation_start
        return obs.reshape(obs.shape[0], *(spec.image or (spec.inputs,)))

    @torch.no_grad()
    def act(self, obs: npt.ArrayLike) -> npt.NDArray[Any]:
        """The action for one observation, or the actions [B] for a batch [B, ...] of them."""
        array, shape = np.asarray(obs), self.saved.interface.shape
        single = array.shape == shape
        if not single and array.shape[1:] != shape:
            raise ValueError(f"observations must have shape {shape} or (B, ...), got {array.shape}")
        device = next(self.parameters()).device
        actions = self(torch.tensor(array[None] if single else array, device=device)).cpu().numpy()
        found: npt.NDArray[Any] = actions[0] if single else actions
        return found


class LoneNetwork(partial[Tensor]):
    """A network of one agent, as algorithms call it."""

    def mask(self, obs: Tensor) -> Tensor | None:
        """Which actions are allowed: all."""
        return None


class GroupOfOne(dict[str, LoneNetwork]):
    """An agent's networks as algorithms call them, with a leading P; the last outputs are kept."""

    def __init__(self, agent: Agent) -> None:
        super().__init__((name, LoneNetwork(self._call, name)) for name in agent.networks)
        self._agent = agent
        self.outputs: dict[str, Tensor] = {}  # [B, outputs] of the networks that were called

    def parameter(self, name: str) -> Tensor:
        """A bare parameter [P, size]."""
        return self._agent.get_parameter(f"parameter_{name}").unsqueeze(0)

    def _call(self, name: str, obs: Tensor, *extra: Tensor) -> Tensor:
        inputs = (one.squeeze(0) for one in (obs, *extra))
        self.outputs[name] = self._agent.networks[name](*inputs)
        return self.outputs[name].unsqueeze(0)


def load_agent(folder: str | Path) -> Agent:
    """The agent that was saved or exported there; RunError if there is none that can be read."""
    return Agent(read_agent(folder))
