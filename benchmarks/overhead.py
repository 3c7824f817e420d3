"""What evolution costs: environment steps per second with it and without, compiled.

    python benchmarks/overhead.py      # about four minutes

LunarLander-v3, eight agents, all else by default, but for short evaluations: their time is left
out, as it depends on how good the agents are. Two runs take turns in one process, a twentieth of a
generation each: one evolves, one does not. A generation in which a program was compiled is shown,
but the median passes over it. The total counts it, against evolution: programs that both need are
compiled by the run that evolves, and the other one takes them from there.

Where evolution prefers larger networks, all steps become dearer, however well it is programmed. So
there are two figures: throughput as it is, and as a share of what the other run would make if its
updates took longer by as much as the networks have grown. The bar is on the first.
"""

import math
import os
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch
from tqdm import tqdm

from evorl.config import parse_config
from evorl.console import Console
from evorl.distributed.world import World
from evorl.envs import EnvSpec
from evorl.networks.layout import shapes
from evorl.office import Begin, make_office
from evorl.pipeline.context import Context
from evorl.rank import make_rank
from evorl.run_directory import RunDirectory

AGENTS, BAR = 8, 0.90
SLICES = 20  # of a generation


class Loop:
    """The stages of a run as the trainer runs them, without checkpoints."""

    def __init__(
        self, folder: Path, stack: ExitStack, evolving: bool, compiled: bool, overrides: list[str]
    ) -> None:
        config = parse_config(
            {
                "env": {"id": "LunarLander-v3"},
                "population": {"size": AGENTS},
                "evaluation": {"episodes": 3, "max_steps": 500, "confirm_episodes": 3},
                "evolution": {"method": "evolution" if evolving else "none"},
                "budget": {"env_steps": 10**9},
                "compile": compiled,
            },
            overrides,
        )
        world = World.start(AGENTS)
        stack.callback(world.close)
        self.rank = rank = make_rank(config, world, EnvSpec(config.env.id, "sync"), stack)
        directory = RunDirectory.create(folder, f"evolving-{evolving}")
        console = Console(quiet=True)
        self.office = make_office(config, directory, rank.everybody, rank.episodes, console)
        self.population, self.context = rank.population, Context(AGENTS)
        Begin(world, config, self.office, rank.everybody).anew(self.context)
        rank.spread(self.context)
        self.seconds = 0.0  # of all generations
        self.slice = max(1, config.evaluation.every // SLICES)  # rounds

    def begin(self) -> None:
        """Begin a generation."""
        self.rank.gather.begin(self.context)
        self.before, self.spent = self.context.env_steps, 0.0
        self.updating = self.context.timer.seconds["update"]

    def train(self, rounds: int) -> bool:
        """So many rounds, or what is left of the generation; whether something is."""
        rank, context, start = self.rank, self.context, time.perf_counter()
        until = min(context.iteration + rounds, context.ends)
        while context.iteration < until:
            rank.collect(context)
            rank.learn(context)
            context.iteration += 1
        self.spent += time.perf_counter() - start
        return context.iteration < context.ends

    def end(self) -> float:
        """Evaluate and evolve; the generation's steps per second without the evaluation."""
        rank, context = self.rank, self.context
        rank.evaluate(context)
        start = time.perf_counter()
        rank.gather(context)
        self.spent += time.perf_counter() - start
        self.office.hall(context)
        self.office.budget(context)
        start = time.perf_counter()
        if self.office.evolve is not None:
            self.office.evolve(context)
        rank.turn(context)
        rank.inherit(context)
        rank.spread(context)
        self.spent += time.perf_counter() - start
        self.seconds += self.spent
        self.updating = self.context.timer.seconds["update"] - self.updating
        return (context.env_steps - self.before) / self.spent

    def weights(self) -> int:
        """Of all agents, without padding: as many multiply-adds has a forward pass."""
        problem = self.population.problem
        each = (shapes(problem, genome.architecture) for genome in self.population.genomes)
        return sum(math.prod(shape) for own in each for shape in own.values())

    def programs(self) -> int:
        """Programs compiled so far in this process."""
        return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def one_generation(loops: dict[str, Loop]) -> dict[str, int]:
    """Train both, a slice of each in turn; how many programs were compiled for each."""
    new = dict.fromkeys(loops, 0)
    for loop in loops.values():
        loop.begin()
    going = list(loops)
    while going:
        for name in list(going):
            before = loops[name].programs()
            if not loops[name].train(loops[name].slice):
                going.remove(name)
            new[name] += loops[name].programs() - before
    return new


@click.command()
@click.argument("overrides", nargs=-1)
@click.option("--generations", default=10)
@click.option("--eager", is_flag=True, help="Without compiling.")
def main(overrides: tuple[str, ...], generations: int, eager: bool) -> None:
    """Measure, print, and exit with 1 if the bar is not met."""
    torch.set_num_threads(1)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = (cache := TemporaryDirectory()).name  # nothing in it
    if not eager:
        torch.compile(torch.neg)(torch.ones(1))  # torch's own checks of compiler and machine
    ratios: list[tuple[float, float]] = []  # as it is, and for networks of this size
    compiled_in: dict[str, int] = {"with": 0, "without": 0}
    with cache, TemporaryDirectory() as folder, ExitStack() as stack:
        loops = {
            name: Loop(Path(folder), stack, name == "with", not eager, list(overrides))
            for name in ("with", "without")
        }
        for number in tqdm(range(generations), unit="generation", disable=None):
            new = one_generation(loops)
            growth = loops["with"].weights() / loops["without"].weights()
            groups = _groups(loops["with"])
            rates = {name: loop.end() for name, loop in loops.items()}
            for name, count in new.items():
                compiled_in[name] += count
            share = loops["without"].updating / loops["without"].spent
            ratio = rates["with"] / rates["without"]
            fair = ratio * (1 + share * (growth - 1))
            if number > 0 and not any(new.values()):
                ratios.append((ratio, fair))
            tqdm.write(
                f"generation {number}: {rates['with']:,.0f} against {rates['without']:,.0f}"
                f" steps/s, {ratio:.0%}; networks {growth:.2f}× as large: {fair:.0%}; {groups}"
                + (f"; compiled {new['with']} programs" if new["with"] else "")
            )
    totals = [loop.context.env_steps / loop.seconds for loop in loops.values()]
    whole = totals[0] / totals[1]
    raw, fair = map(statistics.median, zip(*ratios or [(whole, whole)], strict=True))
    print(f"with compiling, over all generations: {whole:.0%}")
    print(
        f"programs compiled: {compiled_in['with']} with evolution, {compiled_in['without']} without"
    )
    print(f"throughput with evolution, of that without: {raw:.0%} (at least {BAR:.0%})")
    print(f"  for networks as large as they became: {fair:.0%}")
    raise SystemExit(raw < BAR)


def _groups(loop: Any) -> str:
    widths = ["-".join(map(str, group.layout.signature.widths)) for group in loop.population.groups]
    sizes = [group.size for group in loop.population.groups]
    each = zip(sizes, widths, strict=True)
    return "groups " + ", ".join(f"{size} × {width} wide" for size, width in each)


if __name__ == "__main__":
    main()
