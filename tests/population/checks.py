"""Whether a population's matrices are what its genomes say."""

import numpy as np
import torch

from evorl.networks import make_masks, signature
from evorl.population.group import PARTS


def check(population, states=None):
    """RuntimeError unless the matrices and hyperparameters are what the genomes say.

    With `states` the agents' weights and moments must be these, bit for bit.
    """
    everybody = np.sort(np.concatenate(population.members))
    if not np.array_equal(everybody, np.arange(population.size)):
        raise RuntimeError(f"agents {everybody.tolist()} are in groups, of {population.size}")
    for group in population.groups:
        if not np.shares_memory(group.updates, population._updates) or not all(
            np.shares_memory(group.hp[name], own) for name, own in population._hp_by_group.items()
        ):
            raise RuntimeError("a group has numbers that rounds do not read")
    for numbers, group in zip(population.members, population.groups, strict=True):
        for row, agent in enumerate(numbers):
            own = None if states is None else states[agent]
            wrong = mismatch(group, row, population.genomes[agent], own)
            given = population.genomes[agent].hyperparameters.items()
            if wrong is None and any(
                population.hyperparameter(name)[agent] != value for name, value in given
            ):
                wrong = "numbers are another's"
            if wrong is not None:
                raise RuntimeError(f"agent {population.genomes[agent].id}: its {wrong}")


def mismatch(group, i, genome, state):
    """In what row i is not what this genome (and state) says; None if it is."""
    if group.genomes[i] != genome:
        return "group is another genome's"
    for name, architecture in genome.architectures.items():
        wrong = other_signature(group, name, architecture) or other_layers(
            group, i, name, architecture
        )
        if wrong is not None:
            return wrong
    for place, (name, value) in enumerate(genome.hyperparameters.items()):
        if group.hp[name][i] != value:
            return f"{name} is {group.hp[name][i]}, not {value}"
        live = group.hyperparameters.values[place, i]
        if live != torch.tensor(group.hp[name][i]).to(live):
            return f"{name} is {live} where it learns, not {value}"
    padding = ~group.layout.mask(genome.architectures).to(group.theta.device)
    for name, matrix in group.matrices._asdict().items():
        if matrix[i][padding].any():
            return f"{name} is not zero outside of its architecture"
    return None if state is None else other_state(group, i, state)


def other_signature(group, name, architecture):
    shared = group.layout.signatures[name]
    own = signature(architecture)._replace(widths=shared.widths, gates=shared.gates)
    if shared != own:
        return "group is another genome's"
    if any(had < own for had, own in zip(shared.widths, architecture.hidden, strict=False)):
        return f"group is {shared.widths} wide, not {architecture.hidden}"
    return None


def other_layers(group, i, name, architecture):
    layout, depth, masks = group.layout.networks[name], architecture.depth, group.masks[name]
    dtype, rows = group.theta.dtype, [1] * layout.depth
    alone = make_masks([architecture], layout.signature.widths, rows, dtype)
    if depth > layout.depth or any(i >= len(mask.keep) for mask in masks[:depth]):
        return f"group does not compute all of {depth} layers"
    for k, (mask, own) in enumerate(zip(masks, alone, strict=True)):
        if i >= len(mask.keep):
            continue
        if own.keep.any() and not group.networks[name].mlp.skips[k]:
            return f"group computes layer {k} as if it were there, and not gated"
        for part, ours, theirs in zip(mask._fields, mask, own, strict=True):
            if not torch.equal(ours[i], theirs[0].to(ours)):
                return f"mask of layer {k} ({part}) is another architecture's"
    return None


def other_state(group, i, state):
    live = group.state(i)
    for name, ours, theirs in zip(PARTS, live[:4], state[:4], strict=True):
        if ours.keys() != theirs.keys():
            return f"{name} has other segments"
        for segment, value in ours.items():
            if not same_bits(value, theirs[segment].to(value)):
                return f"{name} differs in {segment}"
    return None if live.updates == state.updates else "number of updates differs"


def same_bits(a, b):
    """Equal to the bit; a NaN, too."""
    bytes_a, bytes_b = (x.contiguous().view(torch.uint8) for x in (a, b))
    return torch.equal(bytes_a, bytes_b)
