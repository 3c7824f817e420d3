"""One matrix: the agents of one signature, their optimizer, and the update that moves them all.

Legend: P agents of the group, D row length, B batch, A actions, N environments.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.algorithms.base import Algorithm, Batch
from evorl.genome import HYPERPARAMETERS, Architecture, Genome
from evorl.networks.layout import Layout, Parameters, signature
from evorl.networks.masks import Live, blended_layers, live_parts, needed_rows
from evorl.networks.stacked import Network
from evorl.networks.views import arrange
from evorl.population.optimizer import Coefficients, adam_, clip_, limits_of

Matrices = Sequence[Tensor]  # theta, target, m and v, [P, D] each
UpdateFunction = Callable[[Matrices, Live, Batch, Tensor], tuple[Tensor, Matrices]]


class AgentState(NamedTuple):
    """One agent's weights and optimizer without padding: what moves between groups and to disk."""

    online: Parameters
    target: Parameters
    m: Parameters
    v: Parameters
    steps: int  # updates made


def newborn(parameters: Parameters) -> AgentState:
    """An agent with these weights that has not learned yet."""
    zeros = {name: torch.zeros_like(value) for name, value in parameters.items()}
    return AgentState(parameters, parameters, zeros, zeros, steps=0)


class Group:
    """Rows of weights, target weights and Adam moments for agents of one signature.

    The agents come sorted by depth, deepest first: a layer is computed for the first rows only.
    With `whole` every layer is computed for all, and masked: more arithmetic, but a program that
    doesn't depend on who is how deep, or gated where.
    """

    def __init__(
        self,
        layout: Layout,
        genomes: Sequence[Genome],
        states: Sequence[AgentState],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        whole: bool = False,
    ) -> None:
        self.layout, self.genomes = layout, list(genomes)
        architectures = [genome.architecture for genome in genomes]
        rows = needed_rows(architectures, layout.depth)
        blended = blended_layers(architectures, rows)
        if whole:
            rows = (len(genomes),) * layout.depth
            mixed = any(blended_layers(architectures, rows))
            blended = tuple(mixed and k > 0 for k in range(layout.depth))
        self.network = Network(layout, blended, torch.device(device).type)
        self.theta, self.target, self.m, self.v = (
            torch.stack([layout.pack(getattr(state, part)) for state in states]).to(device, dtype)
            for part in ("online", "target", "m", "v")
        )
        self.live = live_parts(architectures, layout.signature.widths, rows, dtype, device)
        marked = bool((self.v < 0).any())  # some weights came by a mutation
        self._limits = limits_of(self.v) if marked else None
        self.gradient, self._scratch = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        self._online = arrange(layout.views(self.theta), self.live)
        self._target = arrange(layout.views(self.target), self.live)
        self.steps = np.array([state.steps for state in states], dtype=np.int64)
        self.hp: dict[str, npt.NDArray[np.float64]] = {
            name: np.array([genome.hyperparameters[name] for genome in genomes], dtype=np.float64)
            for name in HYPERPARAMETERS
        }
        self.gamma = torch.from_numpy(self.hp["gamma"]).to(device, dtype)
        masks = (part for mask in self.live for part in mask)
        matrices = (self.theta, self.target, self.m, self.v)
        self.tensors = (*matrices, *masks, self.gamma)  # all that rounds of updates need

    @property
    def size(self) -> int:
        """The number of agents P."""
        return len(self.genomes)

    def values(self, obs: Tensor) -> Tensor:
        """Q values [P, A, N] of observations [P, N, ...]."""
        return self.network.forward(self._online, obs)[0]

    def state(self, i: int) -> AgentState:
        """Agent i of the group, without padding."""
        architecture = self.genomes[i].architecture
        parts = (self.theta, self.target, self.m, self.v)
        online, target, m, v = (self.layout.unpack(part[i], architecture) for part in parts)
        return AgentState(online, target, m, v, int(self.steps[i]))

    def mismatch(self, i: int, genome: Genome, state: AgentState | None) -> str | None:
        """In what row i is not what this genome (and state) says; None if it is."""
        group, architecture = self.layout.signature, genome.architecture
        own = signature(architecture)._replace(widths=group.widths, gates=group.gates)
        if self.genomes[i] != genome or group != own:
            return "group is another genome's"
        if any(had < own for had, own in zip(group.widths, architecture.hidden, strict=False)):
            return f"group is {group.widths} wide, not {architecture.hidden}"
        for name, value in genome.hyperparameters.items():
            if self.hp[name][i] != value:
                return f"{name} is {self.hp[name][i]}, not {value}"
        if self.gamma[i] != torch.tensor(self.hp["gamma"][i]).to(self.gamma):
            return f"gamma is {self.gamma[i]} where it learns, not {self.hp['gamma'][i]}"
        if (wrong := self._other_layers(i, genome.architecture)) is not None:
            return wrong
        padding = ~self.layout.mask(genome.architecture).to(self.theta.device)
        for name in ("theta", "target", "m", "v"):
            if getattr(self, name)[i][padding].any():
                return f"{name} is not zero outside of its architecture"
        return None if state is None else self._other_state(i, state)

    def _other_layers(self, i: int, architecture: Architecture) -> str | None:
        layout, depth = self.layout, architecture.depth
        dtype, rows = self.theta.dtype, [1] * layout.depth
        alone = live_parts([architecture], layout.signature.widths, rows, dtype)
        if depth > layout.depth or any(i >= len(mask.keep) for mask in self.live[:depth]):
            return f"group does not compute all of {depth} layers"
        for k, (mask, own) in enumerate(zip(self.live, alone, strict=True)):
            if i >= len(mask.keep):
                continue
            if own.keep.any() and not self.network.mlp.blended[k]:
                return f"group computes layer {k} as if it were there, and not gated"
            for name, ours, theirs in zip(mask._fields, mask, own, strict=True):
                if not torch.equal(ours[i], theirs[0].to(ours)):
                    return f"mask of layer {k} ({name}) is another architecture's"
        return None

    def _other_state(self, i: int, state: AgentState) -> str | None:
        live = self.state(i)
        for name, ours, theirs in zip(AgentState._fields[:4], live[:4], state[:4], strict=True):
            if ours.keys() != theirs.keys():
                return f"{name} has other segments"
            for segment, value in ours.items():
                if not _same_bits(value, theirs[segment].to(value)):
                    return f"{name} differs in {segment}"
        return None if live.steps == state.steps else "step count differs"

    def update(self, algorithm: Algorithm, batch: Batch, numbers: Tensor) -> Tensor:
        """Move every row by one update, in place; temporal-difference errors [P, B]."""
        td_error = self.find_gradient(algorithm, batch)
        self.apply_gradient(numbers)
        return td_error

    def find_gradient(self, algorithm: Algorithm, batch: Batch) -> Tensor:
        """Fill `gradient` by a batch; temporal-difference errors [P, B]."""
        signal = algorithm.signal(self.network, self._online, self._target, batch)
        found = self.network.backward(self._online, signal.saved, signal.gradient)
        self.layout.join(found, out=self.gradient)
        return signal.td_error

    def apply_gradient(self, numbers: Tensor) -> None:
        """Move every row by `gradient`, which is overwritten; with coefficients [6, P, 1]."""
        c = Coefficients(*numbers.unbind(0))
        clip_(self.gradient, c.clip)
        adam_(self.theta, self.m, self.v, self.gradient, c, self._scratch, self._limits)
        self.target.lerp_(self.theta, c.tau)


