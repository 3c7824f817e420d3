"""The weights an agent is born with."""

import math
from collections.abc import Mapping

import torch

from evorl.genome import Genome
from evorl.networks.layout import Parameters, row_shapes
from evorl.networks.spec import VALUE, ParameterSpec, Spec
from evorl.seeding import generator


def fresh_parameters(specs: Mapping[str, Spec], genome: Genome, seed: int) -> Parameters:
    """PyTorch's own default for layers, drawn from a generator that is keyed by the agent.

    Weights and biases are uniform within 1/sqrt(fan in), scales start at 1, shifts and gates at 0,
    bare parameters where they say.
    """
    random = generator(seed, "weights", genome.id)
    found: Parameters = {}
    bound = 0.0
    for name, shape in row_shapes(specs, genome.architectures).items():
        network, layer, part = (*name.split("."), "")[:3]
        if part == "weight":  # hidden weights are [in, out]
            fan_in = shape[0] if layer.startswith("hidden") else math.prod(shape[1:])
            bound = 1 / math.sqrt(fan_in)
        if part in ("weight", "bias"):
            found[name] = torch.from_numpy(random.uniform(-bound, bound, shape)).float()
        elif layer == VALUE:
            spec = specs[network]
            assert isinstance(spec, ParameterSpec)
            found[name] = torch.full(shape, spec.initial)
        else:
            found[name] = torch.full(shape, 1.0 if part == "scale" else 0.0)
    return found
