"""An agent outside of training, for any algorithm: observations in, actions out.

    agent = load_agent("runs/cartpole/best")
    action = agent.act(obs)

On disk: weights as safetensors, everything else as JSON. Nothing in it can execute.
Legend: P agents, which is 1 here, B batch.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
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
from evorl.runs.files import read_bytes, reason, run_error

NUMBERS = {"bool", "float16", "float32", "float64"}
NUMBERS |= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
MOST = 2**31  # of a size, or of what choices are counted from
WEIGHTS, FACTS = "weights.safetensors", "agent.json"


@dataclasses.dataclass(frozen=True)
class Interface:
    """How the environment gives its observations and takes its actions."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (when read from a file)

    shape: tuple[int, ...]  # of one observation
    dtype: str = "float32"
    channels_last: bool = False  # images are [H, W, C]
    observation_start: int = 0  # the first of numbered observations
    action_start: int | tuple[int, ...] = 0  # the first choice; of MultiDiscrete for each part
    action_shape: tuple[int, ...] = ()  # of one action
    action_dtype: str = "int64"
    low: tuple[float, ...] = ()  # the bounds of a box, number by number
    high: tuple[float, ...] = ()

    @classmethod
    def of(cls, spaces: SpaceAdapter) -> "Interface":
        """That of an environment."""
        action = spaces.action
        return cls(
            spaces.raw_shape,
            spaces.raw_dtype,
            spaces.transpose,
            spaces.observation_start,
            spaces.action_start,
            spaces.raw_action_shape,
            str(spaces.raw_action_dtype),
            action.low,
            action.high,
        )

    def check(self) -> None:
        """ValueError unless actions can be made from it."""
        for name in (self.dtype, self.action_dtype):
            if name not in NUMBERS:
                raise ValueError(f"{name!r:.40} is no type of numbers")
        starts = self.action_start if isinstance(self.action_start, tuple) else (self.action_start,)
        sizes = (*self.shape, *self.action_shape)
        if (
            min(sizes, default=0) < 0
            or max(map(abs, (*sizes, *starts, self.observation_start))) > MOST
        ):
            raise ValueError("observations or actions are not those of an environment")
        size, low, high = math.prod(self.action_shape), np.array(self.low), np.array(self.high)
        if np.size(self.action_start) not in (1, size):
            raise ValueError("the starts of actions don't fit their shape")
        if low.size + high.size and not low.size == high.size == size:
            raise ValueError("the bounds of actions don't fit their shape")
        if not (np.isfinite(high - low) & (low <= high)).all():
            raise ValueError("the bounds of actions are not finite, or upside down")


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
        self.interface.check()


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
        read = TypeAdapter(AgentFile).validate_json(read_bytes(folder / FACTS), strict=True)
        parts = load(read_bytes(folder / WEIGHTS)), read.algorithm, read.interface, read.facts
        agent = SavedAgent(read.genome, read.specs, *parts)
        agent.check()
    except ValidationError as error:
        problem = f"not an agent of this version: {first_problem(error):.200}"
    except (OSError, ValueError, SafetensorError) as error:
        problem = f"no usable agent there: {reason(error)}"
    else:
        return agent
    raise run_error(folder, problem)


def load_algorithm(values: Mapping[str, Any]) -> Algorithm:
    """The algorithm that an agent was trained with; ConfigError if it cannot be had."""
    if not isinstance(name := values.get("name"), str):
        raise ConfigError(f"algorithm.name: expected text, got {name!r:.40}")
    try:
        found: Algorithm = resolve("algorithm", name).model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"algorithm.{first_problem(error)}") from None
    return found


