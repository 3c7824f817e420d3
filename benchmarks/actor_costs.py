"""What a message of an actor costs: to play it, to check and keep it, to learn from it.

    python benchmarks/actor_costs.py        # three minutes on one core

Everything is in one process, in lock-step with one actor, so that nothing waits: the seconds are
those of an actor (play) and of its learner (publish, store, sample, update), each of which has a
core of its own in reality, and the bytes what goes up and down. They are seconds of a core, so that
it matters little what else runs on the machine. Without the bus: that is benchmarks/star.py. Two
sizes of a message give what one costs, and what a step costs: constants of
benchmarks/scaling_model.py.
"""

import json
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch
from star import add

from evorl import TrainingContext, World, load_config, make_run, start_run
from evorl.actors import InlineExchange
from evorl.pipeline.training_context import Timed, Timer

CONFIGS = Path(__file__).parents[1] / "configs"
CASES = {  # by name: the configuration, environments of an agent in two messages, its steps
    "A3C, CartPole": ("a3c/cartpole.yaml", (8, 32), 8),
    "IMPALA, CartPole": ("impala/cartpole.yaml", (8, 32), 20),
    "IMPALA, LunarLander": ("impala/lunar_lander.yaml", (8, 32), 32),
    "Ape-X DQN, CartPole": ("apex_dqn/cartpole.yaml", (8, 32), 16),
}
AGENTS = 4
LEARNER = ("publish", "store", "sample", "update")
WARM, COUNT = 10, 60  # messages before it is timed, and then


class Cores(Timer):
    """Counts seconds of a core."""

    def __call__(self, name: str) -> Timed:
        """Time what runs inside."""
        return OfCore(self.seconds, name)


class OfCore(Timed):
    """Seconds that this process computes, and not those that it waits."""

    def __enter__(self) -> None:
        self.start = time.process_time()

    def __exit__(self, *raised: object) -> None:
        self.seconds[self.name] += time.process_time() - self.start


class Weighed(InlineExchange):
    """Counts the bytes that would travel."""

    up = down = 0

    def _publish(self, weights: Any, version: int) -> None:
        Weighed.down = size_of(weights)
        super()._publish(weights, version)

    def _take(self) -> Any:
        found = super()._take()
        Weighed.up = size_of(found[0].fields)
        return found


def size_of(fields: Any) -> int:
    """The bytes of tensors and arrays."""
    return sum(value.nbytes for value in fields.values() if hasattr(value, "nbytes"))


def measure(path: str, num_envs: int, folder: str) -> dict[str, float]:
    """Milliseconds and kilobytes of a message."""
    config = load_config(
        CONFIGS / path,
        [
            f"env.num_envs={num_envs}",
            f"population.size={AGENTS}",
            "mesh.actors=1",
            "actors.place=inline",
            "actors.lockstep=true",
            "compile=false",
            "evaluation.every=10000000",
            "budget.env_steps=1000000000",
            "run.if_exists=number",
            f"run.folder={folder}",
        ],
    )
    with ExitStack() as stack:
        world = World.start(AGENTS)
        stack.callback(world.close)
        run = make_run(config, world, stack)
        run.parts.exchange.__class__ = Weighed
        context = TrainingContext(AGENTS, timer=Cores())
        start_run(run, context, None)
        before = Counter[str]()
        for message in range(WARM + COUNT):
            if message == WARM:
                before = Counter(context.timer.seconds)
            run.stages.collect(context)
            run.stages.learn(context)
            context.iteration += 1
        spent = Counter(context.timer.seconds)
        spent.subtract(before)
    found = {name: 1000 * seconds / COUNT for name, seconds in spent.items() if seconds}
    found["play"] = found.pop("wait")  # inline: the learner waits while the actor plays
    return found | {"up": Weighed.up / 1e3, "down": Weighed.down / 1e3}


@click.command()
@click.option("--write", is_flag=True, help="Into benchmarks/results/scaling.json.")
def main(write: bool) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    constants = {}
    print(f"{AGENTS} agents; ms of a message of E environments of each agent, and KB")
    with TemporaryDirectory() as folder:
        for name, (path, sizes, steps) in CASES.items():
            each = [measure(path, size, folder) for size in sizes]
            for size, found in zip(sizes, each, strict=True):
                parts = ", ".join(f"{part} {value:.2f}" for part, value in found.items())
                print(f"{name}, E={size}, T={steps}: {parts}", flush=True)
            frames = [AGENTS * size * steps for size in sizes]
            learn = [
                sum(found.values()) - found["play"] - found["up"] - found["down"] for found in each
            ]
            play = [found["play"] for found in each]
            constants[name] = constants_of(steps, frames, play, learn, each)
    print(json.dumps(constants, indent=1))
    if write:
        add("actors", constants)


def constants_of(
    steps: int,
    frames: list[int],
    play: list[float],
    learn: list[float],
    each: list[dict[str, float]],
) -> dict[str, float]:
    """What scaling_model.py calls so: straight lines through two messages."""
    step, learn_step = slope(play, frames), slope(learn, frames)
    size = slope([found["up"] for found in each], frames)
    found = {
        "step_us": 1000 * step,
        "vector_step_us": 1000 * (play[0] - step * frames[0]) / steps,
        "learn_us": 1000 * learn_step,
        "message_us": 1000 * (learn[0] - learn_step * frames[0]),
        "frame_bytes": 1000 * size,
        "message_bytes": 1000 * (each[0]["up"] - size * frames[0]),
        "weights_kb": each[0]["down"],
    }
    return {"steps": steps, **{name: round(max(0.0, own), 2) for name, own in found.items()}}


def slope(values: list[float], frames: list[int]) -> float:
    """What each further frame adds."""
    return (values[1] - values[0]) / (frames[1] - frames[0])


if __name__ == "__main__":
    main()
