"""What tracking costs: a run with every tracker on against the same run with none.

    python benchmarks/tracking.py      # about five minutes on two idle cores

LunarLander-v3, eight agents, the default generation length, W&B offline and TensorBoard. How much
slower the tracked run is has two parts, and each is measured where it can be seen:

- the time inside tracking, from W&B's start to its end, as a share of the run;
- what trackers cost the rest of the run (threads of theirs, more for Python to look after): the
  first generations are trained by an untracked run as well, in a process of its own. Both train the
  same agents to the same bits, and take turns every few rounds, in changing order, so that a
  disturbance hits them alike. Turns are compared by processor time, which counts all threads of a
  process and does not depend on what else the machine does, and by the wall.

W&B's service is a further process; its processor time is printed, too.
"""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click
import numpy as np
import psutil
import torch
from tqdm import tqdm

from evorl import Save, TrainingContext, World, make_run, parse_config, start_run
from evorl.runs import Estimate

AGENTS, ENVS, BAR = 8, 8, 0.01
ROUNDS = 10  # of a turn: about an eighth of a second
TRACKERS = {"none": {}, "every": {"wandb": "offline", "tensorboard": True}}


class Lap(NamedTuple):
    """Seconds by the wall, and of this process's processor time."""

    wall: float
    processor: float


class Measured(NamedTuple):
    """What a tracked run measured of itself."""

    inside: list[float]  # seconds of every call of tracking: the start, each generation, the end
    seconds: float  # of the whole run
    env_steps: int
    service: float  # seconds of processor time of W&B's service


class Stopwatch:
    """Every lap."""

    def __init__(self) -> None:
        self.laps: list[Lap] = []

    def __enter__(self) -> None:
        self._since = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        wall, processor = self._since
        self.laps.append(Lap(time.perf_counter() - wall, time.process_time() - processor))

    @property
    def seconds(self) -> float:
        """All laps together, by the wall."""
        return sum(lap.wall for lap in self.laps)


class Timed:
    """Tracking, with a stopwatch around every call."""

    def __init__(self, tracking: Any) -> None:
        self.tracking, self.watch = tracking, Stopwatch()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            with self.watch:
                getattr(self.tracking, name)(*arguments)

        return call


class Loop:
    """The stages of a run as the trainer runs them, without checkpoints."""

    def __init__(self, stack: ExitStack, folder: Path, trackers: str, overrides: list[str]) -> None:
        data = {
            "name": f"trackers-{trackers}",
            "env": {"id": "LunarLander-v3", "num_envs": ENVS, "backend": "sync"},
            "algorithm": {"learn_step": 2},
            "population": {"size": AGENTS},
            "evaluation": {"episodes": 5, "max_steps": 500},
            "budget": {"env_steps": 10**9},
            "compile": False,
            "tracking": TRACKERS[trackers],
            "run": {"folder": str(folder)},
        }
        config = parse_config(data, overrides)
        world = World.start(AGENTS)
        stack.callback(world.close)
        run = make_run(config, world, stack)
        self.tracking = Timed(run.stages.tracking)
        self.stages = dataclasses.replace(run.stages, tracking=self.tracking)
        run = dataclasses.replace(run, stages=self.stages)
        self.context, self.watch = TrainingContext(AGENTS), Stopwatch()
        save = Save(world, run.config, run.storage, run.parts.replays, [])  # writes nothing here
        with self.watch:
            start_run(run, self.context, save)

    @property
    def end(self) -> list[Any]:
        """The stages at a generation's end."""
        stages = self.stages
        return [
            *(stages.evaluate, stages.gather, stages.champion, stages.budget),
            *(stages.record.evaluation, stages.show.evaluation, stages.refuse_all_dead),
            *(stages.evolve, stages.record.births, stages.track),
            *(stages.end_episodes, stages.inherit, stages.broadcast),
        ]

    def generation(self) -> Iterator[Lap]:
        """Train, evaluate, write down, track and evolve; the lap of every turn of training."""
        stages, context = self.stages, self.context
        while context.iteration < context.ends:
            with self.watch:
                for _ in range(min(ROUNDS, context.ends - context.iteration)):
                    stages.collect(context)
                    stages.learn(context)
                    context.iteration += 1
            yield self.watch.laps[-1]
        with self.watch:
            for stage in self.end:
                stage(context)

    def turns(self) -> Iterator[Lap | None]:
        """The turns of generation after generation; None at the end of each."""
        while True:
            yield from self.generation()
            yield None

    def close(self) -> Measured:
        """Log what is left to the trackers; what was measured."""
        children = psutil.Process().children(recursive=True)
        service = sum(sum(child.cpu_times()[:2]) for child in children)
        with self.watch:
            self.tracking.close()
        inside = [lap.wall for lap in self.tracking.watch.laps]
        return Measured(inside, self.watch.seconds, self.context.env_steps, service)


