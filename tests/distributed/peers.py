"""Run by every process of a launch: peers.py WORKERS TOPOLOGY CASE FOLDER.

A case is a function below, or `checks`: all those that begin with `check_`, one task after another
on the same processes. Each says how it went in FOLDER/<name>.<rank>.
"""

import os
import sys
import threading
import time
import traceback
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from evorl import Parallel, Task, World
from evorl.errors import RunError, StageError


def rank():
    return int(os.environ.get("RANK", "0"))


def size():
    return int(os.environ.get("WORLD_SIZE", "1"))


def wait_for(path):
    while not path.exists():
        time.sleep(0.01)


def say(folder, name, text):
    aside = folder / f"{name}.{rank()}.new"
    aside.write_text(str(text))
    aside.rename(folder / f"{name}.{rank()}")


def check_finish_of_any_process_reaches_all(folder):
    for finishing in range(size()):
        later = []

        def finish(ctx, finishing=finishing):
            if rank() == finishing and ctx.iteration == 3:
                ctx.finish = True

        with Task() as task:
            task.use(finish).use(lambda ctx, later=later: later.append(ctx.iteration))
            task.use(lambda ctx: time.sleep(0.001))
            task.run()
        say(folder, f"ended-{finishing}", time.monotonic())  # one clock for all processes
        assert later == list(range(task.iteration))  # the later stages ran in the last one, too
        if rank() == finishing:
            assert task.iteration == 4


def check_a_stage_that_asks_for_finish_is_told(folder):
    told = []

    def asks(ctx):
        told.append(ctx.finish)
        time.sleep(0.002)  # during which it may come

    def finishes(ctx):
        task.wait(lambda: len(task.parallel_ctx.ranks) == size() - 1)
        time.sleep(0.02)
        ctx.finish = True

    with Task() as task:
        task.use(lambda ctx: ctx.setdefault("x", 1) and ctx.share("x"))
        task.use(asks, filter_labels=[f"node.{i}" for i in range(1, size())])
        task.use(finishes, filter_labels=["main"])
        task.run()
    if rank() > 0:
        assert told[-1] is True
        assert told.count(True) == 1


def check_values_travel_whole(folder):
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    sent = {
        "state_dict": layer.state_dict(),
        "optimizer": optimizer.state_dict(),
        "array": np.arange(6, dtype=np.int32).reshape(2, 3),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "plain": {"a": [1, 2.5, None, True, "ü"], "b": (1, (2,)), "empty": {}},
        "number": np.float64(0.5),
        "empty": torch.empty(0, 3),
        "deep": {"list": [OrderedDict(x=torch.tensor(3)), {1: torch.zeros(())}]},
    }

    def stage(ctx):
        for name, value in sent.items():
            setattr(ctx, name, value)
        ctx.share(*sent)
        ctx.secret = 1  # not marked: it is not sent
        assert task.wait(lambda: len(task.parallel_ctx.ranks) == size() - 1)
        for other in task.parallel_ctx.ranks:
            got = task.parallel_ctx[other]
            assert "secret" not in got
            assert got.plain == sent["plain"]
            assert got.number == 0.5
            assert got.array.dtype == np.int32
            assert got.array.tolist() == [[0, 1, 2], [3, 4, 5]]
            assert got.half.dtype == torch.bfloat16
            assert got.empty.shape == (0, 3)
            assert got.deep["list"][1][1].shape == ()
            torch.nn.Linear(3, 2).load_state_dict(got.state_dict)
            assert got.state_dict["weight"].shape == (2, 3)
            other_optimizer = torch.optim.Adam(torch.nn.Linear(3, 2).parameters())
            other_optimizer.load_state_dict(got.optimizer)
        ctx.done = True
        ctx.share("done")
        assert task.wait(lambda: all(task.parallel_ctx[i].get("done") for i in others()))

    with Task() as task:
        task.use(stage).run(max_step=1)


def others():
    return [i for i in range(size()) if i != rank()]


def check_what_cannot_travel_is_named(folder):
    def stage(ctx):
        ctx.model = {"layers": [torch.nn.Linear(1, 1)]}
        ctx.keys = {(1, 2): 3}
        for name, message in {
            "model": r"^ctx\.model\.layers\[0\]: is a Linear, which cannot be sent; share numbers,",
            "keys": r"^ctx\.keys: has keys that are no words; share",
        }.items():
            with pytest.raises(RunError, match=message):
                ctx.share(name)
        with pytest.raises(AttributeError, match="stat_dict: no other process has shared it"):
            _ = task.parallel_ctx.stat_dict
        assert task.parallel_ctx.get("nothing", 7) == 7

    with Task() as task:
        task.use(stage).run(max_step=1)


