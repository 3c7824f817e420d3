"""What evolution costs: environment steps per second with it and without, compiled.

    python benchmarks/overhead.py      # about six minutes

LunarLander-v3, eight agents, the default generation length. Two runs take turns in one process,
generation by generation: one evolves, one does not. The time of evaluations is left out: it depends
on how good the agents are. A generation in which a program was compiled is shown, but the median
passes over it.
"""

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch
from tqdm import tqdm

from evorl.config import parse_config
from evorl.envs import EnvSpec, make_episodes, make_vector_env
from evorl.parts import make_evolve, make_population, make_problem, make_replay
from evorl.pipeline.collect import Collect
from evorl.pipeline.context import Context
from evorl.pipeline.evaluate import Evaluate
from evorl.pipeline.hall_of_fame import HallOfFame
from evorl.pipeline.learn import Learn
from evorl.run_directory import RunDirectory

AGENTS, ENVS, EPISODES, BAR = 8, 8, 2, 0.90


class Loop:
    """The stages of a run as the trainer runs them, evaluations apart."""

    def __init__(self, folder: Path, evolving: bool, compiled: bool, overrides: list[str]) -> None:
        config = parse_config(
            {
                "env": {"id": "LunarLander-v3", "num_envs": ENVS},
                "algorithm": {"learn_step": 2},
                "population": {"size": AGENTS},
                "evaluation": {"episodes": EPISODES, "max_steps": 300},
                "compile": compiled,
            },
            overrides,
        )
        spec = EnvSpec(config.env.id, "sync")
        self.env = make_vector_env(spec, AGENTS, ENVS)
        self.episodes = make_episodes(spec, AGENTS * EPISODES)
        self.population = make_population(
            config, make_problem(self.env.observation, self.env.num_actions)
        )
        buffer, sampler = make_replay(config, self.env.observation)
        self.collect = Collect(self.population, self.env, buffer, sampler, n_step=1, seed=1)
        self.learn = Learn(self.population, buffer, sampler)
        self.evaluate = Evaluate(self.population, self.episodes, config.evaluation, seed=1)
        directory = RunDirectory.create(folder, f"evolving-{evolving}")
        self.hall = HallOfFame(
            self.population,
            self.episodes,
            directory,
            config.evaluation,
            env_id=config.env.id,
            seed=1,
        )
        parts = (self.population, sampler, self.hall, directory)
        self.evolve = make_evolve(config, *parts) if evolving else None
        self.context, self.every = Context(AGENTS), config.evaluation.every
        self.seconds = 0.0  # of all generations

    def generation(self) -> float:
        """Train, evaluate and evolve; environment steps per second without the evaluation."""
        before, start = self.context.env_steps, time.perf_counter()
        for _ in range(self.every):
            self.collect(self.context)
            self.learn(self.context)
        seconds = time.perf_counter() - start
        self.evaluate(self.context)
        self.hall(self.context)
        start = time.perf_counter()
        self.collect.end_generation()
        if self.evolve is not None:
            self.evolve(self.context)
        self.context.generation += 1
        seconds += time.perf_counter() - start
        self.seconds += seconds
        return (self.context.env_steps - before) / seconds

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
    with TemporaryDirectory() as folder:
        loops = {
            name: Loop(Path(folder), name == "with", not eager, list(overrides))
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
        for loop in loops.values():
            loop.env.close()
            loop.episodes.close()
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
