"""Ranks as a mesh, population × data, and which agents are on which: arithmetic alone.

Along population ranks hold different agents, along data the same ones:
rank = population_rank * data + data_rank.
"""

from dataclasses import dataclass
from typing import Literal

from evorl.errors import ConfigError


@dataclass(frozen=True)
class Mesh:
    """The size of each axis."""

    population: int
    data: int

    @property
    def size(self) -> int:
        """All ranks."""
        return self.population * self.data

    def data_lines(self) -> list[list[int]]:
        """The ranks with the same agents, one list for each population rank."""
        return [list(range(i, i + self.data)) for i in range(0, self.size, self.data)]

    def places(self, agents: int, rank: int) -> range:
        """The agents of a rank: next to each other, the first ranks with one more if need be."""
        i = rank // self.data
        each, more = divmod(agents, self.population)
        return range(i * each + min(i, more), (i + 1) * each + min(i + 1, more))

    def owner(self, agents: int, place: int) -> int:
        """The first rank that holds an agent: its data rank is 0."""
        ranks = range(0, self.size, self.data)
        return next(rank for rank in ranks if place in self.places(agents, rank))


def lay_out(
    ranks: int, agents: int, population: int | Literal["auto"] = "auto", data: int = 1
) -> Mesh:
    """The mesh of all ranks; refused unless it uses each of them and gives each an agent."""
    if isinstance(population, str):  # auto
        population = ranks // max(1, data)
    if population * data != ranks:
        raise ConfigError(
            f"mesh: population {population} × data {data} takes {population * data} ranks, got"
            f" {ranks}; start as many with accelerate launch --num_processes, or change mesh"
        )
    if population > agents:
        raise ConfigError(
            f"mesh.population: every rank along it needs an agent, got {population} ranks for"
            f" {agents}; start fewer ranks, raise population.size, or raise mesh.data"
        )
    return Mesh(population, data)
