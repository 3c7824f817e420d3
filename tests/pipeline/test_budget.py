"""When a run has spent its environment steps."""

import pytest

from evorl.config import BudgetConfig
from evorl.console import Console
from evorl.pipeline.budget import Budget
from evorl.pipeline.context import Context


class Bar(Console):
    def __init__(self):
        super().__init__(quiet=True)
        self.shown = 0

    def advance(self, steps):
        self.shown += steps


def spend(budget, context, training, evaluation=0):
    """An iteration, and what the evaluation at its end takes."""
    context.env_steps += training
    budget(context)
    if evaluation:
        context.evaluation_steps += evaluation
        budget(context)


@pytest.mark.parametrize("evaluation", [0, 1000])
def test_training_steps_only(evaluation):
    bar, context = Bar(), Context(2)
    budget = Budget(BudgetConfig(env_steps=30), bar)
    spend(budget, context, 10, evaluation)
    spend(budget, context, 19, evaluation)
    assert not context.finished
    spend(budget, context, 1)
    assert context.finished
    assert bar.shown == 30


def test_evaluations_count_and_the_last_is_left_room_for():
    bar, context = Bar(), Context(2)
    budget = Budget(BudgetConfig(env_steps=100, counts="all"), bar)
    spend(budget, context, 10, evaluation=20)
    spend(budget, context, 10, evaluation=25)  # 65 spent
    spend(budget, context, 9)
    assert not context.finished  # 74, and an evaluation as long as the last makes 99
    assert bar.shown == 74
    spend(budget, context, 1)
    assert context.finished


def test_no_generation_begins_that_could_not_be_scored():
    context = Context(2)
    budget = Budget(BudgetConfig(env_steps=100, counts="all"), Bar())
    spend(budget, context, 10, evaluation=30)
    assert not context.finished
    spend(budget, context, 5, evaluation=35)  # 80 spent, and the next would take 35
    assert context.finished


def test_what_ended_the_run_already_stays():
    context = Context(2)
    context.finished = True
    Budget(BudgetConfig(env_steps=100), Bar())(context)
    assert context.finished
