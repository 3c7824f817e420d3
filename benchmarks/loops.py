"""Whole training loops against Stable-Baselines3's, on one core: environment steps per second.

    python benchmarks/loops.py              # about five minutes, of which one compiling
    python benchmarks/loops.py --only ppo   # one of them
    python benchmarks/loops.py --write      # keep the figures as benchmarks/results/loops.json

Eight agents of evorl, compiled, and one of Stable-Baselines3 with the same networks, batches and
numbers of environments and updates train in turns, in one process with one thread, a few seconds
each. Steps are those of all agents together; a ratio is the median over the turns. Evaluation and
evolution have no part in it. The last line says `all bars met`, or which are not.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from stable_baselines3 import PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from throughput import Figure
from tqdm import tqdm

from evorl import Save, TrainingContext, World, make_run, parse_config, start_run

AGENTS, TURNS, SECONDS = 8, 7, 3.0
RESULTS = Path(__file__).parent / "results" / "loops.json"


class Contest(NamedTuple):
    """The same training twice, and how many times as fast evorl's should be."""

    env: str
    num_envs: int
    evorl: dict[str, Any]  # of the section `algorithm`
    network: dict[str, Any]
    peer: Callable[[Any], Any]  # Stable-Baselines3's model for its environments
    rounds: int  # steps of every environment in a slice, at least one rollout
    bar: float | None


def ppo(env: Any) -> Any:
    """Stable-Baselines3's defaults, but for eight environments."""
    return PPO("MlpPolicy", env, n_steps=256, batch_size=64, n_epochs=10, device="cpu")


def off_policy(kind: Any, hidden: int, **options: Any) -> Callable[[Any], Any]:
    """One update for each step, networks of two layers, batches of 128."""

    def make(env: Any) -> Any:
        layers = {"net_arch": [hidden, hidden]}
        given = {"batch_size": 128, "train_freq": 1, "gradient_steps": 1, "learning_starts": 100}
        return kind("MlpPolicy", env, policy_kwargs=layers, device="cpu", **given, **options)

    return make


def pendulum(name: str, hidden: int, peer: Callable[[Any], Any], bar: float | None) -> Contest:
    """An algorithm on Pendulum-v1, with one environment an agent."""
    own = {"name": name, "batch_size": 128, "learning_starts": 100}
    layers = {"hidden": [hidden, hidden], "activation": "relu"}
    return Contest("Pendulum-v1", 1, own, layers, peer, 500, bar)


NOISE = NormalActionNoise([0.0], [0.2])  # of an action between -2 and 2
CONTESTS = {
    "ppo": Contest(
        "CartPole-v1",
        8,
        {"name": "ppo", "rollout_steps": 256, "batch_size": 64, "epochs": 10},
        {"hidden": [64, 64], "activation": "tanh"},
        ppo,
        256,
        8.0,
    ),
    "sac": pendulum("sac", 64, off_policy(SAC, 64), 6.0),
    "td3": pendulum("td3", 64, off_policy(TD3, 64, action_noise=NOISE), 6.0),
    "sac, 256-256": pendulum("sac", 256, off_policy(SAC, 256), None),
}


class Population:
    """evorl's stages that collect and learn, as the trainer runs them."""

    def __init__(self, contest: Contest, stack: ExitStack) -> None:
        folder = stack.enter_context(TemporaryDirectory())
        config = parse_config(
            {
                "env": {"id": contest.env, "num_envs": contest.num_envs},
                "algorithm": contest.evorl,
                "network": contest.network,
                "population": {"size": AGENTS},
                "evaluation": {"every": 10**9},
                "budget": {"env_steps": 10**12},
                "replay": {"share": "agent"} if contest.evorl["name"] != "ppo" else {},
                "compile": True,
                "run": {"folder": folder},
            }
        )
        world = World.start(AGENTS)
        stack.callback(world.close)
        run = make_run(config, world, stack)
        self.stages, self.context = run.stages, TrainingContext(AGENTS)
        save = Save(world, run.config, run.storage, run.parts.replays, [])
        start_run(run, self.context, save)

    def run(self, rounds: int) -> int:
        """So many steps of every environment; how many these are."""
        before = self.context.env_steps
        for _ in range(rounds):
            self.stages.collect(self.context)
            self.stages.learn(self.context)
            self.context.iteration += 1
        return self.context.env_steps - before


class Peer:
    """Stable-Baselines3's own loop."""

    def __init__(self, contest: Contest) -> None:
        self.model = contest.peer(make_vec_env(contest.env, contest.num_envs, seed=1))
        self.num_envs = contest.num_envs

    def run(self, rounds: int) -> int:
        """So many steps of every environment; how many these are."""
        before = self.model.num_timesteps
        self.model.learn(rounds * self.num_envs, reset_num_timesteps=False)
        return int(self.model.num_timesteps - before)


def speed(run: Callable[[int], int], rounds: int) -> float:
    """Environment steps per second, over slices until a few seconds are gone."""
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        steps += run(rounds)
    return steps / (time.perf_counter() - start)


def measure(name: str, contest: Contest) -> list[Figure]:
    """Both in turns."""
    with ExitStack() as stack:
        population, peer = Population(contest, stack), Peer(contest)
        for run in (population.run, peer.run):  # to warm up, and to compile
            run(contest.rounds)
            run(contest.rounds)
        population.context.timer.seconds.clear()
        ours, theirs = [], []
        for _ in tqdm(range(TURNS), desc=name, disable=None, leave=False):
            ours.append(speed(population.run, contest.rounds))
            theirs.append(speed(peer.run, contest.rounds))
        shares = population.context.timer.shares()
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    title = f"{name} on {contest.env}"
    return [
        Figure(f"{title}: Stable-Baselines3, steps per second", statistics.median(theirs), ""),
        Figure(f"{title}: evorl, {AGENTS} agents, steps per second", statistics.median(ours), ""),
        Figure(f"{title}: times as many", ratio, "×", contest.bar),
        *(Figure(f"{title}: share of {part}", 100 * own, " %") for part, own in shares.items()),
    ]


def main() -> None:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=CONTESTS, nargs="+", help="some of them")
    parser.add_argument("--write", action="store_true", help="keep the figures as results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: list[Figure] = []
    for name in options.only or CONTESTS:
        found = measure(name, CONTESTS[name])
        figures += found
        for figure in found:
            print(figure.line(), flush=True)
    missed = [figure.name for figure in figures if not figure.met]
    verdict = "all bars met" if not missed else "not met: " + "; ".join(missed)
    if options.write:
        told = [figure._asdict() | {"met": figure.met} for figure in figures]
        kept = json.dumps({"figures": told, "verdict": verdict}, indent=2, ensure_ascii=False)
        RESULTS.write_text(kept + "\n")
    print(verdict)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