def check_everybody_hears_everybody(folder):
    """In a star, too: its centre passes on."""

    def stage(ctx):
        ctx.rank = rank()
        ctx.share("rank")
        assert task.wait(lambda: list(task.parallel_ctx.ranks) == others())
        assert [task.parallel_ctx[i].rank for i in others()] == others()
        ctx.heard = True
        ctx.share("heard")
        task.wait(lambda: all(task.parallel_ctx[i].get("heard") for i in others()))

    with Task() as task:
        task.use(stage).run(max_step=1)


def check_names_shared_apart_do_not_replace_each_other(folder):
    def share(ctx):
        ctx.weights, ctx.note = torch.full((4,), float(ctx.iteration)), f"at {ctx.iteration}"
        if ctx.iteration == 0:
            ctx.share("weights")
        ctx.share("note")

    def read(ctx):
        assert task.wait(lambda: task.parallel_ctx.get("note") == "at 9")
        assert task.parallel_ctx[0].weights.tolist() == [0.0] * 4

    with Task() as task:
        task.use(share, filter_labels=["main"]).use(read, filter_labels=["node.1"])
        task.run(max_step=10 if rank() == 0 else 1)


def check_the_evaluator_sees_only_newer_whole_weights_and_costs_the_trainer_nothing(folder):
    steps, seen, done = 300, [], folder / f"trained-{os.environ['TOPOLOGY']}"

    def train(ctx):
        ctx.weights.add_(1)  # in place: what was sent must not change
        ctx.keep("weights", "train_iter")
        ctx.train_iter = ctx.iteration + 1
        ctx.state_dict = {"weights": ctx.weights}
        ctx.share("state_dict", "train_iter")

    def evaluate(ctx):
        newest = seen[-1] if seen else 0
        if not task.wait(lambda: task.parallel_ctx.get("train_iter", 0) > newest):
            return
        if not seen:
            wait_for(done)  # the trainer is through with everything, and did not wait for us
        weights = task.parallel_ctx.state_dict["weights"]
        assert weights.eq(task.parallel_ctx.train_iter).all()
        seen.append(task.parallel_ctx.train_iter)

    with Task() as task:
        if rank() == 0:
            task.context.weights = torch.zeros(10_000)
        task.use(train, filter_labels=["main"]).use(evaluate, filter_labels=["node.1"])
        task.run(max_step=steps if rank() == 0 else None)
        if rank() == 0:
            done.touch()
    if rank() == 1:
        assert seen == sorted(set(seen))
        assert seen[-1] == steps  # also the last ones, although the trainer had ended
        assert len(seen) < 50


def check_a_loop_that_polls_ends_too(folder):
    """As the tutorial has it: without task.wait."""
    polls = []

    def evaluate(ctx):
        last = polls[-1] if polls else -1
        while True:
            if ctx.finish:
                return
            if task.parallel_ctx.get("train_iter", -1) > last:
                polls.append(task.parallel_ctx.train_iter)
                break
            time.sleep(0.001)

    def train(ctx):
        ctx.train_iter = ctx.iteration
        ctx.share("train_iter")

    for trainer in (0, 1):
        polls.clear()
        with Task() as task:
            task.use(train if rank() == trainer else evaluate)
            task.run(max_step=20 if rank() == trainer else None)
        assert polls == sorted(set(polls))
        assert rank() == trainer or polls[-1] == 19


def check_equal_processes_that_read_each_other_all_complete(folder):
    """Who shares is not ended by the end of those that it hears."""

    def work(ctx):
        ctx.score = ctx.iteration
        ctx.share("score")
        ctx.best = task.parallel_ctx.get("score", 0)
        time.sleep(0.002 * rank())

    with Task() as task:
        task.use(work).run(max_step=20)
    assert task.iteration == 20


def check_many_tasks_one_after_another(folder):
    """They use a bounded number of names on the bus."""

    def share(ctx):
        ctx.x = ctx.iteration
        ctx.share("x")

    for _ in range(400):
        with Task() as task:
            task.use(share).run(max_step=1)


def check_independent_processes_all_complete(folder):
    """Who reads nothing of the others is not ended by their end."""

    def slow(ctx):
        time.sleep(0.002 * rank())

    with Task() as task:
        task.use(slow).run(max_step=20)
    assert task.iteration == 20


def check_asynchronous_stages_on_processes(folder):
    def collect(ctx):
        ctx.keep("n")
        ctx.n = ctx.get("n", 0) + 1
        ctx.share("n")

    def watch(ctx):
        assert task.wait(
            lambda: all(task.parallel_ctx[i].get("n", 0) > ctx.iteration for i in others())
        )

    with Task(async_mode=True) as task:
        task.use(collect).use(watch).run(max_step=10)


