"""Learning beside actors at their own pace: samples per insert, held within a band.

Legend: P agents.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from evorl.experience import SamplesPerInsert
from evorl.pipeline.budget import generation_ends
from evorl.pipeline.learn import Learn
from evorl.pipeline.training_context import TrainingContext


class LearnInBand(Learn):
    """Learns while nothing has come, too, until it is as far ahead as it may be.

    As long as it is farther behind than that, no message is taken, and so actors wait. What a
    generation calls for is learned when it ends. An insert is an own step of an agent.
    """

    def __init__(
        self, *parts: Any, band: SamplesPerInsert, ready: Callable[[], bool], **options: Any
    ) -> None:
        """`ready` says whether a message waits to be taken."""
        super().__init__(*parts, **options)
        self.band, self._message_waits = band, ready
        self._ids = np.full(self.population.size, -1)  # of the agents, when it last learned
        self.band.owed = np.zeros(self.population.size)  # [P], and so is all the rest of it
        self._called = self._drawn = 0.0  # samples, in this generation

    def __call__(self, context: TrainingContext) -> None:
        """What has come calls for samples; learn for as long as nothing else is to be done."""
        self._take_in(context)
        ends = generation_ends(context)
        while (updates := self._due(ends)).any():
            self._learn(context, updates)
            drawn = updates * self._samples_of_an_update()
            self.band.sampled(drawn)
            self._drawn += drawn.sum()

    def report(self) -> float:
        """Samples per insert since the last report, of all agents together."""
        found = self.band.ratio * self._drawn / max(self._called, 1.0)
        self._called = self._drawn = 0.0
        return round(found, 3)

    def _take_in(self, context: TrainingContext) -> None:
        """Who has taken another agent's place owes nothing."""
        band, ids = self.band, np.array([own.id for own in self.population.genomes])
        band.owed = np.where(ids == self._ids, band.owed, 0.0)
        self._ids = ids
        band.inserts = context.agent_steps - context.new_steps
        before = band.owed
        band.inserted(context.new_steps)
        self._called += (band.owed - before).sum()

    def _due(self, ends: bool) -> npt.NDArray[np.int64]:
        """[P] updates to be made now; none, if it is time for a message."""
        band, samples, may = self.band, self._samples_of_an_update(), self._ready()
        band.owed = np.where(may, band.owed, 0.0)  # who cannot learn has nothing to catch up on
        if ends:
            due = np.maximum(band.owed // samples, 0)
        elif (behind := may & ~band.may_insert).any():
            due = np.where(behind, np.ceil((band.owed - band.slack) / samples), 0)
        else:
            due = band.may_sample & (not self._all_have_messages())
        return np.where(may, due, 0).astype(np.int64)

    def _all_have_messages(self) -> bool:
        """Whether one waits at every learner of these agents: all of them do the same."""
        none = np.array([int(not self._message_waits())])
        return not self.world.sum_over_replicas(none).any()
