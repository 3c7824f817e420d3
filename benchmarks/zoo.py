"""What the configurations in configs/ reach, and how long they take: a table.

    python benchmarks/zoo.py                                    # all of them, an hour or more
    python benchmarks/zoo.py dqn/catch ppo/cartpole --seeds 3   # seeds 1, 2 and 3 of these

Every run is `evorl train configs/NAME.yaml seed=SEED` in a process of its own. The score is
that of the best agent on held-out episodes, steps are those of training, seconds are all that the
run took, its evaluations and its score included.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

CONFIGS = Path(__file__).parent.parent / "configs"

ALL = sorted(
    f"{path.parent.name}/{path.stem}"
    for path in CONFIGS.glob("*/*.yaml")
    if path.parent.name != "accelerate"
)


def train(name: str, seed: int, folder: str) -> dict[str, Any]:
    """The summary of one run."""
    run = f"{name.replace('/', '-')}-{seed}"
    options = [f"seed={seed}", f"run.folder={folder}", f"name={run}"]
    path = str(CONFIGS / f"{name}.yaml")
    command = [sys.executable, "-m", "evorl", "train", "-q", path, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads((Path(folder) / run / "summary.json").read_text())


def row(name: str, seed: int, summary: dict[str, Any]) -> str:
    """A line of the table."""
    mean, iqm = summary["score"]["mean"], summary["score"]["iqm"]
    places = 2 if abs(mean["value"]) < 10 else 1
    low, value, high = (f"{mean[key]:.{places}f}" for key in ("low", "value", "high"))
    return (
        f"| `{name}.yaml` | {summary['env']} | {seed} | {value} ({low} to {high}) |"
        f" {iqm['value']:.{places}f} | {summary['env_steps']:,} | {summary['seconds']:.0f} |"
    )


@click.command()
@click.argument("names", nargs=-1)
@click.option("--seeds", default=1, help="How many runs of each: seeds 1, 2, …")
def main(names: tuple[str, ...], seeds: int) -> None:
    """Train, and print a line for each run."""
    print("| file | environment | seed | held-out mean (95 % interval) | IQM | steps | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    with TemporaryDirectory() as folder:
        for name in names or ALL:
            for seed in range(1, seeds + 1):
                print(row(name, seed, train(name, seed, folder)), flush=True)


if __name__ == "__main__":
    main()
