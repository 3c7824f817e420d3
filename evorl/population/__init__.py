"""All agents as a few matrices, acting and learning together."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.population.compiled import wants_compiling as wants_compiling
    from evorl.population.group import PARTS as PARTS, AgentState as AgentState, newborn as newborn
    from evorl.population.grouping import kinds_of as kinds_of
    from evorl.population.optimizer import NEW as NEW
    from evorl.population.population import Population as Population
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
