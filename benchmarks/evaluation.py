"""Three ways to evaluate: seeded episodes, those of training, and evaluators one generation behind.

    python benchmarks/evaluation.py                             # 3 ways x 4 environments x 5 seeds
    python benchmarks/evaluation.py --ways episodes,evaluators --names dqn/cartpole --seeds 1,2
    python benchmarks/evaluation.py --race                      # would fewer episodes do?
    python benchmarks/evaluation.py --show                      # the tables of what was kept

Every run is `evorl train configs/NAME.yaml seed=SEED` with equal training steps, fewer than there:
`episodes` as it is, `training` with evaluation.source: training, `evaluators` with mesh.evaluators:
1 on a second rank, so that one rank trains everywhere and only the lag differs. Nothing stops
early. Prints for each environment the mean over seeds of the held-out score with its interval, and
how probable it is that a run of each way beats one with seeded episodes. Every run is kept in
benchmarks/results/evaluation.json as soon as it has ended, and not run again. `--race` is explained
in race.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from race import STARTERS, observe, race_table

from evorl.runs import summarise_group
from evorl.runs.compare import probability_of_improvement

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "evaluation.json"
NAMES = {  # steps of a generation, and of training: enough to learn, and not for all to be perfect
    "dqn/cartpole": (1000, 128_000),
    "dqn/acrobot": (500, 96_000),
    "dqn/lunar_lander": (500, 208_000),
    "sac/pendulum": (500, 16_000),
}
WAYS = {
    "episodes": [],
    "training": ["evaluation.source=training"],
    "evaluators": ["mesh.evaluators=1"],
}
LAUNCH = [
    *(sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"),
    *("--config_file", str(HERE.parent / "configs" / "accelerate" / "cpu.yaml")),
]
Rows = dict[str, dict[str, Any]]


def train(
    name: str, way: str, seed: int, folder: str, overrides: tuple[str, ...]
) -> dict[str, Any]:
    """What one run came to."""
    run = f"{name.replace('/', '-')}-{way}-{seed}"
    options = [f"seed={seed}", f"name={run}", f"run.folder={folder}", "budget.stop_at=null"]
    every, steps = NAMES[name]
    options += [f"evaluation.every={every}", f"budget.env_steps={steps}", "compile=false"]
    words = ["-m", "evorl", "train", "-q", str(HERE.parent / "configs" / f"{name}.yaml")]
    start = LAUNCH if way == "evaluators" else [sys.executable]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    subprocess.run(
        [*start, *words, *options, *WAYS[way], *overrides],
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment,
    )
    path = Path(folder) / run
    summary = json.loads((path / "summary.json").read_text())
    last = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    kept = ("score", "env_steps", "evaluation_steps", "seconds")
    return {key: summary[key] for key in kept} | {"shares": last["shares"]}


def table(rows: Rows) -> list[str]:
    """The ways side by side, for each environment."""
    lines = [
        "| configuration | way | mean of the seeds | evaluation steps | seconds | beats episodes |"
    ]
    lines.append("| --- " * 6 + "|")
    for name in NAMES:
        known: dict[str, list[dict[str, Any]]] = {}
        for key, found in rows.items():
            own, way, _ = key.split()
            if own == name:
                known.setdefault(way, []).append(found)
        scores = {
            way: np.array([found["score"]["mean"]["value"] for found in own])
            for way, own in known.items()
        }
        for way in (way for way in WAYS if way in scores):
            mean, chance = summarise_group(scores[way]).mean, ""
            if way != "episodes" and "episodes" in scores:
                better = probability_of_improvement(scores[way], scores["episodes"])
                chance = "{} ({})".format(*better.texts())
            steps, seconds = (
                np.mean([found[key] for found in known[way]])
                for key in ("evaluation_steps", "seconds")
            )
            lines.append(
                f"| `{name}` | {way} | {'{} ({})'.format(*mean.texts())},"
                f" {len(scores[way])} seeds | {steps:,.0f} | {seconds:.0f} | {chance} |"
            )
    return lines


@click.command()
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
@click.option("--names", default=",".join(NAMES), show_default=True, help="Files in configs/.")
@click.option("--ways", default=",".join(WAYS), show_default=True)
@click.option("--seeds", default="1,2,3,4,5", show_default=True)
@click.option("--results", type=Path, default=RESULTS, help="Where the figures are kept.")
@click.option("--race", is_flag=True, help="Whether fewer episodes would do.")
@click.option("--show", is_flag=True, help="Only print what was kept.")
def main(
    overrides: tuple[str, ...],
    names: str,
    ways: str,
    seeds: str,
    results: Path,
    race: bool,
    show: bool,
) -> None:
    """Compare the ways."""
    if race:
        names, ways = ",".join(STARTERS), "race"
    rows: Rows = json.loads(results.read_text()) if results.exists() else {}
    work = [(n, w, s) for s in seeds.split(",") for n in names.split(",") for w in ways.split(",")]
    for name, way, seed in [] if show else work:
        key = f"{name} {way} {seed}"
        if key in rows:
            continue
        if race:
            rows[key] = observe(name, int(seed), overrides)
        else:
            with TemporaryDirectory() as folder:
                rows[key] = train(name, way, int(seed), folder, overrides)
        results.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
        print(key, flush=True)
    print("\n".join([*table(rows), "", *race_table(rows)]))


if __name__ == "__main__":
    main()
