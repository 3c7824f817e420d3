"""Generations: how long each is, what ends with it, and when the environment steps are spent."""

import warnings

import numpy as np

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
    """

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
        self._latest = per_iteration  # of the generation that is planned
        self._shown = 0  # on the bar
        self._evaluated = 0  # steps of all evaluations so far

    def begin(self, context: TrainingContext) -> None:
        """Before the first generation of a run, or of what is left of one."""
        snapshot, self._shown = context.snapshot, 0
        self._show(self._spent(snapshot))
        self._evaluated = snapshot.evaluation_steps
        self._plan(snapshot, snapshot.begins)

    def __call__(self, context: TrainingContext) -> None:
        """At a generation's end, on the steps of all ranks: finished, or how long is the next?"""
        snapshot = context.snapshot
        self._show(self._spent(snapshot))
        snapshot.latest_evaluation = snapshot.evaluation_steps - self._evaluated
        self._evaluated = snapshot.evaluation_steps
        snapshot.finished |= snapshot.last
        self._plan(snapshot, snapshot.ends)

    def tick(self, context: TrainingContext) -> None:
        """After every iteration."""
        self._show(self._shown + self._latest)

    def _plan(self, snapshot: Snapshot, start: int) -> None:
        if self.halving is not None:
            sizes, spent = self.halving.sizes, self._spent(snapshot) / self.config.env_steps
            snapshot.places = min(snapshot.agents, self.halving.agents(spent))
            self._latest = self.per_iteration * snapshot.places // sizes[0]
        ahead = snapshot.latest_evaluation if self.config.counts == "all" else 0
        left = self.config.env_steps - self._spent(snapshot) - ahead
        snapshot.finished |= left <= 0
        length = min(self.every, -(-left // self._latest))
        snapshot.begins, snapshot.ends = start, start + length
        # Where some steps don't count (those in which an environment only resets) the last, short
        # generation may leave a few unspent: no further one is worth its evaluation.
        snapshot.last = length < self.every

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
