"""What the configurations in configs/ reach, and how long they take, beside published figures.

    python benchmarks/zoo.py                                    # all of them, seeds 1 to 3: hours
    python benchmarks/zoo.py ppo/cartpole sac/pendulum          # some of them
    python benchmarks/zoo.py --jobs 2 --write                   # two runs at a time; keep the rows
    python benchmarks/zoo.py --show                             # the table of what was kept

Every run is `evorl train configs/NAME.yaml seed=SEED`, on one thread. The score is that of the
best agent on held-out episodes, steps are those of all agents in training, seconds are all that the
run took, its evaluations and its score included. `--write` keeps every run in
benchmarks/results/zoo.json as soon as it has ended.

In brackets: the score that rl-baselines3-zoo publishes for one agent of the same algorithm with
hyperparameters tuned by hand.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import click

from evorl.runs import Estimate, decimals, summarise_group

CONFIGS = Path(__file__).parent.parent / "configs"
RESULTS = Path(__file__).parent / "results" / "zoo.json"
PUBLISHED = {
    "a2c/cartpole": 500.0,
    "ddpg/pendulum": -152.1,
    "dqn/acrobot": -76.6,
    "dqn/cartpole": 500.0,
    "dqn/lunar_lander": 154.4,
    "dqn/mountain_car": -100.8,
    "ppo/acrobot": -73.5,
    "ppo/cartpole": 500.0,
    "ppo/lunar_lander": 242.1,
    "sac/bipedal_walker": 297.7,
    "sac/lunar_lander_continuous": 260.4,
    "sac/mountain_car_continuous": 94.7,
    "sac/pendulum": -157.0,
    "td3/pendulum": -151.9,
}
ALL = sorted(
    f"{path.parent.name}/{path.stem}"
    for path in CONFIGS.glob("*/*.yaml")
    if path.parent.name not in ("accelerate", "clusters")  # which are no runs
)
WRITING = Lock()  # of the results
Rows = dict[str, dict[str, Any]]  # by seed, of one configuration


def train(
    name: str, seed: int, folder: str, overrides: Sequence[str], write: bool
) -> dict[str, Any]:
    """What one run came to."""
    run = f"{name.replace('/', '-')}-{seed}"
    options = [f"seed={seed}", f"run.folder={folder}", f"name={run}", *overrides]
    path = str(CONFIGS / f"{name}.yaml")
    command = [sys.executable, "-m", "evorl", "train", "-q", path, *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    summary = json.loads((Path(folder) / run / "summary.json").read_text())
    row = {key: summary[key] for key in ("env", "env_steps", "total_steps", "seconds", "score")}
    if write:
        with WRITING:
            keep(name, seed, row)
    return row


def keep(name: str, seed: int, row: dict[str, Any]) -> None:
    """Add a run to the results."""
    known: dict[str, Rows] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known.setdefault(name, {})[str(seed)] = row
    text = json.dumps(dict(sorted(known.items())), indent=1)
    RESULTS.write_text(text + "\n")


def line(name: str, rows: Rows) -> str:
    """A configuration's line of the table."""
    each = [rows[seed] for seed in sorted(rows)]
    means = [Estimate(**row["score"]["mean"]) for row in each]
    places = decimals([mean.value for mean in means], [mean.error for mean in means])
    seeds = ", ".join("{} ({})".format(*mean.texts(places)) for mean in means)
    steps, seconds = (median(row[key] for row in each) for key in ("env_steps", "seconds"))
    published = f" ({PUBLISHED[name]:.1f})" if name in PUBLISHED else ""
    overall, _ = summarise_group([mean.value for mean in means]).mean.texts()
    scores = f"**{overall}**{published} | {seeds}".replace("-", "−")
    return f"| `{name}.yaml` | {each[0]['env']} | {scores} | {steps:,.0f} | {seconds:.0f} |"


HEADER = (
    "| file | environment | mean of the seeds (published) | each seed, 100 held-out episodes"
    " (95 % interval) | steps | seconds |\n| --- | --- | --- | --- | --- | --- |"
)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--seeds", default="1,2,3", show_default=True, help="Which seeds.")
@click.option("--jobs", default=1, show_default=True, help="Runs at a time.")
@click.option("--write", is_flag=True, help="Keep what every run came to.")
@click.option("--show", is_flag=True, help="Train nothing: the table of what was kept.")
@click.option("--set", "overrides", multiple=True, help="An option for all, such as compile=true.")
def main(
    names: tuple[str, ...],
    seeds: str,
    jobs: int,
    write: bool,
    show: bool,
    overrides: tuple[str, ...],
) -> None:
    """Train, and print a line for each configuration."""
    print(HEADER, flush=True)
    if show:
        for name, rows in json.loads(RESULTS.read_text()).items():
            print(line(name, rows))
        return
    chosen = [int(seed) for seed in seeds.split(",")]
    with TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        waiting = {
            name: {s: pool.submit(train, name, s, folder, overrides, write) for s in chosen}
            for name in names or ALL
        }
        for name, runs in waiting.items():
            rows: Rows = {}
            for seed, run in runs.items():
                rows[str(seed)] = run.result()
            print(line(name, rows), flush=True)


if __name__ == "__main__":
    main()
