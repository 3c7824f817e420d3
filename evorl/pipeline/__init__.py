"""The stages of a training run, the context they share, and the snapshot between generations."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.pipeline.budget import Budget, generation_ends, refuse_all_dead
    from evorl.pipeline.callbacks import Callback, Callbacks, Event
    from evorl.pipeline.collect import Collect, CollectRollout
    from evorl.pipeline.context import Context, count_failures
    from evorl.pipeline.evaluate import Confirm, Evaluate, Played, play
    from evorl.pipeline.evolve import Evolve, FollowSchedule
    from evorl.pipeline.gather import Broadcast, Gather, Inherit
    from evorl.pipeline.learn import AnnealBeta, Learn, LearnRollout
    from evorl.pipeline.record import Record, Show
    from evorl.pipeline.save import Save, Storage, restore_states
    from evorl.pipeline.snapshot import POPULATION, STAGES, Snapshot
    from evorl.pipeline.task import Task
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