def work(pipe: Connection, *arguments: Any) -> None:
    """A run in a process of its own: a turn whenever it is asked for one."""
    torch.set_num_threads(1)
    with ExitStack() as stack:
        loop = Loop(stack, *arguments)
        turns = loop.turns()
        while pipe.recv():
            turn = next(turns)
            pipe.send(loop.context.fitness.tobytes() if turn is None else turn)
        pipe.send(loop.close())


class Runner:
    """A run in another process."""

    def __init__(self, folder: Path, trackers: str, overrides: list[str]) -> None:
        self.pipe, theirs = Pipe()
        arguments = (theirs, folder, trackers, overrides)
        self.process = get_context("spawn").Process(target=work, args=arguments, daemon=False)
        self.process.start()
        theirs.close()

    def turn(self) -> Lap | bytes:
        """A turn of training, or the end of a generation: the agents' fitness."""
        self.pipe.send(True)
        return self.pipe.recv()

    def generation(self) -> None:
        """One without anybody to compare with."""
        while isinstance(self.turn(), Lap):
            pass

    def close(self) -> Measured:
        """What was measured."""
        self.pipe.send(False)
        measured = self.pipe.recv()
        self.process.join()
        return measured


def in_turns(none: Runner, every: Runner) -> Iterator[tuple[Lap, Lap]]:
    """One generation of both, turn by turn."""
    for number in count():
        if number % 2:
            after, before = every.turn(), none.turn()
        else:
            before, after = none.turn(), every.turn()
        if isinstance(before, Lap) and isinstance(after, Lap):
            yield before, after
        elif before == after:
            return
        else:
            raise SystemExit("the two runs trained different agents")


def median(ratios: list[float]) -> Estimate:
    """With its 95 % bootstrap interval."""
    random, known = np.random.default_rng(1), np.array(ratios)
    drawn = np.median(random.choice(known, (4000, len(known))), axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(float(np.median(known)), float(low), float(high))


@click.command()
@click.argument("overrides", nargs=-1)
@click.option("--generations", default=18, help="Of the tracked run.")
@click.option("--paired", default=4, help="Generations that the untracked run trains, too.")
def main(overrides: tuple[str, ...], generations: int, paired: int) -> None:
    """Measure, print, and exit with 1 if the bar is not met."""
    pairs: list[tuple[Lap, Lap]] = []
    with TemporaryDirectory() as folder:
        none, every = (Runner(Path(folder), name, list(overrides)) for name in TRACKERS)
        for number in tqdm(range(generations), unit="generation", disable=None):
            if number < paired:
                pairs += in_turns(none, every)
            else:
                every.generation()
            if number + 1 == paired:
                none.close()
        measured = every.close()
    slower = print_parts(measured, pairs)
    print(f"slower with every tracker: {slower:.2%} (at most {BAR:.0%})")
    raise SystemExit(slower > BAR)


def print_parts(measured: Measured, pairs: list[tuple[Lap, Lap]]) -> float:
    """Print both parts; by how much the tracked run was slower, a gain by luck not counted."""
    inside, laps = sum(measured.inside), measured.inside
    others = measured.seconds - inside
    print(f"tracked run: {measured.env_steps:,} steps, {measured.seconds:.1f} s")
    print(f"inside tracking: {inside:.2f} s, {inside / others:.2%} of the rest")
    print(
        f"of that {laps[0]:.2f} s to start, {np.median(laps[1:-1]) * 1000:.0f} ms in a generation"
        f" (median), {max(laps[1:-1]) * 1000:.0f} ms at most, {laps[-1] * 1000:.0f} ms to end"
    )
    print(f"beside it, W&B's service: {measured.service:.2f} s of processor time")
    ratios = {
        "processor time": median([after.processor / before.processor for before, after in pairs]),
        "by the wall": median([after.wall / before.wall for before, after in pairs]),
    }
    for name, rest in ratios.items():
        print(
            f"the rest, of that with no tracker, {name}: {rest.value:.2%}"
            f" (95 % interval {rest.low:.2%} to {rest.high:.2%}, {len(pairs)} turns each)"
        )
    return (1 + inside / others) * max(1.0, ratios["processor time"].value) - 1


if __name__ == "__main__":
    main()
