"""Who stays, who has children, how children differ, and who descends from whom."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.evolution.describe import NOISE, describe_architectures, describe_number
    from evorl.evolution.explore import make_explore
    from evorl.evolution.fitness import MEAN, Fitness
    from evorl.evolution.lineage import (
        Ancestor,
        Birth,
        Effect,
        FitnessLine,
        Lineage,
        birth,
        first_problem,
        fitness_line,
        left,
        parse_line,
        read_lineage,
    )
    from evorl.evolution.mutation import CheckedMutation, Mutation
    from evorl.evolution.schedule import (
        Schedule,
        config_for_schedule,
        flow_text,
        parse_schedule,
        read_schedule,
        refuse_fixed,
        schedule_of,
    )
    from evorl.evolution.selection import Selection
    from evorl.evolution.spaces import Space, Spaces
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
