"""A row of the matrix as an ordinary nn.Module, which runs without a population."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from evorl.genome import Activation, Architecture
from evorl.networks.layout import Parameters
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
    """A value and advantages, as Q values."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.value, self.advantage = nn.Linear(inputs, 1), nn.Linear(inputs, actions)

    def forward(self, x: Tensor) -> Tensor:
        """Q values [B, A]."""
        advantage: Tensor = self.advantage(x)
        out: Tensor = self.value(x) + advantage - advantage.mean(1, keepdim=True)
        return out


class QNetwork(nn.Module):
    """Q values [B, A] of raw observations [B, ...], as the environment gives them."""

    def __init__(self, spec: NetworkSpec, body: Sequence[nn.Module]) -> None:
        super().__init__()
        self.one_hot = spec.inputs if spec.one_hot else 0
        self.scale = spec.scale
        self.body = nn.Sequential(*body)

    def forward(self, obs: Tensor) -> Tensor:
        """Q values; the greedy action is their argmax."""
        dtype = next(self.parameters()).dtype
        x = nn.functional.one_hot(obs, self.one_hot) if self.one_hot else obs
        x = x.to(dtype)
        if self.scale != 1:
            x = x * self.scale
        out: Tensor = self.body(x)
        return out


def to_module(spec: NetworkSpec, architecture: Architecture, parameters: Parameters) -> QNetwork:
    """The module that gives the same outputs as these weights do in the matrix."""
    body: list[nn.Module] = []
    for k, stride in enumerate(architecture.strides if spec.image else ()):
        weight = parameters[f"conv{k}.weight"]
        outputs, inputs, kernel, _ = weight.shape
        conv = nn.Conv2d(inputs, outputs, kernel, stride, dtype=weight.dtype)
        _fill(conv, weight, parameters[f"conv{k}.bias"])
        body += [conv, MODULES[architecture.activation]()]
    if spec.image:
        body.append(nn.Flatten())
    for k in range(architecture.depth):
        layer = _hidden(architecture, parameters, k)
        gated = architecture.gated[k]
        body.append(GatedResidual(layer, parameters[f"hidden{k}.gate"]) if gated else layer)
    weight, bias = parameters["head.weight"], parameters["head.bias"]
    if architecture.dueling:
        dueling = DuelingHead(weight.shape[1], spec.outputs).to(weight.dtype)
        _fill(dueling.value, weight[:1], bias[:1])
        _fill(dueling.advantage, weight[1:], bias[1:])
        body.append(dueling)
    else:
        head = nn.Linear(weight.shape[1], spec.outputs, dtype=weight.dtype)
        _fill(head, weight, bias)
        body.append(head)
    return QNetwork(spec, body)


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


def _fill(module: nn.Linear | nn.Conv2d | nn.LayerNorm, weight: Tensor, bias: Tensor) -> None:
    module.weight = nn.Parameter(weight.detach().clone())
    module.bias = nn.Parameter(bias.detach().clone())
