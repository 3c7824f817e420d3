"""At a generation's end: the training curves of all ranks, on the main one."""

from typing import Any

from evorl.distributed import World
from evorl.pipeline.learn import Learn
from evorl.pipeline.training_context import TrainingContext
from evorl.pipeline.training_log import join_logs


class ReportTraining:
    """Measures what is worth a curve, where learning has not, and gathers it all."""

    def __init__(self, world: World, learn: Any) -> None:
        self.world, self.learn = world, learn

    def __call__(self, context: TrainingContext) -> None:
        """Before the snapshot is made; on ranks that train."""
        if isinstance(self.learn, Learn):
            self.learn.measure(context)
        sent = self.world.trainers.gather(context.log.to_bytes())
        context.training = None if sent is None else join_logs(sent, self.world.data)
