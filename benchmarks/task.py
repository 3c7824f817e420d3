"""What a Task costs: against calling the same functions by hand; and what asynchrony gains.

    python benchmarks/task.py      # about a minute

The trainer's own list of stages, every one replaced by a function that does nothing, against the
same functions called one after another: the difference is the Task's, in microseconds an iteration.
It is compared with a round of CartPole, the cheapest there is: four agents, one environment each,
a batch of 32. Both take turns, and the best turn counts, as machines are noisy.
"""

import argparse
import inspect
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import torch
from timing import best_seconds

from evorl import (
    Context,
    Save,
    StepTimer,
    Task,
    TrainingContext,
    World,
    make_run,
    parse_config,
    start_run,
)
from evorl.training.trainer import make_task

AGENTS, CALLS, BAR = 4, 2000, 0.01
LIST = inspect.getsource(make_task)  # of the trainer's stages
AT_THE_END = LIST.count("every=end")
EVERY_ROUND = LIST.count("task.use(") - AT_THE_END
OVERLAP = 0.75  # of the serial time that two equal stages at once may take


@dataclass
class Counter:
    """A typed context, as the trainer has one."""

    iteration: int = 0
    until: int = 0

    @property
    def finished(self) -> bool:
        """Whether this many iterations are done."""
        return self.iteration >= self.until


def nothing(context: Any) -> None:
    """A stage that does nothing."""


def never(context: Any) -> bool:
    """No generation ends."""
    return False


def typed() -> Callable[[], object]:
    """CALLS iterations of the trainer's list on a typed context."""
    context = Counter()
    task = Task(context, {"main", "standalone", "node.0"})
    for number in range(EVERY_ROUND):
        task.use(nothing, filter_labels=None if number < EVERY_ROUND - 1 else ["main"])
    for _ in range(AT_THE_END):
        task.use(nothing, every=never)

    def run() -> None:
        context.until += CALLS
        task.run()

    return run


def free(wrapped: bool, async_mode: bool = False) -> Callable[[], object]:
    """CALLS iterations on a free-form context."""
    task = Task(Context(), async_mode=async_mode)
    if wrapped:
        task.use_step_wrapper(StepTimer(10 * CALLS, print_on=lambda table: None))
    for _ in range(EVERY_ROUND):
        task.use(nothing)
    return lambda: task.run(max_step=CALLS)


def by_hand() -> Callable[[], object]:
    """The same functions, called one after another."""
    context = Counter()

    def run() -> None:
        for _ in range(CALLS):
            for _ in range(EVERY_ROUND):
                nothing(context)
            for _ in range(AT_THE_END):
                never(context)
            context.iteration += 1

    return run


def one_round(stack: ExitStack) -> Callable[[], object]:
    """A step of every environment, and what is learned from it, by hand."""
    config = parse_config(
        {
            "env": {"id": "CartPole-v1", "num_envs": 1},
            "algorithm": {"batch_size": 32, "learning_starts": 32},
            "population": {"size": AGENTS},
            "evaluation": {"every": 10**9},
            "budget": {"env_steps": 10**12},
            "compile": False,
            "run": {"folder": stack.enter_context(TemporaryDirectory())},
        }
    )
    world = World.start(AGENTS)
    stack.callback(world.close)
    run = make_run(config, world, stack)
    stages, context = run.stages, TrainingContext(AGENTS)
    start_run(run, context, Save(world, run.config, run.storage, run.parts.replays, []))

    def step() -> None:
        stages.collect(context)
        stages.learn(context)
        context.iteration += 1

    return step


def overlap() -> float:
    """Two stages that sleep 0.2 s at once, of the time that they take in order."""

    def sleeps(context: Any) -> None:
        time.sleep(0.2)

    tasks = {mode: Task(async_mode=mode).use(sleeps).use(sleeps) for mode in (False, True)}
    runs = {str(mode): lambda task=task: task.run(max_step=1) for mode, task in tasks.items()}
    found = best_seconds(runs, calls=1, turns=3)
    return found["True"] / found["False"]


def main() -> None:
    """Measure, print, and exit with 1 if a bar is not met."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    candidates = {
        "by hand": by_hand(),
        "trainer's list": typed(),
        "free-form context": free(wrapped=False),
        "with StepTimer": free(wrapped=True),
    }
    spent = best_seconds(candidates, calls=1)
    with ExitStack() as stack:
        round_seconds = best_seconds({"round": one_round(stack)}, calls=300)["round"]
    own = {name: (seconds - spent["by hand"]) / CALLS for name, seconds in spent.items()}
    print(f"a round of {AGENTS} agents on CartPole: {1e6 * round_seconds:,.0f} µs")
    for name in list(candidates)[1:]:
        share = own[name] / round_seconds
        print(f"  {name:18} {1e6 * own[name]:6.1f} µs an iteration, {share:.2%} of the round")
    at_once = best_seconds({"async": free(wrapped=False, async_mode=True)}, calls=1, turns=2)
    print(f"  {'asynchronous':18} {1e6 * at_once['async'] / CALLS:6.1f} µs an iteration")
    share, ratio = own["trainer's list"] / round_seconds, overlap()
    print(f"the trainer's Task: {share:.2%} of a round (at most {BAR:.0%})")
    print(f"two equal stages at once: {ratio:.2f} of the time in order (at most {OVERLAP})")
    raise SystemExit(share > BAR or ratio > OVERLAP)


if __name__ == "__main__":
    main()
