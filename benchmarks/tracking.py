"""What tracking costs: the same run with every tracker and with none, generation by generation.

    python benchmarks/tracking.py      # about ten minutes on two idle cores

LunarLander-v3, eight agents, the default generation length, W&B offline and TensorBoard. The two
runs take turns in one process, so that a disturbance hits them alike; they train the same agents to
the same bits. What counts is the share of the time spent inside tracking, from W&B's start to its
end: the ratio of two runs on a noisy machine is noisier than what it is to show. The share of the
processor's time does not depend on what else the machine does.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch
from tqdm import tqdm

from evorl.config import dump_config, parse_config
from evorl.console import Console
from evorl.distributed.world import World
from evorl.envs import EnvSpec
from evorl.evolution.lineage import birth
from evorl.office import Begin, make_office
from evorl.pipeline.context import Context
from evorl.rank import make_rank
from evorl.run_directory import RunDirectory

AGENTS, ENVS, BAR = 8, 8, 0.01
TRACKERS = {"none": {}, "every": {"wandb": "offline", "tensorboard": True}}


class Stopwatch:
    """Seconds, by the wall and of this process's processor time."""

    def __init__(self) -> None:
        self.wall = self.processor = 0.0

    def __enter__(self) -> None:
        self._since = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.wall += time.perf_counter() - self._since[0]
        self.processor += time.process_time() - self._since[1]


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

    def __init__(self, folder: Path, stack: ExitStack, trackers: str, overrides: list[str]) -> None:
        data = {
            "env": {"id": "LunarLander-v3", "num_envs": ENVS},
            "algorithm": {"learn_step": 2},
            "population": {"size": AGENTS},
            "evaluation": {"episodes": 5, "max_steps": 500},
            "budget": {"env_steps": 10**9},
            "compile": False,
            "tracking": TRACKERS[trackers],
        }
        config = parse_config(data, overrides)
        world = World.start(AGENTS)
        stack.callback(world.close)
        self.rank = rank = make_rank(config, world, EnvSpec(config.env.id, "sync"), stack)
        directory = RunDirectory.create(folder, f"trackers-{trackers}")
        directory.write_config(dump_config(config))
        directory.append_lineage([birth(g, i, None) for i, g in enumerate(rank.everybody.genomes)])
        console = Console(quiet=True)
        office = make_office(config, directory, rank.everybody, rank.episodes, console)
        self.tracking = Timed(office.tracking)
        self.office = office._replace(tracking=self.tracking)
        self.context, self.watch = Context(AGENTS), Stopwatch()
        with self.watch:
            Begin(world, config, self.office, rank.everybody).anew(self.context)
            rank.spread(self.context)

    def generation(self) -> None:
        """Train, evaluate, write down, track and evolve."""
        rank, context = self.rank, self.context
        with self.watch:
            rank.gather.begin(context)
            while context.iteration < context.ends:
                rank.collect(context)
                rank.learn(context)
                context.iteration += 1
            rank.evaluate(context)
            rank.gather(context)
            self.office.decide(context)
            rank.turn(context)
            rank.inherit(context)
            rank.spread(context)

    def told(self) -> str:
        """What tracking has taken so far, its start included."""
        inside, whole = self.tracking.watch, self.watch
        return (
            f"tracking {inside.wall:.2f} of {whole.wall:.1f} s ({inside.wall / whole.wall:.2%}), of"
            f" processor time {inside.processor:.2f} of {whole.processor:.1f} s"
            f" ({inside.processor / whole.processor:.2%})"
        )

    def close(self) -> None:
        """What is left to be told."""
        with self.watch:
            self.tracking.close()


@click.command()
@click.argument("overrides", nargs=-1)
@click.option("--generations", default=20)
def main(overrides: tuple[str, ...], generations: int) -> None:
    """Measure, print, and exit with 1 if the bar is not met."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        loops = {name: Loop(Path(folder), stack, name, list(overrides)) for name in TRACKERS}
        for number in tqdm(range(generations), unit="generation", disable=None):
            for loop in loops.values():
                loop.generation()
            tqdm.write(f"generation {number}: {loops['every'].told()}")
        for loop in loops.values():
            loop.close()
    none, every = loops["none"], loops["every"]
    if none.context.fitness.tobytes() != every.context.fitness.tobytes():
        raise SystemExit("the two runs trained different agents")
    inside, whole = every.tracking.watch, every.watch
    share = inside.wall / whole.wall
    print(f"{generations} generations, {every.context.env_steps:,} steps: {whole.wall:.1f} s")
    print(f"with every tracker, of the time with none: {whole.wall / none.watch.wall:.2%}")
    print(f"the same in processor time: {whole.processor / none.watch.processor:.2%}")
    print(f"inside tracking: {inside.wall:.2f} s, of processor time {inside.processor:.2f} s")
    print(f"share of the processor time: {inside.processor / whole.processor:.2%}")
    print(f"share of the time: {share:.2%} (at most {BAR:.0%})")
    raise SystemExit(share > BAR)


if __name__ == "__main__":
    main()
