"""model.py: a small file that builds an exported agent with torch, and needs no evorl."""

import inspect

from torch import nn

from evorl.networks.module import DuelingHead, GatedResidual
from evorl.shipping.layers import AddDimension, ChannelsFirst, Numbers, OneHot
from evorl.shipping.module import code_of

OWN = (OneHot, Numbers, ChannelsFirst, AddDimension, GatedResidual, DuelingHead)

FILE = '''"""{heading}

Needs torch and safetensors, and no evorl. Observations go in as the environment gives them.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

WEIGHTS = Path(__file__).with_name("weights.safetensors")


{classes}


def build() -> nn.Sequential:
    """The network, with weights that are yet to be loaded."""
    return {network}


def load(path: str | Path = WEIGHTS) -> nn.Sequential:
    """The trained agent: Q values [B, {actions}] of a batch of observations [{batch}]."""
    module = build()
    module.load_state_dict(load_file(path))
    return module.eval()
'''


def source_of(module: nn.Sequential, heading: str, shape: tuple[int, ...], actions: int) -> str:
    """The text of model.py, with the classes that this network needs."""
    used = {type(part) for part in module.modules()}
    classes = [inspect.getsource(own).rstrip() for own in OWN if own in used]
    return FILE.format(
        heading=heading,
        classes="\n\n\n".join(classes),
        network=code_of(module, "    "),
        actions=actions,
        batch=", ".join(map(str, ("B", *shape))),
    )
