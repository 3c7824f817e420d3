"""An agent outside of training, for any algorithm: observations in, actions out.

    agent = load_agent("runs/cartpole/best")
    action = agent.act(obs)

Legend: P agents, which is 1 here, B batch.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from evorl.networks import VALUE, NetworkSpec, PlainNetwork, network_part, to_module
from evorl.runs.saved_agent import SavedAgent, make_algorithm, read_agent


class Agent(nn.Module):
    """Takes observations as the environment gives them, and gives its actions, greedily.

    `networks["q"]` is one of its networks as an ordinary module; it reads observations in evorl's
    form, which `prepare` makes of the environment's.
    """

    def __init__(self, saved: SavedAgent) -> None:
        super().__init__()
        self.saved = saved
        self.networks: dict[str, PlainNetwork] = {}  # not a ModuleDict, which refuses some names
        for name, spec in saved.specs.items():
            own = network_part(saved.parameters, name)
            if isinstance(spec, NetworkSpec):
                self.networks[name] = to_module(spec, saved.genome.architectures[name], own)
                self.add_module(f"network_{name}", self.networks[name])
            else:
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
        return action + start if start else action, networks.outputs

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


class GroupOfOne(Mapping[str, Callable[..., Tensor]]):
    """An agent's networks as algorithms call them, with a leading P; the last outputs are kept."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.outputs: dict[str, Tensor] = {}  # [B, outputs] of the networks that were called

    def __getitem__(self, name: str) -> Callable[..., Tensor]:
        return partial(self._call, self._agent.networks[name], name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._agent.networks)

    def __len__(self) -> int:
        return len(self._agent.networks)

    def parameter(self, name: str) -> Tensor:
        """A bare parameter [P, size]."""
        return self._agent.get_parameter(f"parameter_{name}").unsqueeze(0)

    def _call(
        self, network: nn.Module, name: str, obs: Tensor, extra: Tensor | None = None
    ) -> Tensor:
        more = () if extra is None else (extra.squeeze(0),)
        self.outputs[name] = network(obs.squeeze(0), *more)
        return self.outputs[name].unsqueeze(0)


def load_agent(folder: str | Path) -> Agent:
    """The agent that was saved or exported there; RunError if there is none that can be read."""
    return Agent(read_agent(folder))
