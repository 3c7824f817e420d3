"""What evolution costs: environment steps per second with it and without, compiled.

    python benchmarks/overhead.py      # about six minutes

LunarLander-v3, eight agents, the default generation length. Two runs take turns in one process,
generation by generation: one evolves, one does not. The time of evaluations is left out: it depends
on how good the agents are. A generation in which a program was compiled is shown, but the median
passes over it.
"""

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
from evorl.office import Begin, make_office
from evorl.pipeline.context import Context
from evorl.rank import make_rank
from evorl.run_directory import RunDirectory

AGENTS, ENVS, EPISODES, BAR = 8, 8, 2, 0.90


class Loop:
    """The stages of a run as the trainer runs them, without checkpoints."""

    def __init__(
        self, folder: Path, stack: ExitStack, evolving: bool, compiled: bool, overrides: list[str]
    ) -> None:
        config = parse_config(
            {
                "env": {"id": "LunarLander-v3", "num_envs": ENVS},
                "algorithm": {"learn_step": 2},
                "population": {"size": AGENTS},
                "evaluation": {"episodes": EPISODES, "max_steps": 300, "confirm_episodes": 2},
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

    def generation(self) -> float:
        """Train, evaluate and evolve; environment steps per second without the evaluation."""
        rank, context = self.rank, self.context
        before, start = context.env_steps, time.perf_counter()
        rank.gather.begin(context)
        while context.iteration < context.ends:
            rank.collect(context)
            rank.learn(context)
            context.iteration += 1
        seconds = time.perf_counter() - start
        rank.evaluate(context)
        start = time.perf_counter()
        rank.gather(context)
        seconds += time.perf_counter() - start
        self.office.hall(context)
        self.office.budget(context)
        start = time.perf_counter()
        if self.office.evolve is not None:
            self.office.evolve(context)
        rank.turn(context)
        rank.inherit(context)
        rank.spread(context)
        seconds += time.perf_counter() - start
        self.seconds += seconds
        return (context.env_steps - before) / seconds

    def programs(self) -> int:
        """Programs compiled so far in this process."""
        return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@click.command()
@click.argument("overrides", nargs=-1)
@click.option("--generations", default=10)
@click.option("--eager", is_flag=True, help="Without compiling.")
def main(overrides: tuple[str, ...], generations: int, eager: bool) -> None:
    """Measure, print, and exit with 1 if the bar is not met."""
    torch.set_num_threads(1)
    ratios: list[float] = []
    compiled_in: dict[str, int] = {"with": 0, "without": 0}
    with TemporaryDirectory() as folder, ExitStack() as stack:
        loops = {
            name: Loop(Path(folder), stack, name == "with", not eager, list(overrides))
            for name in ("without", "with")
        }
        for number in tqdm(range(generations), unit="generation", disable=None):
            rates: dict[str, float] = {}
            new: dict[str, int] = {}
            for name, loop in loops.items():
                before = loop.programs()
                rates[name] = loop.generation()
                new[name] = loop.programs() - before
                compiled_in[name] += new[name]
            ratio = rates["with"] / rates["without"]
            if number > 0 and not any(new.values()):
                ratios.append(ratio)
            tqdm.write(
                f"generation {number}: {rates['with']:,.0f} against {rates['without']:,.0f}"
                f" steps/s, {ratio:.0%}; {_groups(loops['with'])}"
                + (f"; compiled {new['with']} programs" if new["with"] else "")
            )
    totals = [loop.context.env_steps / loop.seconds for loop in loops.values()]
    share = statistics.median(ratios or [totals[1] / totals[0]])
    print(f"with compiling, over all generations: {totals[1] / totals[0]:.0%}")
    print(
        f"programs compiled: {compiled_in['with']} with evolution, {compiled_in['without']} without"
    )
    print(f"throughput with evolution, of that without: {share:.0%} (at least {BAR:.0%})")
    raise SystemExit(share < BAR)


def _groups(loop: Any) -> str:
    return "groups " + ", ".join(
        f"{group.size} × {group.layout.signature.width} wide × {group.layout.depth} deep"
        for group in loop.population.groups
    )


if __name__ == "__main__":
    main()
