"""What a second rank brings, and what ranks cost: ratios measured in one launch, in turns.

    accelerate launch --config_file configs/accelerate/cpu.yaml benchmarks/scaling.py

LunarLander-v3. Along population: eight agents on two ranks against all eight on one of them while
the other waits. Along data: an update of two ranks together against one without the other. And the
end of a generation (gather, evolve, checkpoint, reload) at population 16, against the whole of it.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

import click

from evorl.config import parse_config
from evorl.console import Console
from evorl.distributed.mesh import Mesh
from evorl.distributed.world import World
from evorl.envs import EnvSpec
from evorl.office import Begin, Office, make_checkpoints, make_office
from evorl.pipeline.context import Context
from evorl.pipeline.save import Save
from evorl.rank import Rank, make_rank
from evorl.run_directory import RunDirectory

SPEEDUP, END = 1.8, 0.02  # the bars


def configured(agents: int) -> Any:
    """The defaults, eager: two processes that compile would measure the compiler."""
    given = {"env": {"id": "LunarLander-v3", "backend": "sync"}, "population": {"size": agents}}
    algorithm = {"learning_starts": 0}
    return parse_config({**given, "algorithm": algorithm, "compile": False})


class Loop:
    """A population on the ranks of a world, as the trainer runs it."""

    def __init__(self, world: World, config: Any, stack: ExitStack, folder: str = "") -> None:
        self.world, self.config = world, config
        self.rank: Rank = make_rank(config, world, EnvSpec(config.env.id, "sync"), stack)
        self.office: Office | None = None
        self.context, checkpoints = Context(config.population.size), None
        if world.main:
            directory = RunDirectory.create(folder, f"agents-{config.population.size}", "number")
            everybody, episodes = self.rank.everybody, self.rank.episodes
            self.office = make_office(
                config, directory, everybody, episodes, Console(quiet=True), world.data
            )
            checkpoints = make_checkpoints(config, directory)
        progress = self.office.progress if self.office else None
        parts = (config.checkpoint, checkpoints, self.rank.replays, progress)
        self.save = Save(world, *parts, shared=True)
        Begin(world, config, self.office, self.rank.everybody).anew(self.context)
        self.rank.spread(self.context)

    def rounds(self, count: int) -> None:
        """So many steps of every environment, with the updates that they call for."""
        for _ in range(count):
            self.rank.collect(self.context)
            self.rank.learn(self.context)

    def end(self) -> float:
        """The end of a generation; its seconds without the evaluation."""
        context, rank = self.context, self.rank
        rank.evaluate(context)
        start = time.perf_counter()
        rank.gather(context)
        seconds = time.perf_counter() - start
        if self.office:
            self.office.hall(context)
            self.office.budget(context)
        start = time.perf_counter()
        if self.office and self.office.evolve:
            self.office.evolve(context)
        for stage in (rank.turn, rank.inherit, self.save, rank.spread, rank.gather.begin):
            stage(context)
        return seconds + time.perf_counter() - start


def timed(world: World, work: Callable[[], object]) -> float:
    """Seconds until the last rank is done."""
    world.meet("before")
    start = time.perf_counter()
    work()
    world.agree(False)
    return time.perf_counter() - start


def main_only(world: World, work: Callable[[], object]) -> Callable[[], object]:
    """Work for the main rank; the others wait without using a core."""
    return lambda: (work() if world.main else None, world.meet("alone"))


@click.command()
@click.option("--turns", default=7, show_default=True)
@click.option("--rounds", default=150, show_default=True, help="Steps of each environment a turn.")
def main(turns: int, rounds: int) -> None:
    """Measure, print, and exit with 1 if a bar is not met."""
    with ExitStack() as stack:
        world = World.start(agents=8)
        stack.callback(world.close)
        if world.size != 2:
            raise SystemExit("two ranks are wanted: see --help")
        alone = World(world.accelerator, Mesh(1, 1), 600.0)
        pair = World(world.accelerator, Mesh(1, 2), 600.0)
        folder = stack.enter_context(TemporaryDirectory())
        lines, met = [], True

        split = Loop(world, configured(8), stack, folder)
        whole = Loop(alone, configured(8), stack, folder) if world.main else None
        one: Callable[[], object] = (lambda: whole.rounds(rounds)) if whole else (lambda: None)
        two, single = lambda: split.rounds(rounds), main_only(world, one)
        for work in (two, single):  # to warm up
            for _ in range(2):
                timed(world, work)
        ratios = [timed(world, single) / timed(world, two) for _ in range(turns)]
        speedup = statistics.median(ratios)
        lines.append(f"population: two ranks {speedup:.2f}× one (at least {SPEEDUP}×)")
        met &= speedup >= SPEEDUP

        both = Loop(pair, configured(8), stack, folder)
        together = lambda: both.rounds(rounds)  # noqa: E731
        timed(world, together)
        loops = [loop.context for loop in (both, whole) if loop]
        before = [(c.timer.seconds["update"], c.updates) for c in loops]
        for _ in range(max(1, turns // 2)):
            timed(world, together)
            timed(world, single)
        each = [  # milliseconds of an update of all eight agents
            8000 * (c.timer.seconds["update"] - seconds) / (c.updates - updates)
            for c, (seconds, updates) in zip(loops, before, strict=True)
        ]
        if world.main:
            lines.append(
                f"data: an update of eight agents takes {each[0]:.2f} ms on two ranks that average"
                f" gradients, {each[1]:.2f} ms on one that does not"
            )

        large = Loop(world, configured(16), stack, folder)
        shares = []
        for _ in range(2):
            training = timed(world, lambda: large.rounds(large.config.evaluation.every))
            end = large.end()
            shares.append(end / (training + end))
        lines.append(
            f"a generation's end at population 16: {shares[-1]:.1%} of it (at most {END:.0%})"
        )
        met &= shares[-1] <= END
        if world.main:
            print("\n".join([*lines, "all bars met" if met else "NOT all bars met"]))
            print(f"turns along population: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    raise SystemExit(not met)


if __name__ == "__main__":
    main()
