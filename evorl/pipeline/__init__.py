"""The stages of a training run, the context they share, and the snapshot between generations."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.pipeline.budget import (
        Budget as Budget,
        RefuseAllDead as RefuseAllDead,
        generation_ends as generation_ends,
    )
    from evorl.pipeline.callbacks import (
        Callback as Callback,
        Callbacks as Callbacks,
        Event as Event,
    )
    from evorl.pipeline.champion import Confirm as Confirm
    from evorl.pipeline.collect import Collect as Collect
    from evorl.pipeline.context import Context as Context, count_failures as count_failures
    from evorl.pipeline.evaluate import Evaluate as Evaluate, Played as Played, play as play
    from evorl.pipeline.evolve import Evolve as Evolve, FollowSchedule as FollowSchedule
    from evorl.pipeline.exchange import Exchange as Exchange, Inherit as Inherit
    from evorl.pipeline.gather import Broadcast as Broadcast, Gather as Gather
    from evorl.pipeline.learn import AnnealBeta as AnnealBeta, Learn as Learn
    from evorl.pipeline.record import Record as Record, Show as Show
    from evorl.pipeline.save import (
        Save as Save,
        Storage as Storage,
        restore_states as restore_states,
    )
    from evorl.pipeline.snapshot import (
        POPULATION as POPULATION,
        STAGES as STAGES,
        Snapshot as Snapshot,
    )
    from evorl.pipeline.task import Task as Task
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
