"""One matrix: the agents of one kind, their optimizer, and the views that an update works on.

Legend: P agents of the group, D row length, H hyperparameters, N environments.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.algorithms import Hyperparameters
from evorl.genome import Architecture, Genome
from evorl.networks import (
    Layout,
    Masks,
    Networks,
    Parameters,
    StackedNetwork,
    Weights,
    bind,
    layer_views,
    layers_with_skips,
    make_masks,
    needed_rows,
    network_part,
    signature,
)
from evorl.population.optimizer import limits_of


class AgentState(NamedTuple):
    """One agent's weights and optimizer without padding: what moves between groups and to disk.

    Weights go by names such as `q.head.bias`: network, then segment.
    """

    online: Parameters
    target: Parameters
    m: Parameters
    v: Parameters
    steps: int  # updates made

    def network(self, name: str) -> "AgentState":
        """One network of it, by segment."""
        online, target, m, v = (network_part(part, name) for part in self[:4])
        return AgentState(online, target, m, v, self.steps)

    def with_network(self, name: str, changed: "AgentState") -> "AgentState":
        """Everything but that network as it is."""
        start = f"{name}."

        def merged(own: Parameters, new: Parameters) -> Parameters:
            others = {key: value for key, value in own.items() if not key.startswith(start)}
            return others | {start + key: value for key, value in new.items()}

        online, target, m, v = map(merged, self[:4], changed[:4])
        return AgentState(online, target, m, v, self.steps)


PARTS = AgentState._fields[:4]  # those that are weights


def newborn(parameters: Parameters) -> AgentState:
    """An agent with these weights that has not learned yet."""
    zeros = {name: torch.zeros_like(value) for name, value in parameters.items()}
    return AgentState(parameters, parameters, zeros, zeros, steps=0)


class Matrices(NamedTuple):
    """Everything that an update moves, [P, D] each."""

    theta: Tensor
    target: Tensor
    m: Tensor
    v: Tensor


class Group:
    """Rows of weights, target weights and Adam moments for agents of one kind.

    The agents come sorted by depth, deepest first: a layer is computed for the first rows only.
    When `masked`, every layer is computed for all, and masked: more arithmetic, but a program that
    doesn't depend on who is how deep, or gated where.
    """

    def __init__(
        self,
        layout: Layout,
        genomes: Sequence[Genome],
        states: Sequence[AgentState],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        masked: bool = False,
    ) -> None:
        self.layout, self.genomes = layout, list(genomes)
        self.matrices = Matrices(
            *(
                torch.stack([layout.pack(getattr(s, part)) for s in states]).to(device, dtype)
                for part in PARTS
            )
        )
        self.networks: dict[str, StackedNetwork] = {}
        self.masks: dict[str, Masks] = {}
        for name in layout.networks:
            self._stack(name, masked, dtype, device)
        marked = bool((self.matrices.v < 0).any())  # some weights came by a mutation
        self.limits = limits_of(self.matrices.v) if marked else None
        self.gradient, self.scratch = (torch.zeros_like(self.theta) for _ in range(2))
        self.online, self.target = (self._bind(matrix) for matrix in self.matrices[:2])
        self.steps = np.array([state.steps for state in states], dtype=np.int64)
        self.names = tuple(genomes[0].hyperparameters)
        self.hp: dict[str, npt.NDArray[np.float64]] = {
            name: np.array([genome.hyperparameters[name] for genome in genomes], dtype=np.float64)
            for name in self.names
        }
        values = torch.from_numpy(np.stack(list(self.hp.values())))
        self.hyperparameters = Hyperparameters(self.names, values.to(device, dtype))
        masks = (part for own in self.masks.values() for mask in own for part in mask)
        # all that rounds of updates need
        self.tensors = (*self.matrices, *masks, self.hyperparameters.values)

    def _stack(
        self, name: str, masked: bool, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        own = [genome.architectures[name] for genome in self.genomes]
        layout = self.layout.networks[name]
        rows = needed_rows(own, layout.depth)
        skips = layers_with_skips(own, rows)
        if masked:
            rows = (len(own),) * layout.depth
            mixed = any(layers_with_skips(own, rows))
            skips = tuple(mixed and k > 0 for k in range(layout.depth))
        self.networks[name] = StackedNetwork(layout, skips, torch.device(device).type)
        self.masks[name] = make_masks(own, layout.signature.widths, rows, dtype, device)

    def _bind(self, matrix: Tensor) -> Networks:
        return self.bound(self.layout.views(matrix))

    def bound(self, views: Mapping[str, Weights]) -> Networks:
        """The networks with these weights, by network and segment."""
        layers = {name: layer_views(views[name], own) for name, own in self.masks.items()}
        return bind(self.networks, layers, views)

    @cached_property
    def leaves(self) -> dict[str, Weights]:
        """The weights as autograd's leaves, in the memory of the matrix."""
        views = self.layout.views(self.theta)
        return {
            name: {segment: view.detach().requires_grad_() for segment, view in own.items()}
            for name, own in views.items()
        }

    @cached_property
    def columns(self) -> list[tuple[Matrices, Tensor, Tensor, Tensor | None]]:
        """For each network its columns of matrices, gradient, scratch and limits."""
        slices = list(self.layout.slices.values())
        if len(slices) == 1:
            return [(self.matrices, self.gradient, self.scratch, self.limits)]
        return [
            (
                Matrices(*(matrix[:, own] for matrix in self.matrices)),
                self.gradient[:, own],
                self.scratch[:, own],
                None if self.limits is None else self.limits[:, own],
            )
            for own in slices
        ]

    @property
    def theta(self) -> Tensor:
        """The weights [P, D]."""
        return self.matrices.theta

    @property
    def size(self) -> int:
        """The number of agents P."""
        return len(self.genomes)

    def state(self, i: int) -> AgentState:
        """Agent i of the group, without padding."""
        own = self.genomes[i].architectures
        online, target, m, v = (self.layout.unpack(part[i], own) for part in self.matrices)
        return AgentState(online, target, m, v, int(self.steps[i]))

    def mismatch(self, i: int, genome: Genome, state: AgentState | None) -> str | None:
        """In what row i is not what this genome (and state) says; None if it is."""
        if self.genomes[i] != genome:
            return "group is another genome's"
        for name, architecture in genome.architectures.items():
            wrong = self._other_signature(name, architecture) or self._other_layers(
                i, name, architecture
            )
            if wrong is not None:
                return wrong
        for place, (name, value) in enumerate(genome.hyperparameters.items()):
            if self.hp[name][i] != value:
                return f"{name} is {self.hp[name][i]}, not {value}"
            live = self.hyperparameters.values[place, i]
            if live != torch.tensor(self.hp[name][i]).to(live):
                return f"{name} is {live} where it learns, not {value}"
        padding = ~self.layout.mask(genome.architectures).to(self.theta.device)
        for name, matrix in self.matrices._asdict().items():
            if matrix[i][padding].any():
                return f"{name} is not zero outside of its architecture"
        return None if state is None else self._other_state(i, state)

    def _other_signature(self, name: str, architecture: Architecture) -> str | None:
        group = self.layout.signatures[name]
        own = signature(architecture)._replace(widths=group.widths, gates=group.gates)
        if group != own:
            return "group is another genome's"
        if any(had < own for had, own in zip(group.widths, architecture.hidden, strict=False)):
            return f"group is {group.widths} wide, not {architecture.hidden}"
        return None

    def _other_layers(self, i: int, name: str, architecture: Architecture) -> str | None:
        layout, depth, masks = self.layout.networks[name], architecture.depth, self.masks[name]
        dtype, rows = self.theta.dtype, [1] * layout.depth
        alone = make_masks([architecture], layout.signature.widths, rows, dtype)
        if depth > layout.depth or any(i >= len(mask.keep) for mask in masks[:depth]):
            return f"group does not compute all of {depth} layers"
        for k, (mask, own) in enumerate(zip(masks, alone, strict=True)):
            if i >= len(mask.keep):
                continue
            if own.keep.any() and not self.networks[name].mlp.skips[k]:
                return f"group computes layer {k} as if it were there, and not gated"
            for part, ours, theirs in zip(mask._fields, mask, own, strict=True):
                if not torch.equal(ours[i], theirs[0].to(ours)):
                    return f"mask of layer {k} ({part}) is another architecture's"
        return None

    def _other_state(self, i: int, state: AgentState) -> str | None:
        live = self.state(i)
        for name, ours, theirs in zip(PARTS, live[:4], state[:4], strict=True):
            if ours.keys() != theirs.keys():
                return f"{name} has other segments"
            for segment, value in ours.items():
                if not _same_bits(value, theirs[segment].to(value)):
                    return f"{name} differs in {segment}"
        return None if live.steps == state.steps else "step count differs"


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit; a NaN, too."""
    bytes_a, bytes_b = (x.contiguous().view(torch.uint8) for x in (a, b))
    return torch.equal(bytes_a, bytes_b)
