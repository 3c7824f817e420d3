"""The order in which stages run, and what happens when one of them fails."""

from dataclasses import dataclass, field

import pytest
import torch

from evorl.pipeline.save import restore_states, states_of
from evorl.pipeline.task import Task


@dataclass
class Log:
    """A context that ends after so many iterations and notes what happened."""

    iterations: int = 1
    iteration: int = 0
    lines: list = field(default_factory=list)

    @property
    def finished(self):
        return self.iteration >= self.iterations


def plain(name):
    return lambda log: log.lines.append(name)


def two_part(name):
    def stage(log):
        log.lines.append(name)
        try:
            yield
            log.lines.append(f"{name} after")
        finally:
            log.lines.append(f"{name} closed")

    return stage


def failing(log):
    raise ValueError("broken")


def test_stages_run_in_order_and_their_rests_in_reverse():
    task = Task(Log(2))
    task.use(two_part("a")).use(plain("b")).use(two_part("c"))
    log = task.run()
    once = ["a", "b", "c", "c after", "c closed", "a after", "a closed"]
    assert log.lines == once * 2
    assert log.iteration == 2


def test_every_number_means_in_its_multiples():
    log = Task(Log(7)).use(lambda log: log.lines.append(log.iteration + 1), every=3).run()
    assert log.lines == [3, 6]


def test_every_callable_is_asked_before_the_first_stage():
    task = Task(Log(4))
    task.use(plain("x"))
    task.use(plain("even"), every=lambda log: len(log.lines) % 2 == 0)
    assert task.run().lines == ["x", "even", "x", "even", "x", "even", "x", "even"]


def test_a_finished_context_runs_nothing():
    assert Task(Log(0)).use(plain("a")).run().lines == []


def test_the_iteration_is_completed_in_which_the_end_comes():
    def end(log):
        log.iterations = 0

    log = Task(Log(9)).use(two_part("a")).use(end).use(plain("b")).run()
    assert log.lines == ["a", "b", "a after", "a closed"]


def test_an_error_closes_what_is_open_and_runs_no_rest():
    log = Log()
    task = Task(log).use(two_part("a")).use(two_part("b")).use(failing).use(plain("never"))
    with pytest.raises(ValueError, match="broken"):
        task.run()
    assert log.lines == ["a", "b", "b closed", "a closed"]
    assert log.iteration == 0  # it was not completed


def test_an_error_in_a_rest_still_closes_the_others():
    def late(log):
        yield
        raise ValueError("late")

    log = Log()
    with pytest.raises(ValueError, match="late"):
        Task(log).use(two_part("a")).use(late).use(two_part("b")).run()
    assert log.lines == ["a", "b", "b after", "b closed", "a closed"]


def test_a_second_yield_is_refused():
    def twice(log):
        yield
        yield

    log = Log()
    with pytest.raises(RuntimeError, match="yields once"):
        Task(log).use(two_part("a")).use(twice).run()
    assert log.lines == ["a", "a closed"]


def test_a_generator_that_never_yields_is_an_ordinary_stage():
    def none(log):
        log.lines.append("none")
        if log.iteration < 0:
            yield

    assert Task(Log()).use(none).use(plain("b")).run().lines == ["none", "b"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"main", "standalone", "node.0"}, ["all", "main", "first", "either"]),
        ({"distributed", "node.1"}, ["all", "either"]),
        ({"distributed", "node.2"}, ["all"]),
    ],
)
def test_a_stage_runs_where_one_of_its_labels_is(labels, expected):
    task = Task(Log(), labels)
    task.use(plain("all")).use(plain("main"), filter_labels=["main"])
    task.use(plain("first"), filter_labels=["node.0"])
    task.use(plain("either"), filter_labels=["standalone", "node.1"])
    task.use(plain("nowhere"), filter_labels=[])
    assert task.run().lines == expected


class Counting:
    """A stage with state of its own."""

    name = "counting"

    def __init__(self):
        self.count = 0

    def __call__(self, log):
        self.count += 1

    def state(self):
        return {"count": self.count}, {"squares": torch.arange(self.count) ** 2}

    def restore(self, values, tensors):
        assert torch.equal(tensors["squares"], torch.arange(values["count"]) ** 2)
        self.count = values["count"]


def test_stages_with_state_are_known_where_they_run():
    task, here, elsewhere = Task(Log(3), {"main"}), Counting(), Counting()
    task.use(here, filter_labels=["main"]).use(elsewhere, filter_labels=["node.1"])
    task.use(plain("stateless"))
    assert task.stateful == [here]
    task.run()
    values, tensors = states_of(task.stateful)
    assert values == {"counting": {"count": 3}}
    assert set(tensors) == {"counting.squares"}
    other = Counting()
    restore_states([other], values, tensors)
    assert other.count == 3
