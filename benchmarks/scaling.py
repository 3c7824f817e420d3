"""What a second rank brings, and what ranks cost: ratios measured in one launch, in turns.

    python benchmarks/scaling.py                        # about nine minutes; launches two ranks
    python benchmarks/scaling.py env.backend=envpool    # any option of a run can be set

LunarLander-v3. Along population: eight agents on two ranks against all eight on one of them while
the other waits. How much two processes can gain at all depends on the machine and on what else it
is doing, so a plain PyTorch loop that shares nothing takes turns with them, in one process and in
two: the bar is on the gain as a share of the plain loop's, of two. Ranks meet at the end of a
generation, so the slower one of each generation counts. Along data: an update of two ranks together
against one without the other. And the end of a generation (gather, evolve, checkpoint, reload) at
population 16, against the whole of it.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import gymnasium as gym
import numpy as np
import torch

from evorl import RunConfig, Save, TrainingContext, World, make_run, parse_config, start_run
from evorl.distributed import Mesh

SPEEDUP, END = 1.8, 0.02  # the bars
SLICES = 20  # of a generation: who is measured takes turns, as the machine's speed changes
CONFIG = Path(__file__).parents[1] / "configs" / "accelerate" / "cpu.yaml"


OVERRIDES: list[str] = []  # of the command line


def configured(folder: str, agents: int, *overrides: str) -> RunConfig:
    """The defaults, compiled as longer runs are, but for what the command line says."""
    given = {"env": {"id": "LunarLander-v3", "backend": "sync"}, "population": {"size": agents}}
    algorithm = {"learning_starts": 0}
    budget = {"env_steps": 10**9}
    config = {**given, "algorithm": algorithm, "budget": budget, "compile": True}
    config["run"] = {"folder": folder, "if_exists": "number"}
    return parse_config(config, [*OVERRIDES, *overrides])


class Loop:
    """A population on the ranks of a world, as the trainer runs it."""

    def __init__(self, world: World, config: RunConfig, stack: ExitStack) -> None:
        self.world, self.config = world, config
        run = make_run(config, world, stack)
        self.stages, self.context = run.stages, TrainingContext(run.parts.population.size)
        stateful = [stage for stage in (run.stages.champion, run.stages.evolve) if stage]
        self.save = Save(world, run.config, run.storage, run.parts.replays, stateful)
        start_run(run, self.context, self.save)

    def rounds(self, count: int) -> None:
        """So many steps of every environment, with the updates that they call for."""
        for _ in range(count):
            self.stages.collect(self.context)
            self.stages.learn(self.context)

    def end(self) -> float:
        """The end of a generation; its seconds without the evaluation."""
        context, stages = self.context, self.stages
        stages.evaluate(context)
        self.world.any_rank(False)  # the other rank may play longer: that is no cost of gathering
        begun = time.perf_counter()
        stages.gather(context)
        seconds = time.perf_counter() - begun
        stages.champion(context)
        if self.world.main:
            stages.budget(context)
        begun = time.perf_counter()
        if self.world.main and stages.evolve:
            stages.evolve(context)
        for stage in (stages.end_episodes, stages.inherit, self.save, stages.broadcast):
            stage(context)
        return seconds + time.perf_counter() - begun


class Plain:
    """One agent's DQN loop in plain PyTorch: what a process on its own does."""

    def __init__(self, environments: int = 4, batch: int = 64) -> None:
        self.envs = [gym.make("LunarLander-v3") for _ in range(environments)]
        self.obs = np.stack([env.reset(seed=i)[0] for i, env in enumerate(self.envs)])
        self.online, self.target = (
            torch.nn.Sequential(
                *(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)),
                *(torch.nn.ReLU(), torch.nn.Linear(64, 4)),
            )
            for _ in range(2)
        )
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-3)
        self.batch, self.next_obs = torch.randn(batch, 8), torch.randn(batch, 8)
        self.action, self.reward = torch.randint(4, (batch, 1)), torch.randn(batch)

    def rounds(self, count: int) -> None:
        """So many steps of every environment, with an update after each."""
        for _ in range(count):
            with torch.no_grad():
                actions = self.online(torch.from_numpy(self.obs)).argmax(1).tolist()
            for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
                obs, _, terminated, truncated, _ = env.step(action)
                self.obs[i] = env.reset()[0] if terminated or truncated else obs
            with torch.no_grad():
                wanted = self.reward + 0.99 * self.target(self.next_obs).amax(1)
            values = self.online(self.batch).gather(1, self.action).squeeze(1)
            self.optimizer.zero_grad()
            torch.nn.functional.smooth_l1_loss(values, wanted).backward()
            self.optimizer.step()


def timed(world: World, work: Callable[[], object]) -> float:
    """The seconds of this rank's work; all begin together."""
    world.any_rank(False)
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    world.barrier("done")  # who is done waits without using a core
    return seconds


def main_only(world: World, work: Callable[[], object]) -> Callable[[], object]:
    """Work for the main rank; the others wait."""
    return work if world.main else lambda: None


def in_slices(
    world: World, works: dict[str, Callable[[], object]], generations: int
) -> list[dict[str, float]]:
    """This rank's seconds for each work, by generation: a slice of each in turn."""
    totals = []
    for _ in range(generations):
        total = dict.fromkeys(works, 0.0)
        for _ in range(SLICES):
            for name, work in works.items():
                total[name] += timed(world, work)
        totals.append(total)
    return totals


