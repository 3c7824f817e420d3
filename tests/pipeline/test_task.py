"""The order in which stages run, and what happens when one of them fails."""

import asyncio
import importlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch

from evorl.errors import ConfigError, RunError
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


@pytest.mark.parametrize(
    ("patterns", "runs"),
    [
        (["node.*"], True),
        (["node.1?"], True),
        (["node.2*"], False),
        (["gp*"], True),
        (["unknown"], False),
        (["*"], True),
    ],
)
def test_labels_may_be_patterns_and_unknown_ones_match_nothing(patterns, runs):
    task = Task(Log(), {"distributed", "node.13", "gpu"})
    assert task.use(plain("x"), filter_labels=patterns).run().lines == (["x"] if runs else [])


@pytest.mark.parametrize("label", ["", "two words", "a;b", "1=main", "main,gpu", 3, None, "näh"])
def test_malformed_filter_labels_are_refused(label):
    with pytest.raises(ConfigError, match=r"^filter_labels: expected labels such as .*, got "):
        Task(Log()).use(plain("x"), filter_labels=["main", label])


def test_a_bare_label_is_refused_with_what_to_write():
    with pytest.raises(ConfigError, match=r"got 'main'; write \['main'\]$"):
        Task(Log()).use(plain("x"), filter_labels="main")


class Doubles:
    """A stage that is an object."""

    def __call__(self, ctx):
        ctx.values = [2 * value for value in ctx.values]


def adds(number):
    """A stage that is a closure."""

    def _adds(ctx):
        ctx.values = [*ctx.values, number]

    return _adds


async def awaits(ctx):
    """A stage that is a coroutine function."""
    before = ctx.values
    await asyncio.sleep(0)
    ctx.values = [*before, "awaited"]


def test_stages_are_closures_objects_generators_and_coroutines():
    def halves(ctx):
        ctx.values = []
        yield
        ctx.values.append("end")

    task = Task().use(halves).use(adds(1)).use(Doubles()).use(partial(adds(0))).use(awaits)
    assert task.run(max_step=2).values == [2, 0, "awaited", "end"]


def test_coroutines_keep_their_event_loop_from_iteration_to_iteration():
    loops = []

    async def stage(ctx):
        loops.append(asyncio.get_running_loop())

    Task().use(stage).use(stage).run(max_step=3)
    assert len(loops) == 6
    assert len(set(loops)) == 1
    assert loops[0].is_closed()


def test_coroutines_run_where_the_caller_has_a_loop_of_its_own():
    async def awaits(ctx):
        await asyncio.sleep(0)
        ctx.loop = asyncio.get_running_loop()

    async def notebook():
        return Task().use(awaits).run(max_step=1).loop

    with ThreadPoolExecutor(1) as thread:  # this one may have a loop: playwright leaves its own
        assert thread.submit(asyncio.run, notebook()).result().is_closed()


def test_what_a_coroutine_raises_is_raised_with_its_stage():
    async def fails(ctx):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as raised:
        Task().use(fails).run(max_step=3)
    assert raised.value.__notes__ == ["in stage 'fails', iteration 0"]


def test_what_says_when_a_stage_is_due_is_named_with_it():
    def often(ctx):
        return 1 / 0

    def stage(ctx): ...

    with pytest.raises(ZeroDivisionError) as raised:
        Task().use(stage, every=often).run(max_step=1)
    assert raised.value.__notes__ == ["in stage 'stage', iteration 0"]


def test_a_run_that_has_made_its_steps_has_not_finished():
    task = Task().use(lambda ctx: None)
    assert not task.run(max_step=3).finish


@pytest.mark.parametrize("wrong", [2.5, "10", True, 0])
def test_numbers_must_be_whole(wrong):
    with pytest.raises(ConfigError, match="every: expected a whole number from 1 on"):
        Task().use(lambda ctx: None, every=wrong)
    if wrong != 0:
        with pytest.raises(ConfigError, match="max_step: expected a whole number from 0 on"):
            Task().run(max_step=wrong)