def check_labels(folder):
    ran = []
    with Task() as task:
        task.use(lambda ctx: ran.append("all"))
        task.use(lambda ctx: ran.append("main"), filter_labels=["main"])
        task.use(lambda ctx: ran.append("nodes"), filter_labels=["node.*"])
        task.use(lambda ctx: ran.append("distributed"), filter_labels=["distributed"])
        task.use(lambda ctx: ran.append("standalone"), filter_labels=["standalone"])
        task.use(lambda ctx: ran.append("gpu"), filter_labels=["gpu"])
        task.use(lambda ctx: ran.append("evaluator"), filter_labels=["evaluator"])
        task.use(lambda ctx: ran.append("late"), filter_labels=["collector", "never"])
        task.run(max_step=1)
    expected = ["all", *(["main"] if rank() == 0 else []), "nodes"]
    expected += ["distributed" if size() > 1 else "standalone", "gpu"]
    expected += ["evaluator"] if rank() == 1 else []
    expected += ["late"] if rank() in (2, 3) else []
    assert ran == expected


CHECKS = {name: value for name, value in list(globals().items()) if name.startswith("check_")}


def case_checks(folder):
    for name, check in CHECKS.items():
        if size() == 1 and name != "check_labels":
            continue
        try:
            check(folder)
            outcome = "ok"
        except BaseException:
            outcome = traceback.format_exc()
        say(folder, name, outcome)
    names = [thread.name for thread in threading.enumerate()]
    say(folder, "threads", [name for name in names if not name.startswith("evorl-")])


def case_late(folder):
    """The others have finished and left before the last rank makes its task."""
    if rank() == size() - 1:
        for other in range(1, size() - 1):  # in a star the centre stays for the late one
            wait_for(folder / f"left.{other}")
        wait_for(folder / "finished.0")
    began = time.monotonic()
    with Task() as task:
        task.use(lambda ctx: setattr(ctx, "finish", rank() == 0))
        task.run()
    say(folder, "finished", time.monotonic() - began)
    say(folder, "left", "")


def case_collectives(folder):
    world = World.start(agents=4)
    refused = []

    def inside(ctx):
        for call in (
            lambda: world.gather(b""),
            lambda: world.all_gather(b""),
            lambda: world.broadcast(b""),
            lambda: world.broadcast_json(1),
            lambda: world.any_rank(True),
            lambda: world.average_(torch.ones(1)),
            lambda: world.sum_over_replicas(np.ones(1)),
            lambda: world.max_over_replicas(np.ones(1)),
            lambda: world.barrier("here"),
        ):
            try:
                call()
            except StageError as error:
                refused.append(str(error))

    def halves(ctx):
        yield
        inside(ctx)

    async def awaits(ctx):
        inside(ctx)

    for mode in (False, True):
        task = Task(async_mode=mode)
        task.use(inside, filter_labels=["main", "standalone"])
        task.use(task.serial(halves, awaits), filter_labels=["node.0"])
        task.use(inside, filter_labels=["node.0"], background=True)
        task.use(lambda ctx: world.barrier("all"))
        task.use(lambda ctx: world.any_rank(True), filter_labels=["distributed"])
        task.run(max_step=1)
    world.barrier("after it")
    say(folder, "refused", f"{len(refused)} {refused[0] if refused else ''}")
    world.close()


def case_teams(folder):
    """Two ranks that train the same agents, and one that evaluates."""
    world = World.start(agents=2, data=2, evaluators=1)
    refused, done = [], []

    def together(ctx):
        world.average_(torch.ones(1))
        done.append(world.trainers.any_rank(True))

    def inside(ctx):
        for call in (together, lambda ctx: world.any_rank(True)):
            try:
                call(ctx)
            except StageError as error:
                refused.append(str(error))

    task = Task(labels=world.labels)
    task.use(inside, filter_labels=["main"])
    task.use(inside, filter_labels=["node.1"])
    task.use(together, filter_labels=["trainer"])
    task.use(together, filter_labels=["learn*"])
    task.use(lambda ctx: done.append(world.evaluators.any_rank(True)), filter_labels=["node.2"])
    task.run(max_step=1)
    world.barrier("after it")
    say(folder, "teams", f"{len(done)} {len(refused)} {refused[0] if refused else ''}")
    world.close()


def case_fails(folder):
    with Task() as task:
        task.use(fails, filter_labels=["node.1"])
        task.use(lambda ctx: task.wait(lambda: False), filter_labels=["node.0"])
        task.run()


def fails(ctx):
    raise ValueError("broken on purpose")


def case_waits(folder):
    def waits(ctx):
        task.wait(lambda: task.parallel_ctx.get("x"), timeout=0.2, what="x of the others")

    with Task() as task:
        if rank() == 0:
            task.use(waits)
        else:
            task.use(lambda ctx: task.wait(lambda: False))
        task.run()


def case_exits(folder):
    sys.exit(f"ended by {rank()}" if rank() > 1 else 0)


def main(case, folder):
    globals()[f"case_{case}"](Path(folder))


if __name__ == "__main__":
    workers, os.environ["TOPOLOGY"], *rest = sys.argv[1:]
    Parallel.runner(int(workers), topology=os.environ["TOPOLOGY"])(main, *rest)
