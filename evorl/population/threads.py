"""How many threads PyTorch is to use."""

import torch

from evorl.distributed.launch import cores_per_rank, threads_are_given
from evorl.envs import cores
from evorl.population.population import Population

WIDE = 256  # padded units of a layer from which one matrix product is worth sharing out
LARGE = 32 * 32  # pixels of an image from which a convolution is


def set_threads(population: Population) -> int:
    """One thread for small networks, where waiting for the others costs more than they bring.

    An environment variable OMP_NUM_THREADS is left in charge, if it is the user's.
    """
    if not threads_are_given():
        torch.set_num_threads(suitable_threads(population, cores_per_rank(cores())))
    return torch.get_num_threads()


def suitable_threads(population: Population, cores: int) -> int:
    """All cores for large images and wide layers, one for the rest."""
    signatures = [own for group in population.groups for own in group.layout.signatures.values()]
    widest = max(max(own.widths) for own in signatures)
    images = [getattr(spec, "image", None) for spec in population.specs.values()]
    large = any(image and image[1] * image[2] >= LARGE for image in images)
    return cores if large or widest >= WIDE else 1