def measure(generations: int, world: World, stack: ExitStack) -> dict[str, Any]:
    """Everything, on every rank: each finds its own seconds."""
    alone = World(world.accelerator, Mesh(1, 1), 600.0)
    pair = World(world.accelerator, Mesh(1, 2), 600.0)
    folder = stack.enter_context(TemporaryDirectory())

    split, plain = Loop(world, configured(folder, 8), stack), Plain()
    whole = Loop(alone, configured(folder, 8), stack) if world.main else None
    rounds = split.config.evaluation.every // SLICES
    one: Callable[[], object] = (lambda: whole.rounds(rounds)) if whole else (lambda: None)
    works: dict[str, Callable[[], object]] = {
        "one": main_only(world, one),
        "two": lambda: split.rounds(rounds),
        "plain one": main_only(world, lambda: plain.rounds(5 * rounds)),
        "plain two": lambda: plain.rounds(5 * rounds),
    }
    for work in works.values():  # to warm up
        for _ in range(5):
            timed(world, work)
    seconds = in_slices(world, works, generations)

    both = Loop(pair, configured(folder, 8, "compile=false"), stack)  # data is never compiled
    alike = Loop(alone, configured(folder, 8, "compile=false"), stack) if world.main else None
    alone_too: Callable[[], object] = (lambda: alike.rounds(rounds)) if alike else (lambda: None)
    timed(world, lambda: both.rounds(rounds))
    timed(world, main_only(world, alone_too))
    loops = [loop.context for loop in (both, alike) if loop]
    before = [(c.timer.seconds["update"], c.updates) for c in loops]
    for _ in range(SLICES):
        timed(world, lambda: both.rounds(rounds))
        timed(world, main_only(world, alone_too))
    each = [  # milliseconds of an update of all eight agents
        8000 * (c.timer.seconds["update"] - seconds) / (c.updates - updates)
        for c, (seconds, updates) in zip(loops, before, strict=True)
    ]

    large = Loop(world, configured(folder, 16), stack)
    shares, speeds, steps = [], [], 16 * large.config.env.num_envs * large.config.evaluation.every
    for _ in range(3):
        training = timed(world, lambda: large.rounds(large.config.evaluation.every))
        end = large.end()
        shares.append(end / (training + end))
        speeds.append(steps / training)
    parts = large.context.timer.shares()
    return {
        "seconds": seconds,
        "update": each,
        "shares": shares,
        "speeds": speeds,
        "parts": {name: parts[name] for name in ("act", "step", "store", "sample", "update")},
    }


def report(ranks: list[dict[str, Any]]) -> bool:
    """Print the figures; whether all bars are met. The slower rank of a generation counts."""
    found, generations = ranks[0], zip(*(rank["seconds"] for rank in ranks), strict=True)
    seconds = [{name: max(own[name] for own in both) for name in both[0]} for both in generations]
    gains = [each["one"] / each["two"] for each in seconds]
    plain = [2 * each["plain one"] / each["plain two"] for each in seconds]
    gain, possible = statistics.median(gains), statistics.median(plain)
    fair = statistics.median(2 * g / p for g, p in zip(gains, plain, strict=True))
    end = statistics.median(found["shares"])
    print(f"population: two ranks make {gain:.2f}× the steps of one per second")
    print(f"  two plain loops that share nothing make {possible:.2f}× those of one")
    print(f"  so two ranks gain {fair:.2f}× where 2× is possible (at least {SPEEDUP}×)")
    by_generation = [f"{g:.2f} of {p:.2f}" for g, p in zip(gains, plain, strict=True)]
    print(f"  by generation: {', '.join(by_generation)}")
    print(
        f"data: an update of eight agents takes {found['update'][0]:.2f} ms on two ranks that"
        f" average gradients, {found['update'][1]:.2f} ms on one that does not"
    )
    print(f"a generation's end at population 16: {end:.1%} of it (at most {END:.0%})")
    speed = statistics.median(min(both) for both in zip(*(r["speeds"] for r in ranks), strict=True))
    parts = ", ".join(f"{name} {share:.0%}" for name, share in found["parts"].items())
    print(f"two ranks at population 16: {speed:,.0f} environment steps per second ({parts})")
    met = fair >= SPEEDUP and end <= END
    print("all bars met" if met else "NOT all bars met")
    return met


@click.command()
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
@click.option("--generations", default=10, show_default=True)
@click.option("--rank", hidden=True, help="Where a rank writes what it measured.")
def main(overrides: tuple[str, ...], generations: int, rank: str | None) -> None:
    """Measure, print, and exit with 1 if a bar is not met."""
    OVERRIDES.extend(overrides)
    if rank is None:
        with TemporaryDirectory() as folder:
            results = Path(folder, "rank")
            launch = ["-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", CONFIG]
            options = [f"--generations={generations}", f"--rank={results}", *overrides]
            subprocess.run([sys.executable, *launch, __file__, *options], check=True)
            found = [json.loads(Path(f"{results}{i}.json").read_text()) for i in range(2)]
            raise SystemExit(not report(found))
    with ExitStack() as stack:
        world = World.start(agents=8)
        stack.callback(world.close)
        if world.size != 2:
            raise SystemExit(f"two ranks are wanted, got {world.size}: see {CONFIG}")
        found = measure(generations, world, stack)
        Path(f"{rank}{world.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
