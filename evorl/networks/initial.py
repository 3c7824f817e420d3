"""The weights an agent is born with."""

import math

import torch

from evorl.genome import Genome
from evorl.networks.layout import Parameters, Problem, shapes
from evorl.seeding import generator


def fresh_parameters(problem: Problem, genome: Genome, seed: int) -> Parameters:
    """PyTorch's own default for layers, drawn from a generator that is keyed by the agent.

    Weights and biases are uniform within 1/sqrt(fan in), scales start at 1, shifts and gates at 0.
    """
    random = generator(seed, "weights", genome.id)
    found: Parameters = {}
    bound = 0.0
    for name, shape in shapes(problem, genome.architecture).items():
        part = name.split(".")[1]
        if part == "weight":  # hidden weights are [in, out]
            fan_in = shape[0] if name.startswith("hidden") else math.prod(shape[1:])
            bound = 1 / math.sqrt(fan_in)
        if part in ("weight", "bias"):
            found[name] = torch.from_numpy(random.uniform(-bound, bound, shape)).float()
        else:
            found[name] = torch.full(shape, 1.0 if part == "scale" else 0.0)
    return found
