"""What is worth a curve and costs time to know: gradient norms, values, entropies, on one batch.

Nobody moves by it, and no update is slower for it: it is asked once a generation.

Legend: P agents of a group, D row length, B batch.
"""

from typing import Any

import torch
from torch import Tensor

from evorl.algorithms import Algorithm
from evorl.networks import scale_of
from evorl.population.group import Group
from evorl.population.optimizer import norm_of
from evorl.population.update import AnySamples, compute_gradient

NORM = "gradient_norm"


def measure(group: Group, algorithm: Algorithm, samples: AnySamples) -> dict[str, Tensor]:
    """Of the first update of a round, by name, [P] each; the gradient before it is clipped."""
    if not len(samples.weight):  # all of its agents are dead
        return {}
    round_ = samples.batches(group.hyperparameters["gamma"], scale_of(group.normalizer))
    kind: Any = type(round_)
    batch = kind(*(field[0] for field in round_))
    compute_gradient(group, algorithm, batch)
    with torch.no_grad():
        shown = algorithm.measures(group.online, group.target, batch, group.hyperparameters)
    return {**gradient_norms(group, algorithm), **shown}


def gradient_norms(group: Group, algorithm: Algorithm) -> dict[str, Tensor]:
    """Of what is clipped: each network's gradient, or that of all of them."""
    trained = {name: own[1] for name, own in group.columns.items()}
    if algorithm.clips_together or len(trained) == 1:
        return {NORM: norm_of(group.gradient).squeeze(1)}
    return {f"{NORM}/{name}": norm_of(own).squeeze(1) for name, own in trained.items()}