def test_errors_name_stage_and_iteration():
    def collect(ctx):
        if ctx.iteration == 7:
            raise ValueError("broken")

    with pytest.raises(ValueError, match=r"^broken") as raised:
        Task().use(awaits_nothing).use(collect).run()
    assert raised.value.__notes__ == ["in stage 'collect', iteration 7"]


def awaits_nothing(ctx):
    return 3  # what a stage returns does not matter


def test_max_step_counts_the_iterations_of_one_run():
    task = Task()
    task.use(lambda ctx: ctx.setdefault("x", 1))
    for steps, total in ((3, 3), (0, 3), (2, 5)):
        assert task.run(max_step=steps).iteration == total - 1
        assert task.iteration == total


@pytest.mark.parametrize("steps", [-1, True])
def test_a_wrong_max_step_is_refused(steps):
    with pytest.raises(ConfigError, match="max_step: expected a whole number from 0 on, got"):
        Task().run(max_step=steps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every: expected a whole number from 1 on or a function, got 0"),
        ({"busy": "skip"}, "busy: 'skip' is for background=True only"),
        ({"background": True, "busy": "never"}, "busy: expected wait or skip, got 'never'"),
    ],
)
def test_wrong_options_of_use_are_refused(options, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        Task().use(adds(1), **options)


def test_what_is_no_stage_is_refused():
    async def both(ctx):
        yield

    for wrong, message in [
        (Doubles, "got the class Doubles; use an object of it"),
        (3, "expected a function of the context, got 3"),
        (both, "both awaits and yields"),
    ]:
        with pytest.raises(ConfigError, match=message):
            Task().use(wrong)
    with pytest.raises(ConfigError, match="serial: expected stages, got none"):
        Task().serial()


@pytest.mark.parametrize("options", [{"async_mode": True}, {}])
def test_a_typed_context_cannot_be_watched_or_copied(options):
    with pytest.raises(ConfigError, match=r"needs an evorl.Context, .*; got Log$"):
        Task(Log(), **options).use(plain("x"), background=True)


def test_serial_is_one_stage_of_several():
    lines = []

    def say(name):
        return lambda ctx: lines.append(name)

    task = Task()
    inner = task.serial(say("b"), say("c"))
    task.use(say("a")).use(task.serial(inner, say("d")), every=2).use(say("e"))
    task.run(max_step=2)
    assert lines == ["a", "e", "a", "b", "c", "d", "e"]


def test_wrappers_are_around_stages_used_before_and_after():
    lines = []

    def noting(name):
        def wrapper(stage):
            def wrapped(ctx):
                lines.append(name)
                return stage(ctx)

            return wrapped

        return wrapper

    def first(ctx):
        lines.append("first")
        yield
        lines.append("first ends")

    task = Task().use(first)
    task.use_step_wrapper(noting("inner")).use_step_wrapper(noting("outer"))
    task.use(task.serial(lambda ctx: lines.append("second"), lambda ctx: lines.append("third")))
    task.run(max_step=1)
    around = ["outer", "inner"]
    assert lines == [*around, "first", *around, "second", *around, "third", "first ends"]


def test_stages_come_from_a_module_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_stages.py").write_text(
        "class Collect:\n"
        "    def __init__(self, size): self.size = size\n"
        "    def __call__(self, ctx): ctx.data = list(range(self.size))\n"
        "def train(scale):\n"
        "    def _train(ctx): ctx.loss = scale * sum(ctx.data)\n"
        "    return _train\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    my_stages = importlib.import_module("my_stages")
    for size, scale in ((3, 1), (4, 10)):  # the same ones in two tasks
        task = Task().use(my_stages.Collect(size)).use(my_stages.train(scale))
        assert task.run(max_step=2).loss == scale * sum(range(size))


def test_wait_returns_when_it_is_true_and_gives_up_at_the_end():
    asked = []

    def stage(ctx):
        assert task.wait(lambda: len(asked) > 2 or asked.append(1))
        ctx.finish = True
        assert not task.wait(lambda: False)
        with pytest.raises(RunError, match=r"^task.wait: waited 0.01 s for the weights; "):
            other.wait(lambda: False, timeout=0.01, what="the weights")

    other, task = Task(), Task()
    task.use(stage).run()
    assert asked == [1, 1, 1]


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