class Agent(nn.Module):
    """Takes observations as the environment gives them, and gives its actions, greedily.

    `networks["q"]` is one of its networks as an ordinary module; it reads observations in evorl's
    form, which `prepare` makes of the environment's, without a mask.
    """

    def __init__(self, saved: SavedAgent) -> None:
        super().__init__()
        self.saved = saved
        self.networks: dict[str, PlainNetwork] = {}  # not a ModuleDict, which refuses some names
        statistics = network_part(saved.parameters, NORMALIZER)
        for name, spec in saved.specs.items():
            own = network_part(saved.parameters, name)
            if isinstance(spec, NetworkSpec):
                plain = dataclasses.replace(spec, mask=0)
                architecture = saved.genome.architectures[name]
                self.networks[name] = to_module(plain, architecture, own, statistics)
                self.add_module(f"network_{name}", self.networks[name])
            elif isinstance(spec, ParameterSpec):
                self.register_parameter(f"parameter_{name}", nn.Parameter(own[VALUE].clone()))
        self.scaled = Scaled(saved.interface)
        self.eval()

    @cached_property
    def algorithm(self) -> Any:
        """The algorithm that trained it; a user's own module is imported here, not on loading."""
        return load_algorithm(self.saved.algorithm)

    def forward(self, obs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Actions [B, ...] for the environment's observations [B, ...]."""
        return self.decide(obs, mask)[0]

    def decide(self, obs: Tensor, mask: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions [B, ...], and what the networks gave on the way, each [B, outputs].

        `mask` [B, choices] is above 0 where a choice is allowed; without it all are.
        """
        networks = GroupOfOne(self, mask)
        action = self.algorithm.greedy(networks, self.prepare(obs).unsqueeze(0)).squeeze(0)
        return self.scaled(action), networks.outputs

    def prepare(self, obs: Tensor) -> Tensor:
        """The environment's observations [B, ...] as networks read them."""
        interface, spec = self.saved.interface, self.saved.spec
        if interface.channels_last:
            return obs.permute(0, 3, 1, 2)
        if spec.one_hot:
            return obs - interface.observation_start
        return obs.reshape(obs.shape[0], *(spec.image or (spec.inputs,)))

    @torch.no_grad()
    def act(self, obs: npt.ArrayLike, mask: Any = None) -> npt.NDArray[Any]:
        """The action for one observation, or the actions [B, ...] for a batch [B, ...] of them.

        `mask` is the environment's info["action_mask"]; without it every action is allowed.
        """
        array, shape = np.asarray(obs), self.saved.interface.shape
        single = array.shape == shape
        if not single and array.shape[1:] != shape:
            raise ValueError(f"observations must have shape {shape} or (B, ...), got {array.shape}")
        inputs = [array]
        if mask is not None:
            inputs.append(self._whole(mask, array.shape[: array.ndim - len(shape)]))
        device = next(self.parameters()).device
        tensors = [torch.tensor(one[None] if single else one, device=device) for one in inputs]
        actions = self(*tensors).cpu().numpy()
        found: npt.NDArray[Any] = actions[0] if single else actions
        return found

    def _whole(self, mask: Any, batch: tuple[int, ...]) -> npt.NDArray[Any]:
        """A mask [..., choices], also of one that has an array for each part of an action."""
        several = not batch or isinstance(mask, tuple)
        parts = [np.atleast_1d(part) for part in mask] if several else [np.asarray(mask)]
        whole, choices = np.concatenate(parts, -1), self.saved.spec.mask
        if not choices:
            raise ValueError("this agent was trained without action masks, and takes none")
        if whole.shape != (*batch, choices):
            raise ValueError(f"the mask must have shape {(*batch, choices)}, got {whole.shape}")
        return whole


class Scaled(nn.Module):
    """From actions as algorithms give them to actions as the environment takes them."""

    bounds: Tensor | None  # [2, A] of a box
    start: Tensor

    def __init__(self, interface: Interface) -> None:
        super().__init__()
        self.shape, own = interface.action_shape, np.dtype(interface.action_dtype)
        self.dtype = torch.from_numpy(np.empty(0, own)).dtype
        box = np.array([interface.low, interface.high], np.result_type(own, np.float32))
        # not among the weights: agent.json has them
        self.register_buffer("bounds", torch.from_numpy(box) if box.size else None, False)
        self.register_buffer("start", torch.tensor(interface.action_start), False)

    def forward(self, action: Tensor) -> Tensor:
        """Choices count from `start`; -1 to 1 becomes low to high, and what is outside is clipped.

        Clipped to the bounds themselves, which rounding might pass.
        """
        if self.bounds is None:
            action = action + self.start
        else:
            low, high = self.bounds
            action = (low + high) / 2 + (high - low) / 2 * action.to(low.dtype)
            action = torch.minimum(torch.maximum(action, low), high)
        return action.reshape(action.shape[0], *self.shape).to(self.dtype)


class GroupOfOne(dict[str, "LoneNetwork"]):
    """An agent's networks as algorithms call them, with a leading P; the last outputs are kept."""

    def __init__(self, agent: Agent, mask: Tensor | None = None) -> None:
        self._agent = agent
        self.allowed = None if mask is None else mask.unsqueeze(0) > 0  # [P, B, choices]
        self.outputs: dict[str, Tensor] = {}  # [B, outputs] of the networks that were called
        super().__init__((name, LoneNetwork(self, agent, name)) for name in agent.networks)

    def parameter(self, name: str) -> Tensor:
        """A bare parameter [P, size]."""
        return self._agent.get_parameter(f"parameter_{name}").unsqueeze(0)


class LoneNetwork:
    """A plain network with what algorithms use of a stacked one."""

    def __init__(self, group: GroupOfOne, agent: Agent, name: str) -> None:
        self._group, self._name, self._module = group, name, agent.networks[name]
        self.spec = agent.saved.specs[name]

    def __call__(self, obs: Tensor, *extra: Tensor) -> Tensor:
        """Outputs [P, B, outputs]."""
        found: Tensor = self._module(*(one.squeeze(0) for one in (obs, *extra)))
        self._group.outputs[self._name] = found
        return found.unsqueeze(0)

    def mask(self, obs: Tensor) -> Tensor | None:
        """Which choices are allowed, [P, B, choices]; None: all."""
        return self._group.allowed

    def detached(self) -> "LoneNetwork":
        """The same: nobody trains it."""
        return self


def load_agent(folder: str | Path) -> Agent:
    """The agent that was saved or exported there; RunError if there is none that can be read."""
    return Agent(read_agent(folder))
