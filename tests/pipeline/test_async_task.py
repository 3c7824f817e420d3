"""Stages at once: they overlap, meet, never race silently, and nothing is left running."""

import asyncio
import threading
import time
from contextlib import suppress

import pytest
import torch

from evorl import StageError, Task
from evorl.pipeline.threads import LEAVE_SECONDS

LIMIT = 2.0  # seconds in which everything ends after an error


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def seconds_of(task, steps=1):
    began = time.perf_counter()
    task.run(max_step=steps)
    return time.perf_counter() - began


def test_two_stages_that_sleep_overlap():
    def sleeps(ctx):
        time.sleep(0.2)

    serial = seconds_of(Task().use(sleeps).use(sleeps), steps=3)
    at_once = seconds_of(Task(async_mode=True).use(sleeps).use(sleeps), steps=3)
    assert at_once < 0.75 * serial  # 0.3 of 0.4 s


def test_two_coroutines_that_sleep_overlap():
    async def sleeps(ctx):
        await asyncio.sleep(0.2)

    serial = seconds_of(Task().use(sleeps).use(sleeps), steps=3)
    at_once = seconds_of(Task(async_mode=True).use(sleeps).use(sleeps), steps=3)
    assert at_once < 0.75 * serial


def test_the_process_has_the_label_async():
    ran = []
    for mode in (False, True):
        task = Task(async_mode=mode)
        task.use(lambda ctx, mode=mode: ran.append(mode), filter_labels=["async"])
        task.run(max_step=1)
    assert ran == [True]


def test_stages_start_in_order_and_meet_at_the_end():
    lines = []

    def stage(number):
        def run(ctx):
            lines.append(f"{number} starts")
            barrier.wait()
            lines.append(f"{number} ends")

        return run

    barrier = threading.Barrier(4)
    task = Task(async_mode=True)
    for number in range(4):
        task.use(stage(number))
    task.run(max_step=20)
    for step in range(20):
        begun, ended = lines[8 * step : 8 * step + 4], lines[8 * step + 4 : 8 * step + 8]
        assert begun == [f"{number} starts" for number in range(4)]
        assert sorted(ended) == [f"{number} ends" for number in range(4)]


def test_five_stages_that_wait_for_each_other_do_not_hang():
    here = [threading.Event() for _ in range(5)]

    def waits(number):
        def run(ctx):
            here[number].set()
            assert task.wait(lambda: all(event.is_set() for event in here))

        return run

    task = Task(async_mode=True)
    for number in range(5):
        task.use(waits(number))
    task.run(max_step=1)


def test_coroutines_may_wait_for_each_other_too():
    async def gives(ctx):
        (await queue()).put_nowait(ctx.iteration)

    async def takes(ctx):
        taken.append(await (await queue()).get())

    async def queue():
        return queues.setdefault(asyncio.get_running_loop(), asyncio.Queue())

    queues, taken = {}, []
    Task(async_mode=True).use(takes).use(gives).run(max_step=3)
    assert taken == [0, 1, 2]


def test_every_stage_has_a_thread_of_its_own_and_keeps_it():
    threads = {"a": set(), "b": set()}

    def stage(name):
        def run(ctx):
            threads[name].add(threading.get_ident())
            yield
            threads[name].add(threading.get_ident())  # what belongs to a thread stays valid

        return run

    Task(async_mode=True).use(stage("a")).use(stage("b")).run(max_step=5)
    assert [len(own) for own in threads.values()] == [1, 1]
    assert not threads["a"] & threads["b"]


def test_second_halves_run_one_after_another_in_reverse_order():
    lines = []

    def stage(name):
        def run(ctx):
            yield
            assert ctx.setdefault("last", name) == "c"  # no conflict: they are in order
            lines.append(name)

        return run

    task = Task(async_mode=True)
    task.use(stage("a")).use(task.serial(stage("b"), stage("c"))).run(max_step=2)
    assert lines == ["c", "b", "a"] * 2


def test_the_same_values_as_in_order_where_stages_are_independent():
    def stage(name):
        def run(ctx):
            ctx.keep(name)
            setattr(ctx, name, ctx.get(name, 0) + 1)

        return run

    task = Task(async_mode=True).use(stage("a")).use(stage("b"))
    context = task.run(max_step=50)
    assert (context.a, context.b, task.iteration) == (50, 50, 50)


