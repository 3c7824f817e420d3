"""Who stays, who has children, how children differ, and who descends from whom."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.evolution.explore import Space
    from evorl.evolution.halving import Halving
    from evorl.evolution.lineage import (
        Ancestor,
        FitnessLine,
        Lineage,
        birth,
        describe_architectures,
        describe_number,
        first_problem,
        left,
        parse_line,
        read_lineage,
    )
    from evorl.evolution.mutation import Mutation
    from evorl.evolution.pb2 import make_explore
    from evorl.evolution.schedule import (
        Schedule,
        config_for_schedule,
        parse_schedule,
        read_schedule,
        schedule_of,
    )
    from evorl.evolution.selection import MEAN, Fitness, Selection
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
