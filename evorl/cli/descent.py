"""The line of descent that a command is about: of a run's best agent, or of another one."""

from dataclasses import dataclass
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from evorl.errors import RunError, one_line
from evorl.evolution.lineage import Ancestor, Lineage
from evorl.runs.directory import BEST, RunDirectory
from evorl.runs.saved_agent import SavedAgent


@dataclass(frozen=True)
class BestFacts:
    """What is known of a run's best agent."""

    generation: int
    own_steps: int  # training steps of its line
    fitness: float
    confirmed: float | None = None  # its fitness on further episodes


class Descent(NamedTuple):
    """An agent and its ancestors."""

    ancestry: list[Ancestor]
    own_steps: int  # training steps of the line, up to the agent's best or its last evaluation
    best: BestFacts | None  # None: it is not the run's best agent
    scheduled: bool  # its hyperparameters changed while it lived

    @property
    def id(self) -> int:
        """The agent's."""
        return self.ancestry[-1].genome.id


def find_descent(directory: RunDirectory, agent: int | None) -> Descent:
    """The line of an agent, or of the run's best one; RunError if the directory has none."""
    lineage = directory.lineage()
    if agent is None or (directory.path / BEST).exists():
        best = directory.best()
        if agent is None or agent == best.genome.id:
            return _of_best(directory, lineage, best)
    if agent not in lineage.births:
        ids = f"from {min(lineage.births)} to {max(lineage.births)}"
        raise RunError(one_line(f"{directory.path}: no agent {agent}; ids go {ids}"))
    ancestry = lineage.ancestry(agent)
    return Descent(ancestry, ancestry[-1].end_steps, None, False)


def _of_best(directory: RunDirectory, lineage: Lineage, best: SavedAgent) -> Descent:
    try:
        facts = TypeAdapter(BestFacts).validate_python(best.facts)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RunError(
            one_line(f"{directory.path / BEST}: its facts are not of this version: {where}")
        ) from None
    born = lineage.births.get(best.genome.id)
    if born is None or born.genome.architectures != best.genome.architectures:
        raise RunError(
            one_line(f"{directory.path}: best agent and lineage are not of the same run")
        )
    scheduled = born.genome.hyperparameters != best.genome.hyperparameters
    ancestry = lineage.ancestry(best.genome.id, until=facts.generation)
    if facts.own_steps <= ancestry[-1].own_steps:
        raise RunError(
            one_line(f"{directory.path}: best agent and lineage are not of the same run")
        )
    return Descent(ancestry, facts.own_steps, facts, scheduled)
