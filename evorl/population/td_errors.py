"""What whoever collects windows can say of them: how wrong their agents are about them.

Legend: P agents, K windows, B the most windows of one agent.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.experience import Samples, Transitions
from evorl.population.group import Group
from evorl.population.population import Population
from evorl.population.update import find_errors


def first_errors(
    population: Population,
    transitions: Transitions,
    agents: npt.NDArray[np.int64],
    noise: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """TD errors [K] of windows for the agents [K] that collected them, for `Sampler.insert`.

    As an update by the population's weights and target weights would find them. An algorithm whose
    loss takes random numbers (`loss_noise`) gets `noise` [K, ...].
    """
    if not len(agents):
        return np.zeros(0, np.float32)
    numbers = np.zeros((len(agents), 0), np.float32) if noise is None else noise
    counts = np.bincount(agents, minlength=population.size)
    order, starts = np.argsort(agents, kind="stable"), np.cumsum(counts) - counts
    columns = np.empty(len(agents), np.int64)
    columns[order] = np.arange(len(agents)) - np.repeat(starts, counts)
    width = int(counts.max(initial=0))
    places = torch.from_numpy(agents * width + columns)

    def grid(values: npt.NDArray[np.generic], dtype: torch.dtype | None = None) -> Tensor:
        """[K, ...] by agent, [P, B, ...]; zeros where one has fewer."""
        own = torch.from_numpy(np.require(values, requirements=["C", "W"]))
        found = own.new_zeros((population.size * width, *own.shape[1:]), dtype=dtype)
        found[places] = own.to(found.dtype)
        return found.view(population.size, width, *own.shape[1:]).to(population.device)

    def errors_of(group: Group, *fields: Tensor) -> Tensor:
        return find_errors(group, population.algorithm, Samples(*fields))

    obs, action, rewards, next_obs, bootstrap = transitions[:5]
    unused = torch.zeros((population.size, width), dtype=torch.int64, device=population.device)
    samples = Samples(
        grid(obs),
        grid(action),
        grid(rewards, population.dtype),
        grid(next_obs),
        grid(bootstrap),
        weight=unused.to(population.dtype),
        slots=unused,
        noise=grid(numbers, population.dtype),
    )
    found = population.of_groups(errors_of, *samples)
    return found.flatten()[places.to(found.device)].cpu().numpy()
