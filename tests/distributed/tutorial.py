"""The loop of DI-engine's tutorial, with its slips mended: tutorial.py WORKERS serial|async FOLDER.

Its learner, collector, evaluator and buffer are small ones: a linear model learns on which side of
a plane points are. `evaluate`, `collect` and `train` are as there, but that `train` says what it
shares, and `evaluate` waits instead of sleeping. What the processes saw is in FOLDER/<rank>.json.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

from evorl import Parallel, StepTimer, Task

STOP = 0.97


class Collector:
    def __init__(self, model):
        self.model, self.envstep = model, 0
        self.generator = torch.Generator().manual_seed(1)

    def collect(self, train_iter, policy_kwargs):
        self.envstep += 32
        points = torch.randn(32, 3, generator=self.generator)
        return points, (points @ torch.tensor([1.0, -2.0, 0.5]) > 0).float()


class Learner:
    def __init__(self, model):
        self.model, self.train_iter = model, 0
        self.optimizer = torch.optim.Adam(model.parameters(), 0.02)
        self.saved_at = None

    def train(self, data, envstep):
        points, sides = data
        logits = self.model(points).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, sides)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.train_iter += 1

    def save_checkpoint(self):
        self.saved_at = self.train_iter


class Evaluator:
    def __init__(self, model):
        self.model, self.seen = model, []
        self.points = torch.randn(2000, 3, generator=torch.Generator().manual_seed(2))
        self.sides = self.points @ torch.tensor([1.0, -2.0, 0.5]) > 0

    def should_eval(self, train_iter):
        return train_iter >= 0

    def eval(self, save_checkpoint, train_iter, envstep):
        with torch.no_grad():
            right = (self.model(self.points).squeeze(1) > 0) == self.sides
        self.seen.append((train_iter, envstep, float(right.float().mean())))
        return self.seen[-1][2] > STOP, self.seen[-1][2]


def evaluate(task, evaluator, model):
    last_train_iter = -1

    def _evaluate(ctx):
        nonlocal last_train_iter
        ctx.setdefault("envstep", -1)
        ctx.setdefault("train_iter", -1)
        if task.router.is_active:
            if not task.wait(lambda: task.parallel_ctx.get("train_iter", -1) > last_train_iter):
                return
            model.load_state_dict(task.parallel_ctx.state_dict)
            ctx.train_iter = last_train_iter = task.parallel_ctx.train_iter
            ctx.envstep = task.parallel_ctx.envstep
        elif "state_dict" in ctx:  # in the background: the model itself is being trained
            model.load_state_dict(ctx.state_dict)
        if evaluator.should_eval(ctx.train_iter):
            stop, _ = evaluator.eval(None, ctx.train_iter, ctx.envstep)
            if stop:
                ctx.finish = True

    return _evaluate


def collect(epsilon_greedy, collector, replay_buffer):
    def _collect(ctx):
        ctx.setdefault("train_iter", -1)
        eps = epsilon_greedy(collector.envstep)
        new_data = collector.collect(train_iter=ctx.train_iter, policy_kwargs={"eps": eps})
        replay_buffer.append(new_data)
        ctx.envstep = collector.envstep
        ctx.keep("envstep", "train_iter")

    return _collect


def train(task, learner, model, replay_buffer):
    def _train(ctx):
        ctx.setdefault("envstep", -1)
        for train_data in replay_buffer[-2:]:
            learner.train(train_data, ctx.envstep)
            ctx.train_iter = learner.train_iter
        ctx.state_dict = model.state_dict()
        ctx.keep("state_dict")
        ctx.share("state_dict", "train_iter", "envstep")
        if ctx.finish:
            learner.save_checkpoint()

    return _train


def main(mode, folder):
    torch.manual_seed(0)
    model, evaluated = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    learner, collector, evaluator = Learner(model), Collector(model), Evaluator(evaluated)
    replay_buffer, begun = [], time.monotonic()
    at_once = mode == "async"
    with Task(async_mode=at_once) as task:
        task.use_step_wrapper(StepTimer(print_per_step=50))
        task.use(
            evaluate(task, evaluator, evaluated),
            filter_labels=["standalone", "node.1"],
            background=at_once,
        )
        task.use(
            task.serial(
                collect(lambda step: 0.1, collector, replay_buffer),
                train(task, learner, model, replay_buffer),
            ),
            filter_labels=["standalone", "node.0"],
        )
        if task.labels.isdisjoint({"node.0", "node.1"}):  # the others only wait for the end
            task.use(lambda ctx: task.wait(lambda: False))
        task.run(max_step=5000)
        said = {
            "labels": sorted(task.labels),
            "active": task.router.is_active,
            "iterations": task.iteration,
            "seen": evaluator.seen,
            "trained": learner.train_iter,
            "saved_at": learner.saved_at,
            "finish": task.context.finish,
            "seconds": time.monotonic() - begun,
        }
    Path(folder, f"{os.environ.get('RANK', 0)}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    workers, *others = sys.argv[1:]
    Parallel.runner(n_parallel_workers=int(workers), topology="star")(main, *others)