def test_finish_may_be_written_and_read_at_once():
    def evaluate(ctx):
        ctx.finish = ctx.iteration == 3

    def train(ctx):
        _ = ctx.finish

    assert Task(async_mode=True).use(evaluate).use(train).run().iteration == 3


# Conflicts: whoever is faster, they are found.


def collect(slow):
    def _collect(ctx):
        if slow:
            time.sleep(0.05)
        ctx.data = [1, 2]

    return _collect


def train(slow):
    def _train(ctx):
        if slow:
            time.sleep(0.05)
        ctx.loss = sum(ctx.data)

    return _train


CONFLICT = (
    r"^ctx\.data: stage 'collect' writes it while stage 'train' reads it, in iteration 0; put them"
    r" in order: task\.use\(task\.serial\(collect, train\)\)"
)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("slow", [None, "collect", "train"])
def test_collect_and_train_at_once_are_refused_with_both_names(slow, swapped):
    stages = [collect(slow == "collect"), train(slow == "train")]
    task = Task(async_mode=True)
    for stage in reversed(stages) if swapped else stages:
        task.use(stage)
    with pytest.raises(StageError, match=CONFLICT):
        task.run(max_step=5)


def test_in_order_they_are_fine():
    task = Task(async_mode=True)
    task.use(task.serial(collect(True), train(False)))
    assert task.run(max_step=3).loss == 3


def test_a_reader_that_gave_up_long_before_the_writer_came_is_told_the_same():
    written = threading.Event()

    def slow(ctx):
        task.wait(lambda: False)  # until it is stopped
        written.set()

    task = Task(async_mode=True).use(slow).use(train(False))
    with pytest.raises(
        StageError, match=r"ctx\.data: .*'train'.*slow.*task\.serial\(slow, train\)"
    ):
        task.run(max_step=1)
    assert written.is_set()


def test_a_name_that_nobody_writes_is_a_missing_one():
    task = Task(async_mode=True).use(lambda ctx: None).use(train(False))
    with pytest.raises(AttributeError, match=r"ctx\.data: no stage has written it"):
        task.run(max_step=1)


def uses(*actions):
    """A stage for each action, beside each other, with the name `x` that was there before."""
    task = Task(async_mode=True)
    task.use(lambda ctx: None if ctx.iteration else _begin(ctx))
    for number, action in enumerate(actions):

        def stage(ctx, action=action):
            if ctx.iteration:
                action(ctx)

        stage.__qualname__ = f"stage{number}"
        task.use(stage)
    return task.run(max_step=2)


def _begin(ctx):
    ctx.x, ctx.y = 1, 1
    ctx.keep("x", "y")


def reads(ctx):
    assert ctx.x == 1


def writes(ctx):
    ctx.x = 2


def deletes(ctx):
    del ctx.x


def asks(ctx):
    assert "x" in ctx


def gets(ctx):
    ctx.get("x")


def defaults(ctx):
    ctx.setdefault("x", 5)


def shares(ctx):
    ctx.share("x")


def has(ctx):
    assert hasattr(ctx, "x")


@pytest.mark.parametrize("reader", [reads, asks, gets, defaults, shares, has])
@pytest.mark.parametrize("writer", [writes, deletes])
def test_reading_and_writing_at_once_is_refused_in_either_order(reader, writer):
    for pair in ([reader, writer], [writer, reader]):
        with pytest.raises(StageError, match=r"'stage0' .* while stage 'stage1'"):
            uses(*pair)


def test_writing_at_once_is_refused():
    with pytest.raises(StageError, match="'stage0' writes it while stage 'stage1' writes it"):
        uses(writes, writes)


def test_reading_at_once_is_fine_and_so_is_using_ones_own():
    uses(reads, asks, gets, defaults, shares, has)
    uses(lambda ctx: setattr(ctx, "x", ctx.x + 1), lambda ctx: setattr(ctx, "y", ctx.y + 1))


