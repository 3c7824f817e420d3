"""Generations: how long each is, what ends with it, and when the environment steps are spent."""

import time
import warnings
from typing import Any

import numpy as np
from torch import Tensor

from evorl.config import BudgetConfig
from evorl.errors import DeadError
from evorl.evolution import Halving
from evorl.pipeline.snapshot import Progress, Snapshot
from evorl.pipeline.training_context import TrainingContext
from evorl.reporting import Console


def generation_ends(context: TrainingContext) -> bool:
    """True in the last iteration of a generation."""
    return context.iteration + 1 >= context.ends


class Budget:
    """Plans generations, and moves the bar.

    A generation's length is settled before it begins, from what all ranks have spent so far: so
    every rank ends it in the same iteration. If evaluations count, it leaves room for its own.
    None begins that would probably be over too late, if seconds count.
    """

    name = "budget"

    def __init__(
        self,
        config: BudgetConfig,
        console: Console,
        *,
        every: int,
        per_iteration: int,
        halving: Halving | None = None,
    ) -> None:
        """`per_iteration` are the environment steps of all ranks, while all agents are there."""
        self.config, self.console, self.halving = config, console, halving
        self.every, self.per_iteration = every, per_iteration
        self._full, self._latest = every, per_iteration  # of the generation that is planned
        self._shown = 0  # on the bar
        self._evaluated = 0  # steps of all evaluations so far
        self._peak, self._peaked = -np.inf, 0  # highest score so far, and after which generation
        self._began = self._planned = time.monotonic()  # training, and the latest generation

    def begin(self, context: TrainingContext) -> None:
        """Before the first generation of a run, or of what is left of one."""
        snapshot, self._shown = context.snapshot, 0
        self._show(self._spent(snapshot))
        self._evaluated = snapshot.evaluation_steps
        self._began = self._planned = time.monotonic()
        self._plan(snapshot, snapshot.begins)

    def __call__(self, context: TrainingContext) -> None:
        """At a generation's end, on the steps of all ranks: finished, or how long is the next?"""
        snapshot = context.snapshot
        self._show(self._spent(snapshot))
        snapshot.latest_evaluation = snapshot.evaluation_steps - self._evaluated
        self._evaluated = snapshot.evaluation_steps
        late, waited = self._late(), self._waited(snapshot)
        if late and not snapshot.finished:
            self.console.say(f"its {self.config.seconds:g} seconds are spent: it ends")
        elif waited and not snapshot.finished:
            self.console.say(f"no higher score in {self.config.patience} generations: it ends")
        snapshot.finished |= snapshot.last or late or waited
        self._plan(snapshot, snapshot.ends)

    def tick(self, context: TrainingContext) -> None:
        """After every iteration."""
        self._show(self._shown + self._latest)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `restore` needs."""
        return {"peak": None if self._peaked == 0 else self._peak, "peaked": self._peaked}, {}

    def restore(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Resume from an earlier `state`."""
        self._peaked = values["peaked"]
        self._peak = -np.inf if values["peak"] is None else values["peak"]

    def _late(self) -> bool:
        """Whether another generation as long as this one would be over too late."""
        now = time.monotonic()
        took, self._planned = now - self._planned, now
        return self.config.seconds is not None and now + took > self._began + self.config.seconds

    def _waited(self, snapshot: Snapshot) -> bool:
        """Whether the score has not risen for as many generations as there is patience."""
        if snapshot.best > self._peak:
            self._peak, self._peaked = snapshot.best, snapshot.generation
        patience = self.config.patience
        return patience is not None and snapshot.generation - self._peaked >= patience

    def _share(self, snapshot: Snapshot) -> float:
        """How much of the budget is spent."""
        share = self._spent(snapshot) / self.config.env_steps
        if self.config.seconds is None:
            return share
        return max(share, (time.monotonic() - self._began) / self.config.seconds)

    def _plan(self, snapshot: Snapshot, start: int) -> None:
        if self.halving is not None:
            sizes, share = self.halving.sizes, self._share(snapshot)
            snapshot.places = min(snapshot.agents, self.halving.agents(share))
            self._latest = self.per_iteration * snapshot.places // sizes[0]
            self._full = self.every * sizes[0] // snapshot.places  # as many steps of all
        ahead = snapshot.latest_evaluation if self.config.counts == "all" else 0
        left = self.config.env_steps - self._spent(snapshot) - ahead
        snapshot.finished |= left <= 0
        length = min(self._full, -(-left // self._latest))
        snapshot.begins, snapshot.ends = start, start + length
        # Where some steps don't count (those in which an environment only resets) the last, short
        # generation may leave a few unspent: no further one is worth its evaluation.
        snapshot.last = length < self._full

    def _spent(self, progress: Progress) -> int:
        return self.config.spent(progress.env_steps, progress.evaluation_steps)

    def _show(self, now: int) -> None:
        self.console.advance(now - self._shown)
        self._shown = now


def refuse_all_dead(context: TrainingContext) -> None:
    """Ends a run that nobody survives; if they died at its very end, it only warns."""
    snapshot = context.snapshot
    if (snapshot.fitness != -np.inf).any():  # NaN: nothing is known of it yet
        return
    dead = f"all agents are dead in generation {snapshot.ended}"
    if snapshot.finished:
        warnings.warn(
            f"{dead}, the last: what the run returns is the best agent from before; to train"
            " further, start a new run with a smaller algorithm.lr",
            stacklevel=2,
        )
        return
    raise DeadError(
        f"{dead}, their loss, weights or returns are not finite; start a new run with a smaller"
        " algorithm.lr (what each died of was warned of; if there was a good agent before, best/ in"
        " the run's folder has it)"
    )
