"""Which rank holds which agents: a mesh, population × data, then evaluators, then actors."""

from dataclasses import dataclass
from typing import Literal

from evorl.errors import ConfigError


@dataclass(frozen=True)
class Mesh:
    """The size of each axis, and the evaluators and actors after them."""

    population: int
    data: int
    evaluators: int = 0
    actors: int = 0

    @property
    def trainers(self) -> int:
        """The ranks that train."""
        return self.population * self.data

    @property
    def size(self) -> int:
        """The ranks that meet: all but the actors."""
        return self.trainers + self.evaluators

    def actor_of(self, rank: int) -> tuple[int, int]:
        """The learner that an actor's rank plays for, and its number among those who do."""
        return divmod(rank - self.size, self.actors // self.trainers)

    def data_lines(self) -> list[list[int]]:
        """The ranks with the same agents, one list for each population rank."""
        return [list(range(i, i + self.data)) for i in range(0, self.trainers, self.data)]

    def agents_of(self, agents: int, rank: int) -> range:
        """The agents of a rank: next to each other, the first ranks with one more if need be.

        An evaluator has a copy of all.
        """
        if rank >= self.trainers:
            return range(agents)
        i = rank // self.data
        each, more = divmod(agents, self.population)
        return range(i * each + min(i, more), (i + 1) * each + min(i + 1, more))

    def owner(self, agents: int, place: int) -> int:
        """The first rank that holds an agent: its data rank is 0."""
        ranks = range(0, self.trainers, self.data)
        return next(rank for rank in ranks if place in self.agents_of(agents, rank))


def lay_out(
    ranks: int,
    agents: int,
    population: int | Literal["auto"] = "auto",
    data: int = 1,
    evaluators: int = 0,
    actors: int = 0,
) -> Mesh:
    """The mesh of all ranks; refused unless it uses each of them and gives each an agent."""
    training = ranks - evaluators - actors
    if isinstance(population, str):  # auto
        population = 1 if data > training else training // max(data, 1)
    if population * data != training:
        counts = {"evaluator": evaluators, "actor": actors}
        further = "".join(f" and {n} {who}{'s' * (n != 1)}" for who, n in counts.items() if n)
        raise ConfigError(
            f"mesh: population {population} × data {data}{further} takes"
            f" {population * data + evaluators + actors} ranks, got {ranks}; start as many with"
            " accelerate launch --num_processes, or change mesh"
        )
    if actors % training:
        raise ConfigError(
            f"mesh.actors: must be as many for each of {training} learners, got {actors}"
        )
    if population > agents:
        raise ConfigError(
            f"mesh.population: every rank along it needs an agent, got {population} ranks for"
            f" {agents}; start fewer ranks, raise population.size, or raise mesh.data"
        )
    return Mesh(population, data, evaluators, actors)