def functional_update(network: Network, algorithm: Algorithm) -> UpdateFunction:
    """The same update as a function of plain tensors, for torch.compile; it changes none of them.

    Errors [P, B], and the matrices anew. They are copied after all else has read them: a copy that
    is written to at once costs nothing.
    """

    def update(
        matrices: Matrices, live: Live, batch: Batch, numbers: Tensor
    ) -> tuple[Tensor, Matrices]:
        layout, c = network.layout, Coefficients(*numbers.unbind(0))
        widths = [mask.units.shape[2] for mask in live]
        online, old = (arrange(layout.views_of(each, widths), live) for each in matrices[:2])
        signal = algorithm.signal(network, online, old, batch)
        gradient = layout.join(network.backward(online, signal.saved, signal.gradient))
        clip_(gradient, c.clip)
        theta, target, m, v = (matrix.clone() for matrix in matrices)
        limits = limits_of(v)  # always: one program, whether or not some weights are marked
        adam_(theta, m, v, gradient, c, torch.empty_like(gradient), limits)
        target.lerp_(theta, c.tau)
        return signal.td_error, (theta, target, m, v)

    return update


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit; a NaN, too."""
    bytes_a, bytes_b = (x.contiguous().view(torch.uint8) for x in (a, b))
    return torch.equal(bytes_a, bytes_b)
