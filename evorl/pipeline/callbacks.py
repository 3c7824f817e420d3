"""Callbacks: a user's own code at five moments of a run, on its main rank.

class Stop(evorl.Callback):
    def on_evaluated(self, event):
        if event.best_score > 195:
            event.stop()

evorl.train("cartpole.yaml", callbacks=[Stop()])
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evorl.errors import RunError
from evorl.genome import Genome
from evorl.pipeline.snapshot import Snapshot
from evorl.pipeline.training_context import TrainingContext


@dataclass(frozen=True)
class Event:
    """What a callback sees of the run; nothing in it can be changed."""

    generation: int  # that begins, or that has been trained
    env_steps: int  # training steps of all agents so far
    genomes: tuple[Genome, ...]  # after evolution those of the next generation
    fitness: npt.NDArray[np.float64]  # [agents] of the latest evaluation; -inf: dead, NaN: none yet
    returns: npt.NDArray[np.float64]  # [agents, episodes] of the latest evaluation; NaN likewise
    best_score: float  # of the best agent ever seen, on episodes of its own; -inf: none yet
    directory: Path
    stop: Callable[[], None]  # the run ends after this generation, as if its budget were spent


class Callback:
    """Override what you need; each method does nothing."""

    def on_generation_begin(self, event: Event) -> None:
        """The agents of this generation are about to train."""

    def on_evaluated(self, event: Event) -> None:
        """The agents have played their episodes, and nobody is replaced yet."""

    def on_evolved(self, event: Event) -> None:
        """Selection has run, and `genomes` are the next generation's; not after the last one.

        Nobody may have been replaced. A child's fitness and returns are NaN until it has played.
        """

    def on_checkpoint(self, event: Event) -> None:
        """The next generation is written down: the run can be resumed from there."""

    def on_run_end(self, event: Event) -> None:
        """The run is finished, and has its held-out score in summary.json."""


class Callbacks:
    """Calls all callbacks of a run; an exception in one of them ends it."""

    def __init__(self, callbacks: Sequence[Callback], directory: Path) -> None:
        self.callbacks, self.directory = tuple(callbacks), directory
        self._stop = False

    def stage(self, hook: str) -> Callable[[TrainingContext], None]:
        """A stage that calls this method of each of them."""
        return partial(self._call, hook)

    def _call(self, hook: str, context: TrainingContext) -> None:
        snapshot, begins = context.snapshot, hook == "on_generation_begin"
        happened = {
            "on_generation_begin": not context.finished,
            "on_evolved": snapshot.evolved,
            "on_checkpoint": snapshot.saved,
        }
        if not happened.get(hook, True):
            return
        for callback in self.callbacks:
            try:
                generation = context.generation if begins else snapshot.ended
                getattr(callback, hook)(self._event(snapshot, generation))
            except Exception as error:
                name, why = type(callback).__name__, f"{type(error).__name__}: {error}"
                what = f"{self.directory}: callback {name}.{hook} failed: {why}"
                raise RunError(f"{what}; fix it, and resume the run") from error
        if not begins:  # else its own end is to come
            snapshot.finished |= self._stop

    def _event(self, snapshot: Snapshot, generation: int) -> Event:
        fitness, returns = snapshot.fitness.copy(), snapshot.returns.copy()
        fitness.flags.writeable = returns.flags.writeable = False
        view = (tuple(snapshot.genomes), fitness, returns, snapshot.best)
        return Event(generation, snapshot.env_steps, *view, self.directory, self._ask_to_stop)

    def _ask_to_stop(self) -> None:
        self._stop = True