def test_a_default_counts_as_written_where_the_name_is_new_whoever_is_first():
    def default(ctx):
        ctx.setdefault("new", 0)

    for _ in range(5):
        with pytest.raises(StageError, match=r"ctx\.new: stage 'stage0' writes it while"):
            uses(default, default)


def test_a_conflict_that_a_stage_swallows_is_raised_all_the_same():
    def swallows(ctx):
        with suppress(Exception):
            _ = ctx.x

    with pytest.raises(StageError, match="'stage0' reads it while stage 'stage1' writes it"):
        uses(swallows, writes)


def test_conflicts_name_the_stage_inside_of_a_serial_one():
    def prepare(ctx):
        pass

    task = Task(async_mode=True)
    task.use(task.serial(prepare, collect(False))).use(task.serial(prepare, train(True)))
    with pytest.raises(StageError, match=CONFLICT):
        task.run(max_step=1)


# Errors.


def test_an_error_ends_everything_with_its_stage_and_iteration():
    ended = []

    def fails(ctx):
        if ctx.iteration == 2:
            raise ValueError("broken")

    def waits(ctx):
        if ctx.iteration == 2:
            assert not task.wait(lambda: False)
            assert task.stopping
            ended.append("waits")

    def polls(ctx):
        while ctx.iteration == 2 and not ctx.finish:  # as the tutorial does
            time.sleep(0.01)

    def spins(ctx):
        while ctx.iteration == 2:
            time.sleep(0.01)

    async def sleeps(ctx):
        if ctx.iteration == 2:
            await asyncio.sleep(60)

    def cleans_up(ctx):
        try:
            yield
        finally:
            ended.append("cleaned")

    task = Task(async_mode=True)
    for stage in (waits, polls, spins, sleeps, cleans_up, fails):
        task.use(stage)
    began = time.monotonic()
    with pytest.raises(ValueError, match="broken") as raised:
        task.run()
    assert time.monotonic() - began < LIMIT
    assert raised.value.__notes__ == ["in stage 'fails', iteration 2"]
    assert ended.count("waits") == 1
    assert ended.count("cleaned") == 3


def test_a_stage_that_cannot_be_stopped_is_named_and_left_behind():
    release = threading.Event()

    def stuck(ctx):
        release.wait()

    def fails(ctx):
        raise ValueError("broken")

    began = time.monotonic()
    with pytest.raises(ValueError, match="broken") as raised:
        Task(async_mode=True).use(stuck).use(fails).run()
    assert time.monotonic() - began < LIMIT + LEAVE_SECONDS
    assert any("stuck" in note for note in raised.value.__notes__)
    release.set()
    for thread in threading.enumerate():
        if "stuck" in thread.name:
            thread.join()


def test_an_error_in_a_second_half_ends_everything_too():
    lines = []

    def first(ctx):
        try:
            yield
            lines.append("never")
        finally:
            lines.append("closed")

    def second(ctx):
        yield
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        Task(async_mode=True).use(first).use(second).run()
    assert lines == ["closed"]


def test_after_an_error_a_task_can_run_again():
    def fails_once(ctx):
        if not failed:
            failed.append(1)
            raise ValueError("once")

    failed = []
    task = Task(async_mode=True).use(fails_once)
    with pytest.raises(ValueError, match="once"):
        task.run(max_step=1)
    task.run(max_step=2)
    assert task.iteration == 2


# In the background.


def test_a_background_stage_works_beside_the_iterations_on_a_snapshot():
    seen, go = [], threading.Event()

    def evaluate(ctx):
        go.wait()
        seen.append((ctx.iteration_then, ctx.weights.tolist()))

    def train(ctx):
        ctx.setdefault("weights", weights)
        ctx.weights += 1
        ctx.iteration_then = ctx.iteration
        ctx.keep("weights")
        if ctx.iteration == 9:
            go.set()

    weights = torch.zeros(2)
    task = Task().use(train).use(evaluate, background=True, busy="skip")
    task.run(max_step=10)
    assert seen[0] == (0, [1.0, 1.0])  # of the iteration in which it was started
    assert len(seen) <= 2


