"""What evolution buys: evolution, random search and no search at all, at equal environment steps.

    python benchmarks/evolution.py                  # 3 methods x 6 seeds, about 30 minutes
    python benchmarks/evolution.py --seeds 1 --steps 60000
    python benchmarks/evolution.py --config configs/apex_dqn/lunar_lander.yaml --jobs 1 \\
        --seeds 3 --first-seed 1 --steps 1000000 --methods evolution,random_search \\
        budget.stop_at=null

LunarLander-v3, eight agents that start from poor hyperparameters: of the spaces, each a decade
wide, only a corner is good, the one with a long horizon above all. `none` trains all eight in the
middle of the spaces; `random_search` draws them once from the spaces; `evolution` starts from the
very same draws. Every environment step counts, those of evaluations, too. A run's score is its best
agent's on 100 held-out episodes: the best of all agents and generations, which is partly luck. So
the population at the end is compared as well, by the mean fitness of its living agents. Prints both
comparisons and writes them with every score to benchmarks/results/evolution.json, or with
`--config` to evolution_ALGORITHM.json: then all methods have the settings and spaces of the file.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from tqdm import tqdm

import evorl
from evorl.runs import Estimate, summarise_group
from evorl.runs.compare import probability_of_improvement

METHODS = ("evolution", "random_search", "none")
RESULTS = Path(__file__).parent / "results" / "evolution.json"

CONFIG: dict[str, Any] = {
    "env": {"id": "LunarLander-v3", "num_envs": 8, "backend": "sync"},
    "algorithm": {
        # the middle of each space: what `none` trains with
        "lr": 1e-3,
        "gamma": 0.962,
        "tau": 3e-3,
        "epsilon_end": 0.16,
        # the same for all: enough updates that agents do not hover for long
        "batch_size": 32,
        "learn_step": 1,
        "updates": 2,
        "n_step": 3,
        "learning_starts": 500,
        "epsilon_steps": 8000,
    },
    "replay": {"capacity": 200_000},  # one for all: whoever explores more teaches the others
    "population": {"size": 8},
    # whole episodes: cut at 500 steps, hovering would look better than it is
    "evaluation": {"every": 500, "episodes": 3, "confirm_episodes": 20, "max_steps": 1000},
    "evolution": {
        "spaces": {
            "lr": {"kind": "log", "low": 3e-4, "high": 3e-3},
            "gamma": {"kind": "reverse_log", "low": 0.88, "high": 0.988},
            "tau": {"kind": "log", "low": 1e-3, "high": 1e-2},
            "epsilon_end": {"kind": "log", "low": 0.05, "high": 0.5},
        },
        # up to half of them go, but only those that are clearly behind
        "selection": {"fraction": 0.5, "min_gap": 1.5},
        # through a decade in a few generations; larger leaps ruin a child that plays well already
        "explore": {"strategy": "resample", "resample": 0.1, "grow": 1.5, "shrink": 0.667},
        "mutation": {"hyperparameters": 0.9, "architecture": 0.0, "parameters": 0.1, "none": 0.3},
    },
    "budget": {"counts": "all"},
    "compile": False,
    "checkpoint": {"every": 1000, "replay": False},
    "run": {"if_exists": "number"},
}


def run(job: tuple[str, int, int, str, tuple[str, ...], str | None]) -> dict[str, Any]:
    """One run, in a process of its own."""
    import torch

    torch.set_num_threads(1)
    method, seed, steps, folder, overrides, path = job
    init = "config" if method == "none" else "sample"
    options = [
        f"name={method}-{seed}",
        f"seed={seed}",
        f"budget.env_steps={steps}",
        "budget.counts=all",
        f"run.folder={folder}",
        f"evolution.method={method}",
        f"population.init={init}",
        *overrides,
    ]
    config = evorl.load_config(path, options) if path else evorl.parse_config(CONFIG, options)
    directory = evorl.train(config).directory
    found = json.loads((directory / "summary.json").read_text())
    last = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
    return {
        "method": method,
        "seed": seed,
        "score": found["score"]["mean"]["value"],
        "population": float(np.mean([f for f in last["fitness"] if f is not None])),
        "confirmed": found["best"]["confirmed"],
        "training_steps": found["env_steps"],
        "evaluation_steps": found["evaluation_steps"],
        "updates": found["updates"],
        "seconds": found["seconds"],
        "hyperparameters": found["best"]["hyperparameters"],
        "architectures": found["best"]["architectures"],
    }


def report(found: list[dict[str, Any]], methods: Sequence[str]) -> list[str]:
    """Both comparisons, for a person."""
    lines = []
    for name, what in (("score", "the best agent"), ("population", "the population at the end")):
        lines += [f"{what}:", *compare(found, methods, name)]
    return lines


def compare(found: list[dict[str, Any]], methods: Sequence[str], name: str) -> list[str]:
    """The methods by one figure of their runs."""
    scores = {
        method: np.array([line[name] for line in found if line["method"] == method])
        for method in methods
    }
    scores = {method: own for method, own in scores.items() if len(own)}
    lines = []
    for method, own in scores.items():
        summary = summarise_group(own)
        own = [line for line in found if line["method"] == method]
        steps = np.mean([line["training_steps"] + line["evaluation_steps"] for line in own])
        lines.append(
            f"{method:14} IQM {_show(summary.iqm)}  mean {_show(summary.mean)}"
            f"  {summary.runs} runs of {steps:,.0f} steps"
        )
    for x, y in combinations(scores, 2):
        chance = probability_of_improvement(scores[x], scores[y])
        lines.append(f"P({x} > {y}) = {_show(chance).strip()}")
    return lines


def _show(estimate: Estimate) -> str:
    value, interval = estimate.texts()
    return f"{value:>7} ({interval})"


@click.command()
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
@click.option("--seeds", default=6, show_default=True, help="Runs of each method.")
@click.option("--first-seed", default=401, show_default=True)
@click.option("--steps", default=900_000, show_default=True, help="All steps of a run.")
@click.option("--methods", default=",".join(METHODS), show_default=True)
@click.option("--jobs", default=2, show_default=True, help="Runs at once.")
@click.option("--folder", help="Keep the run directories there.")
@click.option("--config", help="A file to take all settings from.")
@click.option("--results", help="Where the figures are written.")
def main(
    overrides: tuple[str, ...],
    seeds: int,
    first_seed: int,
    steps: int,
    methods: str,
    jobs: int,
    folder: str | None,
    config: str | None,
    results: str | None,
) -> None:
    """Compare the methods."""
    chosen, found = methods.split(","), []
    settings: dict[str, Any] = {"config": config} if config else CONFIG
    kept = RESULTS
    if config:
        kept = RESULTS.with_stem(f"evolution_{Path(config).parent.name}")
    with TemporaryDirectory() as temporary, ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        work = [
            (method, seed, steps, folder or temporary, overrides, config)
            for seed in range(first_seed, first_seed + seeds)
            for method in chosen
        ]
        for line in tqdm(pool.map(run, work), total=len(work), unit="run", disable=None):
            found.append(line)
            lines = report(found, chosen)
            said = {**settings, "overrides": overrides, "steps": steps}
            _write(Path(results or kept), said, lines, found)
            tqdm.write(
                f"{line['method']:14} seed {line['seed']}  score {line['score']:7.1f}"
                f"  {line['training_steps']:,} + {line['evaluation_steps']:,} steps"
                f"  {line['seconds']:.0f} s"
            )
    print("\n".join(lines))


def _write(path: Path, config: dict[str, Any], lines: list[str], found: list[Any]) -> None:
    content = {"config": config, "report": lines, "runs": found}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
