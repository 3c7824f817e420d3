"""What evolution costs: environment steps per second with it and without, compiled.

    python benchmarks/overhead.py      # about seven minutes

LunarLander-v3, eight agents, all else by default, but for short evaluations: their time is left
out, as it depends on how good the agents are. Two runs take turns in one process, a twentieth of a
generation each: one evolves, one does not; and that with three seeds, as what evolution does to the
networks is luck. The bar is on all generations of all seeds together in which no program was
compiled; those with one are shown. In the first one both are alike, and need the same program.

Where evolution prefers larger networks, all steps become dearer, however well it is programmed. So
there is a second figure: throughput as a share of what the other run would make if its updates took
longer by as much as the networks have grown.
"""

import math
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import click
import torch
from tqdm import tqdm

from evorl import Save, TrainingContext, World, make_run, parse_config, start_run
from evorl.networks import row_shapes

AGENTS, BAR = 8, 0.90
SLICES = 20  # of a generation


class Loop:
    """The stages of a run as the trainer runs them, without checkpoints."""

    def __init__(
        self, folder: Path, stack: ExitStack, evolving: bool, compiled: bool, overrides: list[str]
    ) -> None:
        config = parse_config(
            {
                "name": f"evolving-{evolving}",
                "env": {"id": "LunarLander-v3", "backend": "sync"},
                "population": {"size": AGENTS},
                "evaluation": {"episodes": 3, "max_steps": 500, "confirm_episodes": 3},
                "evolution": {"method": "evolution" if evolving else "none"},
                "budget": {"env_steps": 10**9},
                "compile": compiled,
                "run": {"folder": str(folder)},
            },
            overrides,
        )
        world = World.start(AGENTS)
        stack.callback(world.close)
        run = make_run(config, world, stack)
        self.stages, self.population = run.stages, run.parts.population
        self.context = TrainingContext(AGENTS)
        save = Save(world, run.config, run.storage, run.parts.replays, [])  # writes nothing here
        start_run(run, self.context, save)
        self.slice = max(1, config.evaluation.every // SLICES)  # rounds

    def begin(self) -> None:
        """Begin a generation."""
        self.before, self.spent = self.context.env_steps, 0.0
        self.updating = self.context.timer.seconds["update"]

    def train(self, rounds: int) -> bool:
        """So many rounds, or what is left of the generation; whether something is."""
        stages, context, begun = self.stages, self.context, time.perf_counter()
        until = min(context.iteration + rounds, context.ends)
        while context.iteration < until:
            stages.collect(context)
            stages.learn(context)
            context.iteration += 1
        self.spent += time.perf_counter() - begun
        return context.iteration < context.ends

    def end(self) -> float:
        """Evaluate and evolve; the generation's steps per second without the evaluation."""
        stages, context = self.stages, self.context
        stages.evaluate(context)
        begun = time.perf_counter()
        stages.gather(context)
        self.spent += time.perf_counter() - begun
        stages.champion(context)
        stages.budget(context)
        begun = time.perf_counter()
        if stages.evolve is not None:
            stages.evolve(context)
        stages.end_episodes(context)
        stages.inherit(context)
        stages.broadcast(context)
        self.spent += time.perf_counter() - begun
        self.updating = self.context.timer.seconds["update"] - self.updating
        return (context.env_steps - self.before) / self.spent

    def weights(self) -> int:
        """Of all agents, without padding: as many multiply-adds has a forward pass."""
        specs, genomes = self.population.specs, self.population.genomes
        each = (row_shapes(specs, genome.architectures) for genome in genomes)
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


class Paired(NamedTuple):
    """One generation of both runs."""

    seconds: dict[str, float]
    growth: float  # how much larger the networks of the run are that evolves
    share: float  # of the other run's time that updates took
    compiled: bool

    @property
    def ratio(self) -> float:
        """Throughput with evolution, of that without."""
        return self.seconds["without"] / self.seconds["with"]

    @property
    def fair(self) -> float:
        """The same for networks of this size."""
        return self.ratio * (1 + self.share * (self.growth - 1))


def measure(seed: int, generations: int, eager: bool, overrides: Sequence[str]) -> list[Paired]:
    """Both runs with one seed; prints every generation, and how many programs each needed."""
    programs, found = {"with": 0, "without": 0}, []
    with TemporaryDirectory() as folder, ExitStack() as stack:
        loops = {
            name: Loop(Path(folder), stack, name == "with", not eager, [f"seed={seed}", *overrides])
            for name in programs
        }
        for number in tqdm(range(generations), unit="generation", leave=False, disable=None):
            new = one_generation(loops)
            growth = loops["with"].weights() / loops["without"].weights()
            groups = _groups(loops["with"])
            rates = {name: loop.end() for name, loop in loops.items()}
            for name, count in new.items():
                programs[name] += count
            share = loops["without"].updating / loops["without"].spent
            seconds = {name: loop.spent for name, loop in loops.items()}
            paired = Paired(seconds, growth, share, any(new.values()))
            found.append(paired)
            tqdm.write(
                f"seed {seed}, generation {number}: {rates['with']:,.0f} against"
                f" {rates['without']:,.0f} steps/s, {paired.ratio:.0%}; networks {growth:.2f}× as"
                f" large: {paired.fair:.0%}; {groups}"
                + (f"; compiled {new['with']} programs" if new["with"] else "")
                + (", as both need" * (number == 0 and not eager))
            )
    later = found[1:]
    print(
        f"seed {seed}: {together(settled(found)):.0%}, networks {found[-1].growth:.2f}× as large;"
        f" with compiling {together(later):.0%}; programs compiled: {programs['with']} with"
        f" evolution, {programs['without']} without"
    )
    return found


def settled(found: Sequence[Paired]) -> list[Paired]:
    """The generations in which nothing was compiled."""
    return [each for each in found if not each.compiled]


def together(found: Sequence[Paired]) -> float:
    """Throughput with evolution over all these generations, of that without."""
    without, with_it = (sum(each.seconds[name] for each in found) for name in ("without", "with"))
    return without / with_it


@click.command()
@click.argument("overrides", nargs=-1)
@click.option("--generations", default=8, show_default=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--eager", is_flag=True, help="Without compiling.")
def main(overrides: tuple[str, ...], generations: int, seeds: int, eager: bool) -> None:
    """Measure, print, and exit with 1 if the bar is not met."""
    torch.set_num_threads(1)
    found: list[Paired] = []
    for seed in range(1, seeds + 1):
        torch._dynamo.reset()  # what another run has compiled
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = (cache := TemporaryDirectory()).name
        with cache:
            if not eager:
                torch.compile(torch.neg)(torch.ones(1))  # torch's own checks of the machine
            found += measure(seed, generations, eager, overrides)
    kept = settled(found)
    fair = statistics.fmean(each.fair for each in kept)
    print(f"throughput with evolution, of that without: {together(kept):.0%} (at least {BAR:.0%})")
    print(f"  for networks as large as they became: {fair:.0%}")
    raise SystemExit(together(kept) < BAR)


def _groups(loop: Loop) -> str:
    population, each = loop.population, []
    for kind, group in zip(population.kinds, population.groups, strict=True):
        widths = ["-".join(map(str, own.widths)) for own in kind.signatures]
        each.append(f"{group.size} × {' and '.join(widths)} wide")
    return "groups " + ", ".join(each)


if __name__ == "__main__":
    main()
