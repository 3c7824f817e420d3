"""An agent as one nn.Sequential: Q values [B, A] of the environment's own observations [B, …]."""

from torch import nn

from evorl.networks.module import DuelingHead, GatedResidual
from evorl.runs.saved_agent import SavedAgent
from evorl.shipping.interface import Interface
from evorl.shipping.layers import AddDimension, ChannelsFirst, Numbers, OneHot


def whole_module(agent: SavedAgent, interface: Interface) -> nn.Sequential:
    """What evorl does to an observation, and then the agent's network."""
    module = nn.Sequential(*_preparation(interface), *agent.module().body)
    return module.float().eval().requires_grad_(False)


def _preparation(interface: Interface) -> list[nn.Module]:
    """The steps of SpaceAdapter.observations and of the network's encoding, as layers."""
    adapter, observation = interface.adapter, interface.adapter.observation
    if observation.kind == "discrete":
        assert observation.n is not None
        return [OneHot(observation.n, adapter.observation_start)]
    numbers = Numbers(observation.scale)
    if adapter.transpose:
        return [numbers, ChannelsFirst()]
    dimensions = len(interface.shape)
    if dimensions < len(observation.shape):
        return [numbers, AddDimension()]
    if dimensions > len(observation.shape):
        return [numbers, nn.Flatten()]
    return [numbers]


def code_of(layer: nn.Module, indent: str = "") -> str:
    """The expression that makes a layer of this kind and size anew, with other weights."""
    inner = indent + "    "
    if isinstance(layer, nn.Sequential):
        lines = [f"{inner}{code_of(part, inner)},\n" for part in layer]
        return f"nn.Sequential(\n{''.join(lines)}{indent})"
    if isinstance(layer, GatedResidual):
        return f"GatedResidual({code_of(layer.body, indent)}, torch.zeros(1))"
    if isinstance(layer, DuelingHead):
        return f"DuelingHead({layer.value.in_features}, {layer.advantage.out_features})"
    if isinstance(layer, OneHot):
        return f"OneHot({layer.count}, {layer.start})"
    if isinstance(layer, Numbers):
        return f"Numbers({layer.scale!r})"
    if isinstance(layer, nn.Linear):
        return f"nn.Linear({layer.in_features}, {layer.out_features})"
    if isinstance(layer, nn.Conv2d):
        sizes = layer.in_channels, layer.out_channels, layer.kernel_size[0], layer.stride[0]
        return f"nn.Conv2d{sizes}"
    if isinstance(layer, nn.LayerNorm):
        return f"nn.LayerNorm({layer.normalized_shape[0]})"
    own = isinstance(layer, ChannelsFirst | AddDimension)
    return f"{'' if own else 'nn.'}{type(layer).__name__}()"  # those without a size
