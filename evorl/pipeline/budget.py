"""Budget: how long each generation is, and when the environment steps are spent.

A generation's length is settled before it begins, from what all ranks have spent so far: so every
rank ends it in the same iteration, without asking the others.
"""

from evorl.config import BudgetConfig
from evorl.pipeline.context import Context
from evorl.reporting.console import Console


def spent(config: BudgetConfig, context: Context) -> int:
    """Environment steps that count against the budget."""
    return config.spent(context.env_steps, context.evaluation_steps)


class Budget:
    """Plans generations, and moves the bar.

    If evaluations count, too, a generation leaves room for its own, at the cost of the last one;
    and none begins that could not be scored.
    """

    def __init__(
        self, config: BudgetConfig, console: Console, *, every: int, per_iteration: int
    ) -> None:
        self.config, self.console = config, console
        self.every, self.per_iteration = every, per_iteration  # environment steps of all ranks
        self._shown = 0  # on the bar
        self._evaluated = 0  # steps of all evaluations so far

    def begin(self, context: Context) -> None:
        """Before the first generation of a run, or of what is left of one."""
        self._shown = 0
        self._show(spent(self.config, context))
        self._evaluated = context.evaluation_steps
        self._plan(context, context.iteration)

    def __call__(self, context: Context) -> None:
        """At a generation's end, on the steps of all ranks: finished, or how long is the next?"""
        self._show(spent(self.config, context))
        context.latest_evaluation = context.evaluation_steps - self._evaluated
        self._evaluated = context.evaluation_steps
        context.finished |= context.last
        self._plan(context, context.ends)

    def tick(self, context: Context) -> None:
        """After every iteration."""
        self._show(self._shown + self.per_iteration)

    def _plan(self, context: Context, start: int) -> None:
        ahead = context.latest_evaluation if self.config.counts == "all" else 0
        left = self.config.env_steps - spent(self.config, context) - ahead
        context.finished |= left <= 0
        length = min(self.every, -(-left // self.per_iteration))
        context.begins, context.ends = start, start + length
        # Where some steps don't count (those in which an environment only resets) the last, short
        # generation may leave a few unspent: no further one is worth its evaluation.
        context.last = length < self.every

    def _show(self, now: int) -> None:
        self.console.advance(now - self._shown)
        self._shown = now
