"""Weights as a message: what an actor needs to play as the learner's agents would.

generation       that they belong to; and whether it ends with them: last
population       JSON as bytes: the agents' genomes, and how each is computed
alive, steps     [P] who is, and each agent's own environment steps so far
theta0, theta1…  [P, D] the rows of each group; target0… where actors need target networks

An actor has a population of the same genomes, so of the same layout, and copies the rows into it.
Statistics of normalisation are part of a row.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import TypeAdapter
from torch import Tensor

from evorl.algorithms import Algorithm, Trained
from evorl.errors import RunError
from evorl.genome import Genome
from evorl.networks import fresh_parameters
from evorl.population import AgentState, Kind, Population, newborn

_KINDS = TypeAdapter(list[Kind])


class WeightsMessage:
    """What a learner's population is, as fields of a message."""

    def __init__(self, population: Population, targets: bool = False) -> None:
        """`targets`, if actors need the target networks, too."""
        self.population, self.targets = population, targets
        self._of: object = None  # the groups whose agents have been written
        self._agents = torch.empty(0, dtype=torch.uint8)

    def __call__(
        self, generation: int, steps: npt.NDArray[np.int64], last: bool = False
    ) -> dict[str, Any]:
        """As they are now; `steps` are each agent's own [P].

        `last`, if the generation is known to end with what actors do with them.
        """
        population = self.population
        if self._of is not population.groups:  # new ones are made when agents change
            self._of, self._agents = population.groups, _write(population)
        fields: dict[str, Any] = {
            "generation": generation,
            "last": last,
            "population": self._agents,
            "alive": population.alive.copy(),
            "steps": steps.copy(),
        }
        for g, group in enumerate(population.groups):
            fields[f"theta{g}"] = group.theta
            if self.targets:
                fields[f"target{g}"] = group.matrices.target
        return fields


def _write(population: Population) -> Tensor:
    kind_of = {
        int(agent): kind
        for kind, numbers in zip(population.kinds, population.members, strict=True)
        for agent in numbers
    }
    agents = {
        "genomes": [genome.to_json() for genome in population.genomes],
        "kinds": [kind_of[agent] for agent in range(population.size)],
    }
    return torch.frombuffer(bytearray(json.dumps(agents).encode()), dtype=torch.uint8)


def copy_of(
    weights: Mapping[str, Any],
    networks: Mapping[str, Trained],
    algorithm: Algorithm,
    **options: Any,
) -> Population:
    """A population of the same agents, to play; the options are those of Population."""
    genomes, kinds = _read(weights["population"])
    specs = {name: own.spec for name, own in networks.items()}
    states = _empty(specs, genomes)
    found = Population(genomes, networks, algorithm, states=states, kinds=kinds, **options)
    load_weights(found, weights, renewed=False)
    return found


def load_weights(population: Population, weights: Mapping[str, Any], renewed: bool) -> None:
    """Become what the learner's agents are; `renewed`, if they are others than before."""
    if renewed:
        genomes, kinds = _read(weights["population"])
        returns = population.running_returns
        population.rebuild(genomes, _empty(population.specs, genomes), kinds)
        population.running_returns = returns
    for g, group in enumerate(population.groups):
        for name, matrix in (("theta", group.theta), ("target", group.matrices.target)):
            if (new := weights.get(f"{name}{g}")) is not None:
                _copy(new, matrix, f"{name}{g}")
    population.alive = np.array(weights["alive"], dtype=bool)


def _copy(new: Tensor, into: Tensor, name: str) -> None:
    if new.shape != into.shape or new.dtype != into.dtype:
        raise RunError(
            f"weights: {name} is {new.dtype} {tuple(new.shape)} instead of {into.dtype}"
            f" {tuple(into.shape)}; start actors and learners of the same version of evorl"
        )
    into.copy_(new)


def _empty(specs: Mapping[str, Any], genomes: Sequence[Genome]) -> list[AgentState]:
    """States of the right shapes; the rows follow."""
    return [newborn(fresh_parameters(specs, genome, 0)) for genome in genomes]


def _read(said: Tensor) -> tuple[list[Genome], list[Kind]]:
    agents = json.loads(said.numpy().tobytes())
    genomes = [Genome.from_json(own) for own in agents["genomes"]]
    return genomes, _KINDS.validate_python(agents["kinds"])
