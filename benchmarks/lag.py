"""By how many versions the weights have moved on when a message is learned from.

    python benchmarks/lag.py        # some minutes; two cores are enough, and may be busy

Actors are children of the learner and play at their own pace. IMPALA on CartPole, with large
messages: the learner is the slow one. On LunarLander with a small network: actors are. What counts
is who waits for whom, and not how fast the machine is.
"""

import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

import click

import evorl

CONFIGS = Path(__file__).parents[1] / "configs" / "impala"
SLOW = {"the learner": ("cartpole.yaml", 32, 20), "actors": ("lunar_lander.yaml", 16, 32)}
ACTORS = (1, 2, 4)
MESSAGES, GENERATIONS = 100, 6  # of a generation, and generations: the second and third count


def lag_of(path: str, num_envs: int, steps: int, actors: int, folder: str) -> tuple[float, int]:
    """The mean lag and the largest one."""
    frames = 2 * num_envs * steps * MESSAGES
    result = evorl.train(
        CONFIGS / path,
        [
            f"env.num_envs={num_envs}",
            f"algorithm.rollout_steps={steps}",
            "population.size=2",
            f"mesh.actors={actors}",
            "compile=false",
            f"evaluation.every={steps * MESSAGES}",
            "evaluation.source=training",
            "evaluation.final_episodes=2",
            f"budget.env_steps={frames * GENERATIONS}",
            "budget.stop_at=null",
            f"run.folder={folder}",
        ],
    )
    lines = (result.directory / "metrics.jsonl").read_text().splitlines()[1:3]
    found = [json.loads(line)["actors"] for line in lines]
    return statistics.mean(one["lag"] for one in found), max(one["max_lag"] for one in found)


@click.command()
def main() -> None:
    """Measure and print."""
    for name, case in SLOW.items():
        for actors in ACTORS:
            with TemporaryDirectory() as folder:
                mean, most = lag_of(*case, actors, folder)
            print(f"{name} slow, {actors} actors: lag {mean:.2f}, at most {most}", flush=True)


if __name__ == "__main__":
    main()
