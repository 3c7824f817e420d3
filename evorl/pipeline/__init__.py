"""The stages of a training run, the context they share, and the snapshot between generations."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.pipeline.budget import Budget as Budget
    from evorl.pipeline.budget import RefuseAllDead as RefuseAllDead
    from evorl.pipeline.budget import generation_ends as generation_ends
    from evorl.pipeline.callbacks import Callback as Callback
    from evorl.pipeline.callbacks import Callbacks as Callbacks
    from evorl.pipeline.callbacks import Event as Event
    from evorl.pipeline.champion import Confirm as Confirm
    from evorl.pipeline.collect import Collect as Collect
    from evorl.pipeline.context import Context as Context
    from evorl.pipeline.context import count_failures as count_failures
    from evorl.pipeline.evaluate import Evaluate as Evaluate
    from evorl.pipeline.evaluate import Played as Played
    from evorl.pipeline.evaluate import play as play
    from evorl.pipeline.evolve import Evolve as Evolve
    from evorl.pipeline.evolve import FollowSchedule as FollowSchedule
    from evorl.pipeline.exchange import Exchange as Exchange
    from evorl.pipeline.exchange import Inherit as Inherit
    from evorl.pipeline.gather import Broadcast as Broadcast
    from evorl.pipeline.gather import Gather as Gather
    from evorl.pipeline.learn import AnnealBeta as AnnealBeta
    from evorl.pipeline.learn import Learn as Learn
    from evorl.pipeline.record import Record as Record
    from evorl.pipeline.record import Show as Show
    from evorl.pipeline.save import Save as Save
    from evorl.pipeline.save import Storage as Storage
    from evorl.pipeline.save import restore_states as restore_states
    from evorl.pipeline.snapshot import POPULATION as POPULATION
    from evorl.pipeline.snapshot import STAGES as STAGES
    from evorl.pipeline.snapshot import Snapshot as Snapshot
    from evorl.pipeline.task import Task as Task
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
