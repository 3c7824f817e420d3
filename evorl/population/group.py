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
from evorl.genome import Genome
from evorl.networks import (
    NORMALIZER,
    Layout,
    Masks,
    Networks,
    Parameters,
    StackedNetwork,
    Weights,
    bind,
    layers_with_skips,
    make_masks,
    needed_rows,
    network_part,
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
    updates: int  # made so far, by which Adam corrects its moments

    def network(self, name: str) -> "AgentState":
        """One network of it, by segment."""
        online, target, m, v = (network_part(part, name) for part in self[:4])
        return AgentState(online, target, m, v, self.updates)

    def with_network(self, name: str, changed: "AgentState") -> "AgentState":
        """Everything but that network as it is."""
        start = f"{name}."

        def merged(own: Parameters, new: Parameters) -> Parameters:
            others = {key: value for key, value in own.items() if not key.startswith(start)}
            return others | {start + key: value for key, value in new.items()}

        online, target, m, v = map(merged, self[:4], changed[:4])
        return AgentState(online, target, m, v, self.updates)


PARTS = AgentState._fields[:4]  # those that are weights


def newborn(parameters: Parameters) -> AgentState:
    """An agent with these weights that has not learned yet."""
    zeros = {name: torch.zeros_like(value) for name, value in parameters.items()}
    return AgentState(parameters, parameters, zeros, zeros, updates=0)


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
        views = layout.views(self.theta)
        self.statistics = {name: views[name] for name in layout.statistics}
        self.online, self.target = (self._bind(matrix) for matrix in self.matrices[:2])
        self.updates = np.array([state.updates for state in states], dtype=np.int64)
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
        """The networks with these weights, by network and segment; all read by the statistics."""
        return bind(self.networks, {**views, **self.statistics}, self.masks)

    @property
    def normalizer(self) -> Weights:
        """The agents' statistics by segment; none if they keep none."""
        return self.statistics.get(NORMALIZER, {})

    @cached_property
    def leaves(self) -> dict[str, Weights]:
        """The weights as autograd's leaves, in the memory of the matrix."""
        views = self.layout.views(self.theta)
        return {
            name: {segment: view.detach().requires_grad_() for segment, view in own.items()}
            for name, own in views.items()
            if name not in self.statistics
        }

    @cached_property
    def differentiable(self) -> Networks:
        """The networks with those leaves as their weights."""
        with torch.enable_grad():
            return self.bound(self.leaves)

    @cached_property
    def columns(self) -> dict[str, tuple[Matrices, Tensor, Tensor, Tensor | None]]:
        """For each network its columns of matrices, gradient, scratch and limits."""
        slices = {n: own for n, own in self.layout.slices.items() if n not in self.statistics}
        if len(self.layout.slices) == 1:
            whole = self.matrices, self.gradient, self.scratch, self.limits
            return dict.fromkeys(slices, whole)
        return {
            name: (
                Matrices(*(matrix[:, own] for matrix in self.matrices)),
                self.gradient[:, own],
                self.scratch[:, own],
                None if self.limits is None else self.limits[:, own],
            )
            for name, own in slices.items()
        }

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
        return AgentState(online, target, m, v, int(self.updates[i]))
