"""Budget: ends the run when its environment steps are spent."""

from evorl.config import BudgetConfig
from evorl.console import Console
from evorl.pipeline.context import Context


def spent(config: BudgetConfig, context: Context) -> int:
    """Environment steps that count against the budget."""
    return context.env_steps + (context.evaluation_steps if config.counts == "all" else 0)


class Budget:
    """Counts what is spent, and moves the bar.

    If evaluations count, too, the run ends as soon as the next one, at the cost of the last, would
    use up the rest.
    """

    def __init__(self, config: BudgetConfig, console: Console) -> None:
        self.config, self.console = config, console
        self._shown = 0  # on the bar
        self._evaluated = self._latest = 0  # steps of all evaluations, and of the latest

    def __call__(self, context: Context) -> None:
        """After the iteration's training steps, and after an evaluation."""
        now = spent(self.config, context)
        self.console.advance(now - self._shown)
        self._shown = now
        if context.evaluation_steps > self._evaluated:
            self._latest = context.evaluation_steps - self._evaluated
            self._evaluated = context.evaluation_steps
        ahead = self._latest if self.config.counts == "all" else 0
        context.finished |= now + ahead >= self.config.env_steps
