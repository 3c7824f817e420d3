"""Who stays, who has children, how children differ, and who descends from whom."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.evolution.describe import NOISE as NOISE
    from evorl.evolution.describe import describe_architectures as describe_architectures
    from evorl.evolution.describe import describe_number as describe_number
    from evorl.evolution.explore import make_explore as make_explore
    from evorl.evolution.fitness import Fitness as Fitness
    from evorl.evolution.fitness import MEAN as MEAN
    from evorl.evolution.lineage import Ancestor as Ancestor
    from evorl.evolution.lineage import Birth as Birth
    from evorl.evolution.lineage import Effect as Effect
    from evorl.evolution.lineage import FitnessLine as FitnessLine
    from evorl.evolution.lineage import Lineage as Lineage
    from evorl.evolution.lineage import birth as birth
    from evorl.evolution.lineage import first_problem as first_problem
    from evorl.evolution.lineage import fitness_line as fitness_line
    from evorl.evolution.lineage import left as left
    from evorl.evolution.lineage import parse_line as parse_line
    from evorl.evolution.lineage import read_lineage as read_lineage
    from evorl.evolution.mutation import CheckedMutation as CheckedMutation
    from evorl.evolution.mutation import Mutation as Mutation
    from evorl.evolution.schedule import Schedule as Schedule
    from evorl.evolution.schedule import config_for_schedule as config_for_schedule
    from evorl.evolution.schedule import flow_text as flow_text
    from evorl.evolution.schedule import parse_schedule as parse_schedule
    from evorl.evolution.schedule import read_schedule as read_schedule
    from evorl.evolution.schedule import refuse_fixed as refuse_fixed
    from evorl.evolution.schedule import schedule_of as schedule_of
    from evorl.evolution.selection import Selection as Selection
    from evorl.evolution.spaces import Space as Space
    from evorl.evolution.spaces import Spaces as Spaces
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