def test_at_most_one_call_is_under_way_and_waiting_runs_all():
    under_way, most, calls = [], [], []

    def slow(ctx):
        under_way.append(1)
        most.append(len(under_way))
        calls.append(ctx.iteration_then)
        time.sleep(0.005)
        under_way.pop()

    def note(ctx):
        ctx.iteration_then = ctx.iteration

    Task().use(note).use(slow, background=True, busy="wait").run(max_step=5)
    assert calls == list(range(5))
    assert set(most) == {1}


def test_skipping_never_waits():
    done, calls = threading.Event(), []

    def slow(ctx):
        calls.append(1)
        done.wait()

    def last(ctx):
        if ctx.iteration == 99:
            done.set()

    Task().use(slow, background=True, busy="skip").use(last).run(max_step=100)
    assert 1 <= len(calls) <= 2


def test_what_a_background_stage_writes_stays_its_own_but_finish_is_everybodys():
    def evaluate(ctx):
        ctx.score = ctx.setdefault("best", 3)
        ctx.finish = True

    def train(ctx):
        assert "score" not in ctx

    context = Task().use(evaluate, background=True).use(train).run()
    assert "score" not in context


@pytest.mark.parametrize("mode", [False, True])
def test_the_tutorial_in_the_background_does_not_conflict(mode):
    evaluated = []

    def evaluate(ctx):
        evaluated.append(ctx.setdefault("train_iter", -1))

    def learn(ctx):
        ctx.setdefault("train_iter", 0)
        ctx.train_iter += 1
        ctx.keep("train_iter")

    task = Task(async_mode=mode).use(evaluate, background=True)
    task.use(task.serial(collect(False), learn)).run(max_step=4)
    assert evaluated == [-1, 1, 2, 3]


@pytest.mark.parametrize("mode", [False, True])
def test_an_error_in_the_background_surfaces_and_ends_the_task(mode):
    def evaluate(ctx):
        raise ValueError("broken")

    def train(ctx):
        task.wait(lambda: ctx.iteration < 3)  # it is over long before the wait is

    task = Task(async_mode=mode).use(evaluate, every=2, background=True).use(train)
    with pytest.raises(ValueError, match="broken") as raised:
        task.run(max_step=1000)
    assert raised.value.__notes__ == ["in stage 'evaluate', iteration 1"]


def test_an_error_in_the_background_ends_stages_that_are_at_work():
    def evaluate(ctx):
        raise ValueError("broken")

    def train(ctx):
        for _ in range(600):
            time.sleep(0.1)  # here it can be interrupted

    begun = time.monotonic()
    with pytest.raises(ValueError, match="broken"):
        Task(async_mode=True).use(evaluate, background=True).use(train).run()
    assert time.monotonic() - begun < 10


def test_after_an_error_in_the_background_a_task_can_run_again():
    failed = []

    def evaluate(ctx):
        if not failed:
            failed.append(ctx.iteration)
            raise ValueError("once")

    task = Task().use(evaluate, background=True)
    with pytest.raises(ValueError, match="once"):
        task.run(max_step=1)
    assert task.run(max_step=2) is task.context


def test_an_error_of_the_last_call_surfaces_at_the_end():
    def evaluate(ctx):
        time.sleep(0.05)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Task().use(evaluate, background=True).run(max_step=1)


def test_the_end_waits_for_what_is_under_way_and_frees_who_waits():
    ended = []

    def evaluate(ctx):
        time.sleep(0.05)
        ended.append(task.wait(lambda: False))

    task = Task().use(evaluate, background=True)
    task.run(max_step=1)
    assert ended == [False]


def test_a_failing_stage_ends_the_background_too():
    ended = []

    def evaluate(ctx):
        ended.append(task.wait(lambda: False))

    def fails(ctx):
        raise ValueError("broken")

    task = Task().use(evaluate, background=True).use(fails)
    with pytest.raises(ValueError, match="broken"):
        task.run(max_step=1)
    assert ended == [False]


def test_a_background_stage_may_be_a_coroutine_but_not_a_generator():
    ran = []

    async def awaits(ctx):
        await asyncio.sleep(0)
        ran.append(1)

    def halves(ctx):
        yield

    Task().use(awaits, background=True).run(max_step=2)
    assert ran == [1, 1]
    with pytest.raises(StageError, match=r"stage 'halves' yields.* without background=True"):
        Task().use(halves, background=True).run(max_step=1)
