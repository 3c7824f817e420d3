"""The stages of a training run, the context they share, and the snapshot between generations."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.pipeline.actor import Actor
    from evorl.pipeline.budget import Budget, generation_ends, refuse_all_dead
    from evorl.pipeline.callbacks import Callback, Callbacks, Event
    from evorl.pipeline.champion import Champion
    from evorl.pipeline.collect import Collect, CollectRollout, CollectUnrolls
    from evorl.pipeline.context import Context
    from evorl.pipeline.evaluate import Evaluate, EvaluateApart, Played, TakeReturns, play
    from evorl.pipeline.evolve import Evolve, FollowSchedule
    from evorl.pipeline.gather import Broadcast, Gather
    from evorl.pipeline.inherit import Inherit
    from evorl.pipeline.learn import AnnealBeta, Learn, LearnRollout, LearnUnrolls
    from evorl.pipeline.learn_in_band import LearnInBand
    from evorl.pipeline.receive import (
        ApplyGradients,
        LearnReceived,
        Receive,
        ReceiveShares,
        ReceiveWindows,
    )
    from evorl.pipeline.record import Record, Show
    from evorl.pipeline.report_training import ReportTraining
    from evorl.pipeline.save import Save, Storage, restore_states
    from evorl.pipeline.saved_state import check_snapshot, check_state
    from evorl.pipeline.snapshot import POPULATION, STAGE_STATES, Snapshot, from_message, to_message
    from evorl.pipeline.step_timer import StepTimer
    from evorl.pipeline.task import Task
    from evorl.pipeline.training_context import TrainingContext, count_failures
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
