"""Which way of stacking convolutions is fastest for which layer, and whether the rule picks it.

    python benchmarks/convolution.py    # a minute or two

For each layer: milliseconds of a forward and backward pass by each way, and the choice of
evorl.networks.cnn.choose. The last line says whether it was ever slower than the loop.
"""

import sys
from functools import partial
from typing import get_args

import torch
from timing import best_seconds

from evorl.networks import cnn
from evorl.networks.cnn import ConvLayer, Way

NOISE = 1.1  # a choice counts as slower than the loop when it is so by more than this

# name, agents, batch, input channels, output channels, image side, kernel, stride, first layer
LAYERS = [
    ("10x10, first layer", 4, 32, 4, 16, 10, 3, 1, True),
    ("10x10, first layer", 8, 128, 4, 16, 10, 3, 1, True),
    ("8x8, second layer", 4, 32, 16, 32, 8, 3, 1, False),
    ("8x8, second layer", 8, 128, 16, 32, 8, 3, 1, False),
    ("32x32, first layer", 4, 32, 3, 16, 32, 5, 2, True),
    ("32x32, first layer, wide", 4, 32, 3, 32, 32, 5, 2, True),
    ("14x14, second layer", 4, 32, 16, 32, 14, 3, 1, False),
    ("84x84, first layer", 4, 32, 4, 32, 84, 8, 4, True),
    ("20x20, second layer", 4, 32, 32, 64, 20, 4, 2, False),
    ("9x9, third layer", 4, 32, 64, 64, 9, 3, 1, False),
]


def both_passes(
    layer: ConvLayer, weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor
) -> None:
    """Forward and backward of one layer."""
    y, kept = cnn.convolve(layer, weight, bias, x)
    cnn.convolve_backward(layer, weight, x, kept, y)


def main() -> None:
    """Time every way for every layer and judge the choice."""
    torch.set_num_threads(1)
    slower = []
    print(
        f"{'layer':26} agents batch " + "".join(f"{way:>10}" for way in get_args(Way)) + "  choice"
    )
    for name, agents, batch, inputs, outputs, side, kernel, stride, first in LAYERS:
        x = torch.randn(agents, batch, inputs, side, side)
        weight = torch.randn(agents, outputs, inputs, kernel, kernel)
        bias = torch.randn(agents, outputs)
        candidates = {
            way: partial(both_passes, ConvLayer(way, stride, not first), weight, bias, x)
            for way in get_args(Way)
        }
        with torch.no_grad():
            seconds = best_seconds(candidates, calls=2, turns=5)
        result = (side - kernel) // stride + 1
        choice = cnn.choose(tuple(weight.shape[1:]), result, result, first, "cpu")
        times = "".join(f"{1e3 * seconds[way]:10.2f}" for way in get_args(Way))
        print(f"{name:26} {agents:6} {batch:5} {times}  {choice}", flush=True)
        if seconds[choice] > NOISE * seconds["loop"]:
            slower.append(name)
    print("never slower than the loop" if not slower else f"slower than the loop: {slower}")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
