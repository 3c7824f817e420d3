"""All agents as a few matrices, acting and learning together."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.population.compiled import wants_compiling
    from evorl.population.group import PARTS, AgentState, newborn
    from evorl.population.grouping import Kind, kinds_of
    from evorl.population.optimizer import NEW
    from evorl.population.population import GroupGradients, Population
    from evorl.population.td_errors import first_errors
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
