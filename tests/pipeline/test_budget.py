"""How long generations are, and when a run has spent its environment steps."""

import pytest

from evorl.config import BudgetConfig
from evorl.evolution import Halving
from evorl.pipeline.budget import Budget
from evorl.pipeline.snapshot import Snapshot
from evorl.pipeline.training_context import TrainingContext
from evorl.reporting.console import Console


class Bar(Console):
    def __init__(self):
        super().__init__(quiet=True)
        self.shown = 0

    def advance(self, steps):
        self.shown += steps


def planned(**numbers):
    """A context whose snapshot of two agents has these numbers."""
    context = TrainingContext(2)
    context.snapshot = Snapshot([None, None], [], [True, True])
    for name, value in numbers.items():
        setattr(context.snapshot, name, value)
    return context


def lengths(config, every, per_iteration, evaluation=0, counted=1.0):
    """Iterations of each generation of a run; `counted` is the share of steps that are valid."""
    bar, context = Bar(), planned()
    run, iteration = context.snapshot, 0
    budget = Budget(config, bar, every=every, per_iteration=per_iteration)
    budget.begin(context)
    found = []
    while not run.finished:
        begun = iteration
        while iteration < run.ends:
            iteration += 1
            budget.tick(context)
        run.env_steps += round((run.ends - begun) * per_iteration * counted)
        run.evaluation_steps += evaluation
        found.append(run.ends - begun)
        budget(context)
    spent = run.env_steps + (run.evaluation_steps if config.counts == "all" else 0)
    assert bar.shown == spent
    return found


@pytest.mark.parametrize("evaluation", [0, 1000])
def test_training_steps_only(evaluation):
    assert lengths(BudgetConfig(env_steps=30), 2, 5, evaluation) == [2, 2, 2]
    assert lengths(BudgetConfig(env_steps=31), 2, 5, evaluation) == [2, 2, 2, 1]
    assert lengths(BudgetConfig(env_steps=1), 2, 5, evaluation) == [1]


def test_evaluations_count_and_the_next_is_left_room_for():
    # 10 + 20, 10 + 20, and of the 40 left 20 are for the evaluation
    assert lengths(BudgetConfig(env_steps=100, counts="all"), 1, 10, 20) == [1, 1, 1]
    assert lengths(BudgetConfig(env_steps=100, counts="all"), 20, 1, 20) == [20, 20]


def test_no_generation_begins_that_could_not_be_scored():
    assert lengths(BudgetConfig(env_steps=100, counts="all"), 1, 10, 35) == [1, 1]


def test_steps_that_do_not_count_are_made_up_for_but_by_one_short_generation_only():
    assert lengths(BudgetConfig(env_steps=1000), 10, 10, counted=0.9) == [10] * 11 + [1]


def test_a_run_that_goes_on_is_planned_like_one_that_was_never_stopped():
    context = planned(begins=40, env_steps=400, evaluation_steps=60, latest_evaluation=20)
    budget = Budget(BudgetConfig(env_steps=600, counts="all"), Bar(), every=20, per_iteration=10)
    budget.begin(context)
    run = context.snapshot
    assert (run.ends, run.last, run.finished) == (52, True, False)


def test_what_ended_the_run_already_stays():
    context = planned(finished=True)
    Budget(BudgetConfig(env_steps=100), Bar(), every=1, per_iteration=1)(context)
    assert context.snapshot.finished


def test_who_is_left_gets_the_steps():
    """Generations have as many steps of fewer agents: 8 until 30 %, then 4, then 2."""
    context, iteration, sizes = planned(agents=8, places=8), 0, []
    run = context.snapshot
    halving = Halving((8, 4, 2), within=0.3)
    budget = Budget(BudgetConfig(env_steps=1000), Bar(), every=10, per_iteration=8, halving=halving)
    budget.begin(context)
    while not run.finished:
        run.agents = run.places  # as evolution narrows it
        sizes.append(run.agents)
        run.env_steps += (run.ends - iteration) * run.agents
        iteration = run.ends
        budget(context)
    assert sizes == [8, 8, 4, 4] + [2] * 9
    assert run.env_steps == 1000


def test_nobody_comes_back_when_there_is_more_to_spend():
    context = planned(agents=2, places=2, env_steps=300)
    halving = Halving((8, 4, 2), within=0.3)
    budget = Budget(BudgetConfig(env_steps=9000), Bar(), every=10, per_iteration=8, halving=halving)
    budget.begin(context)
    assert context.snapshot.places == 2


def test_no_generation_begins_that_would_be_over_too_late(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("evorl.pipeline.budget.time.monotonic", lambda: now[0])
    context = planned()
    budget = Budget(BudgetConfig(env_steps=10**6, seconds=60), Bar(), every=10, per_iteration=2)
    budget.begin(context)
    finished = []
    for seconds in (20, 15, 10, 12):
        now[0] += seconds
        budget(context)
        finished.append(context.snapshot.finished)
    assert finished == [False, False, False, True]  # 57 seconds, and the latest took 12


def test_halving_follows_what_is_spent_first(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("evorl.pipeline.budget.time.monotonic", lambda: now[0])
    context, config = planned(agents=8, places=8), BudgetConfig(env_steps=10**6, seconds=100)
    halving = Halving((8, 4, 2), within=0.3)
    budget = Budget(config, Bar(), every=10, per_iteration=8, halving=halving)
    budget.begin(context)
    now[0] = 20
    budget(context)
    assert context.snapshot.places == 4


def test_a_score_that_stays_ends_the_run_and_is_remembered():
    config = BudgetConfig(env_steps=10**6, patience=2)
    context, budget = planned(), Budget(config, Bar(), every=10, per_iteration=2)
    budget.begin(context)
    finished = []
    for generation, best in enumerate((1.0, 3.0, 2.0, 3.0), start=1):
        context.snapshot.generation, context.snapshot.best = generation, best
        state, _ = budget.state()
        budget = Budget(config, Bar(), every=10, per_iteration=2)
        budget.restore(state, {})
        budget(context)
        finished.append(context.snapshot.finished)
    assert finished == [False, False, False, True]
