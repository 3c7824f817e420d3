"""Who stays, who has children, how children differ, and who descends from whom."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.evolution.describe import (
        NOISE as NOISE,
        describe_architectures as describe_architectures,
        describe_number as describe_number,
    )
    from evorl.evolution.explore import make_explore as make_explore
    from evorl.evolution.fitness import MEAN as MEAN, Fitness as Fitness
    from evorl.evolution.lineage import (
        Ancestor as Ancestor,
        Birth as Birth,
        Effect as Effect,
        FitnessLine as FitnessLine,
        Lineage as Lineage,
        birth as birth,
        first_problem as first_problem,
        fitness_line as fitness_line,
        left as left,
        parse_line as parse_line,
        read_lineage as read_lineage,
    )
    from evorl.evolution.mutation import CheckedMutation as CheckedMutation, Mutation as Mutation
    from evorl.evolution.schedule import (
        Schedule as Schedule,
        config_for_schedule as config_for_schedule,
        flow_text as flow_text,
        parse_schedule as parse_schedule,
        read_schedule as read_schedule,
        refuse_fixed as refuse_fixed,
        schedule_of as schedule_of,
    )
    from evorl.evolution.selection import Selection as Selection
    from evorl.evolution.spaces import Space as Space, Spaces as Spaces
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
