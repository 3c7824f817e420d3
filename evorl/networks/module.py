"""A row of the matrix as ordinary modules of PyTorch, which run without a population.

Legend: B batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from evorl.genome import Activation, Architecture
from evorl.networks.layout import Parameters
from evorl.networks.normalizer import normalized
from evorl.networks.spec import NetworkSpec

MODULES: dict[Activation, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
}


class GatedResidual(nn.Module):
    """x + gate * body(x)."""

    def __init__(self, body: nn.Module, gate: Tensor) -> None:
        super().__init__()
        self.body, self.gate = body, nn.Parameter(gate.clone())

    def forward(self, x: Tensor) -> Tensor:
        """The input, and as much of the layer as the gate lets through."""
        out: Tensor = x + self.gate * self.body(x)
        return out


class DuelingHead(nn.Module):
    """A value plus advantages, less their mean."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.value, self.advantage = nn.Linear(inputs, 1), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, outputs]."""
        advantage: Tensor = self.advantage(x)
        out: Tensor = self.value(x) + advantage - advantage.mean(1, keepdim=True)
        return out


class PlainNetwork(nn.Module):
    """One network of an agent: encode the observation, convolve images, run the layers."""

    obs_mean: Tensor  # [inputs] what is subtracted from observations, where they are normalised
    obs_var: Tensor  # [inputs]

    def __init__(
        self, spec: NetworkSpec, convolutions: nn.Module, body: nn.Module, statistics: Parameters
    ) -> None:
        super().__init__()
        self.normalize = spec.normalize
        for name in ("obs_mean", "obs_var") if spec.normalize else ():
            self.register_buffer(name, statistics[name].detach().clone())
        self.one_hot = spec.inputs if spec.one_hot else 0
        self.scale, self.mask = spec.scale, spec.mask
        self.convolutions, self.body = convolutions, body

    def forward(self, obs: Tensor, extra: Tensor | None = None) -> Tensor:
        """Outputs [B, outputs] of observations [B, ...], and of extra inputs [B, extra]."""
        dtype = next(self.parameters()).dtype
        obs = obs[..., : -self.mask] if self.mask else obs
        x = nn.functional.one_hot(obs.long(), self.one_hot) if self.one_hot else obs
        x = x.to(dtype)
        if self.scale != 1:
            x = x * self.scale
        if self.normalize:
            x = normalized(x, self.obs_mean, self.obs_var)
        x = self.convolutions(x)
        if extra is not None:
            x = torch.cat((extra.to(dtype), x), 1)
        out: Tensor = self.body(x)
        return out


def to_module(
    spec: NetworkSpec,
    architecture: Architecture,
    parameters: Parameters,
    statistics: Parameters | None = None,
) -> PlainNetwork:
    """The module that gives the same outputs as these weights do in the matrix.

    `statistics` are the agent's own, for a network that reads observations by them.
    """
    layers: list[nn.Module] = []
    for k in range(architecture.depth):
        layer = _hidden(architecture, parameters, k)
        gate = parameters.get(f"hidden{k}.gate")
        layers.append(layer if gate is None else GatedResidual(layer, gate))
    layers.append(_head(spec, parameters["head.weight"], parameters["head.bias"]))
    convolutions = _convolutions(architecture, parameters) if spec.image else ()
    body = nn.Sequential(*layers)
    return PlainNetwork(spec, nn.Sequential(*convolutions), body, statistics or {})


def _convolutions(architecture: Architecture, parameters: Parameters) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for k, stride in enumerate(architecture.strides):
        weight = parameters[f"conv{k}.weight"]
        outputs, inputs, kernel, _ = weight.shape
        conv = nn.Conv2d(inputs, outputs, kernel, stride, dtype=weight.dtype)
        _fill(conv, weight, parameters[f"conv{k}.bias"])
        layers += [conv, MODULES[architecture.activation]()]
    return [*layers, nn.Flatten()]


def _hidden(architecture: Architecture, parameters: Parameters, k: int) -> nn.Sequential:
    weight = parameters[f"hidden{k}.weight"]  # [in, out]
    linear = nn.Linear(weight.shape[0], weight.shape[1], dtype=weight.dtype)
    _fill(linear, weight.T, parameters[f"hidden{k}.bias"])
    layers: list[nn.Module] = [linear]
    if architecture.layer_norm:
        norm = nn.LayerNorm(weight.shape[1], dtype=weight.dtype)
        _fill(norm, parameters[f"hidden{k}.scale"], parameters[f"hidden{k}.shift"])
        layers.append(norm)
    return nn.Sequential(*layers, MODULES[architecture.activation]())


def _head(spec: NetworkSpec, weight: Tensor, bias: Tensor) -> nn.Module:
    if len(weight) == spec.outputs:
        head = nn.Linear(weight.shape[1], spec.outputs, dtype=weight.dtype)
        _fill(head, weight, bias)
        return head
    dueling = DuelingHead(weight.shape[1], spec.outputs).to(weight.dtype)  # one more: the value
    _fill(dueling.value, weight[:1], bias[:1])
    _fill(dueling.advantage, weight[1:], bias[1:])
    return dueling


def _fill(module: nn.Linear | nn.Conv2d | nn.LayerNorm, weight: Tensor, bias: Tensor) -> None:
    module.weight = nn.Parameter(weight.detach().clone())
    module.bias = nn.Parameter(bias.detach().clone())
