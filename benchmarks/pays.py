"""Does evolution pay? Strategies at equal environment steps, on tasks that nobody tuned for.

    python benchmarks/pays.py development --seeds 4          # trials, to choose defaults by
    python benchmarks/pays.py development --strategies evolution,halving_to_1
    python benchmarks/pays.py test                           # ten seeds, once, with the defaults
    python benchmarks/pays.py test --show                    # tables of what was kept
    python benchmarks/pays.py test --plot docs/pays.png      # and pictures (needs matplotlib)

A task is an algorithm, an environment and a budget of environment steps, in which those of
evaluations count, too. All options are those that `evorl init` writes. Two kinds of start: `two`,
the default spaces, about two decades wide around what one would set by hand; and `four`, for a
user who knows nothing. Every strategy of a seed has the same spaces, and draws the same first
agents from them, as far as it has as many. `none` trains a population at one point: at the values
of the file, or with `four` at one draw.

Measures of a run: the area under the best confirmed score over all steps, from 0 (the score of
somebody who acts at random) to 1 (a published score of one agent that was tuned by hand); the steps
until a confirmed score that counts as solved; the held-out score at the end; and the time. Tasks
weigh the same. Intervals are 95 %, by a bootstrap over the seeds of each task.

Every run is kept in benchmarks/results as soon as it has ended, with its settings, and not run
again. docs/evidence.md says how tasks, seeds and settings were chosen, and what came out.
"""

import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

RESULTS = Path(__file__).parent / "results"
FIRST_SEED = {"development": 1001, "test": 5001}  # development never looks at a seed of the test


class Task(NamedTuple):
    """What is learned, and the scale of its score."""

    algorithm: str
    env: str
    steps: int  # of environments, those of evaluations included
    low: float  # of a random policy, about
    high: float  # published for one agent, tuned by hand (rl-baselines3-zoo), or the most there is
    solved: float
    options: tuple[str, ...] = ()


WIND = ("env.kwargs={enable_wind: true}",)
CONTINUOUS = ("env.kwargs={continuous: true}",)
TASKS: dict[str, dict[str, Task]] = {
    "development": {
        "dqn/cartpole": Task("dqn", "CartPole-v1", 160_000, 20, 500, 475),
        "dqn/lunar_lander": Task("dqn", "LunarLander-v3", 400_000, -180, 250, 200),
        "ppo/acrobot": Task("ppo", "Acrobot-v1", 300_000, -500, -73.5, -100),
        "sac/pendulum": Task("sac", "Pendulum-v1", 60_000, -1250, -150, -200),
    },
    "test": {
        "dqn/acrobot": Task("dqn", "Acrobot-v1", 160_000, -500, -76.6, -100),
        "dqn/lunar_lander_wind": Task("dqn", "LunarLander-v3", 400_000, -180, 250, 200, WIND),
        "dqn/mountain_car": Task("dqn", "MountainCar-v0", 300_000, -200, -100.8, -110),
        "dqn/catch": Task("dqn", "evorl.envs:evorl/Catch-v0", 60_000, -0.8, 1, 0.9),
        "ppo/cartpole": Task("ppo", "CartPole-v1", 300_000, 20, 500, 475),
        "ppo/lunar_lander": Task("ppo", "LunarLander-v3", 1_500_000, -180, 242.1, 200),
        "sac/lunar_lander": Task("sac", "LunarLander-v3", 200_000, -180, 260.4, 200, CONTINUOUS),
    },
}
# Beside the default spaces: twice as wide in their own scale, for who knows nothing.
FOUR: dict[str, dict[str, dict[str, Any]]] = {
    "dqn": {
        "lr": {"kind": "log", "low": 1e-5, "high": 1e-1},
        "gamma": {"kind": "reverse_log", "low": 0.5, "high": 0.9999},
        "tau": {"kind": "log", "low": 1e-4, "high": 1.0},
    },
    "ppo": {
        "lr": {"kind": "log", "low": 1e-6, "high": 1e-1},
        "gamma": {"kind": "reverse_log", "low": 0.5, "high": 0.9999},
        "gae_lambda": {"kind": "reverse_log", "low": 0.0, "high": 0.999},
        "entropy_coef": {"kind": "log", "low": 1e-5, "high": 1e-1},
        "clip": {"kind": "log", "low": 0.01, "high": 1.0},
        "epochs": {"kind": "integer", "low": 1, "high": 30},
    },
    "sac": {
        "actor_lr": {"kind": "log", "low": 1e-5, "high": 1e-1},
        "lr": {"kind": "log", "low": 1e-5, "high": 1e-1},
        "gamma": {"kind": "reverse_log", "low": 0.5, "high": 0.9999},
        "tau": {"kind": "log", "low": 1e-4, "high": 1.0},
    },
}
LENGTH = "generations="  # an option of ours: how many the budget has; init's number if left out
# What a strategy sets; `default` is all that there is to evolution if nobody says anything. The
# others evaluate less often, as all of their agents are evaluated to the end.
STRATEGIES: dict[str, tuple[str, ...]] = {
    "default": (),
    "random_search": ("evolution.method=random_search", "generations=6"),
    "none": ("evolution.method=none", "population.init=config", "generations=6"),
}


class Run(NamedTuple):
    """One run that is to be made."""

    task: str
    start: str
    strategy: str
    seed: int

    @property
    def key(self) -> str:
        """By which it is found again."""
        return f"{self.task} {self.start} {self.strategy} {self.seed}"


def config_of(run: Run, task: Task, overrides: Sequence[str], folder: str) -> Any:
    """Its configuration: what `evorl init` writes, and what the strategy sets."""
    import evorl
    from evorl.cli.init import GENERATIONS, starter
    from evorl.evolution import Space
    from evorl.seeding import generator

    chosen, _ = starter(task.env, task.algorithm)
    options = [
        f"name={run.key.replace('/', '-').replace(' ', '-')}",
        f"seed={run.seed}",
        f"run.folder={folder}",
        f"budget.env_steps={task.steps}",
        "budget.counts=all",
        "checkpoint={every: 100000, replay: false}",
        *task.options,
        *(own for own in overrides if not own.startswith(LENGTH)),
    ]
    known = evorl.parse_config(chosen, options)
    generations = [int(own.removeprefix(LENGTH)) for own in overrides if own.startswith(LENGTH)]
    each = known.population.size * known.env.num_envs * (generations or [GENERATIONS])[0]
    options.append(f"evaluation.every={task.steps // each}")
    if run.start == "four":
        chosen["evolution"] |= {"spaces": FOUR[task.algorithm]}
    config = evorl.parse_config(chosen, options)
    if run.start == "four" and run.strategy.startswith("none"):
        random = generator(run.seed, "none")  # a user who knows nothing sets something
        spaces = {name: Space.of(own) for name, own in config.spaces.items()}
        drawn = [f"algorithm.{name}={own.sample(random)!r}" for name, own in spaces.items()]
        config = evorl.parse_config(chosen, [*options, *drawn])
    return config


def play(run: Run, task: Task, overrides: Sequence[str]) -> dict[str, Any]:
    """What a run came to, in a process of its own."""
    import torch

    import evorl

    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        directory = evorl.train(config_of(run, task, overrides, folder)).directory
        found = json.loads((directory / "summary.json").read_text())
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").open()]
    curve = [[line["env_steps"] + line["evaluation_steps"], line["best"]] for line in lines]
    score = found["score"]["mean"]
    return {
        "task": run.task,
        "start": run.start,
        "strategy": run.strategy,
        "seed": run.seed,
        "options": list(overrides),
        "steps": task.steps,
        "score": [score["value"], score["low"], score["high"]],
        "evaluation_steps": found["evaluation_steps"],
        "updates": found["updates"],
        "seconds": round(found["seconds"], 1),
        "hyperparameters": found["best"]["hyperparameters"],
        "curve": curve,
    }


def area(found: dict[str, Any], task: Task) -> float:
    """Under the best confirmed score, of which 0 and 1 are the ends of the task's scale."""
    total, before, height = 0.0, 0, 0.0
    for steps, best in found["curve"]:
        steps = min(steps, task.steps)
        total += height * (steps - before)
        before, height = steps, height if best is None else scaled(best, task)
    return (total + height * (task.steps - before)) / task.steps


def scaled(score: float, task: Task) -> float:
    """On the task's scale, within its ends."""
    return float(np.clip((score - task.low) / (task.high - task.low), 0, 1))


def solved_after(found: dict[str, Any], task: Task) -> float:
    """Share of the steps until somebody is confirmed at the score that counts; 1: never."""
    return next(
        (
            min(1.0, steps / task.steps)
            for steps, best in found["curve"]
            if best is not None and best >= task.solved
        ),
        1.0,
    )


MEASURES = {
    "area": area,
    "score": lambda found, task: scaled(found["score"][0], task),
    "solved after": solved_after,
}
Table = dict[str, dict[str, npt.NDArray[np.float64]]]  # by strategy and task, [seeds]


def tabulate(
    rows: Iterable[dict[str, Any]], tasks: dict[str, Task], start: str, name: str
) -> Table:
    """A measure of all runs that began like this."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["start"] == start and row["task"] in tasks:
            value = float(MEASURES[name](row, tasks[row["task"]]))
            found.setdefault(row["strategy"], {}).setdefault(row["task"], []).append(value)
    return {s: {t: np.array(v) for t, v in own.items()} for s, own in found.items()}


def improvement(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """How probable it is that a run of x is above one of y; equals count half."""
    return float(((x[:, None] > y).mean() + (x[:, None] >= y).mean()) / 2)


def with_interval(statistic: Any, *samples: dict[str, npt.NDArray[np.float64]]) -> list[float]:
    """Of samples by task; seeds are drawn again within each task."""
    random = np.random.default_rng(1)
    drawn = [
        statistic(
            *(
                {t: own[random.integers(len(own), size=len(own))] for t, own in each.items()}
                for each in samples
            )
        )
        for _ in range(2000)
    ]
    return [statistic(*samples), *np.quantile(drawn, [0.025, 0.975])]


def over_tasks(x: dict[str, Any], y: dict[str, Any]) -> float:
    """The mean over the tasks that both have."""
    return float(np.mean([improvement(x[task], y[task]) for task in x if task in y]))


def iqm(x: dict[str, Any]) -> float:
    """The mean of the middle half of all runs of all tasks."""
    values = np.sort(np.concatenate(list(x.values())))
    cut = len(values) // 4
    return float(values[cut : len(values) - cut].mean())


def report(rows: list[dict[str, Any]], tasks: dict[str, Task], against: Sequence[str]) -> list[str]:
    """Tables for a person, by start and measure."""
    lines = []
    for start in dict.fromkeys(row["start"] for row in rows):
        for name in MEASURES:
            table = tabulate(rows, tasks, start, name)
            lines += ["", f"### start {start}: {name}", "", *_table(table, tasks, against)]
    return lines


def _table(table: Table, tasks: dict[str, Task], against: Sequence[str]) -> list[str]:
    columns = [task for task in tasks if any(task in own for own in table.values())]
    rivals = [name for name in against if name in table]
    heads = ["strategy", *columns, "IQM", *(f"P(above {name})" for name in rivals)]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for strategy, own in table.items():
        each = [f"{own[t].mean():.3f} ({len(own[t])})" if t in own else "" for t in columns]
        chances = [
            "" if rival == strategy else _shown(with_interval(over_tasks, own, table[rival]))
            for rival in rivals
        ]
        cells = [strategy, *each, _shown(with_interval(iqm, own)), *chances]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _shown(estimate: Sequence[float]) -> str:
    value, low, high = estimate
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def read(path: Path) -> list[dict[str, Any]]:
    """What was kept."""
    return [json.loads(line) for line in path.open()] if path.exists() else []


@click.command()
@click.argument("kind", type=click.Choice(list(TASKS)))
@click.option("--strategies", default=",".join(STRATEGIES), show_default=True)
@click.option("--starts", default="two", show_default=True)
@click.option("--tasks", "names", help="Some of them, by name.")
@click.option("--seeds", default=10, show_default=True, help="Runs of each strategy and task.")
@click.option("--first", default=0, show_default=True, help="Leave out so many seeds.")
@click.option("--set", "trial", nargs=2, multiple=True, help="A trial: NAME 'OPTION OPTION'.")
@click.option("--jobs", default=2, show_default=True, help="Runs at once.")
@click.option("--results", help="Where every run is kept.")
@click.option("--show", is_flag=True, help="Print the tables of what was kept, and run nothing.")
def main(
    kind: str,
    strategies: str,
    starts: str,
    names: str | None,
    seeds: int,
    first: int,
    trial: tuple[tuple[str, str], ...],
    jobs: int,
    results: str | None,
    show: bool,
) -> None:
    """Run what is missing, and compare."""
    path = Path(results) if results else RESULTS / f"pays_{kind}.jsonl"
    tasks, rows = TASKS[kind], read(path)
    chosen = STRATEGIES | {name: tuple(options.split()) for name, options in trial}
    wanted = [*(name for name in strategies.split(",") if name), *(name for name, _ in trial)]
    known = {Run(*(row[k] for k in Run._fields)) for row in rows}
    todo = [
        Run(task, start, strategy, seed)
        for seed in range(FIRST_SEED[kind] + first, FIRST_SEED[kind] + seeds)
        for task in (names.split(",") if names else tasks)
        for start in starts.split(",")
        for strategy in wanted
    ]
    todo = [] if show else [run for run in todo if run not in known]
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool, path.open("a") as file:
        futures = [pool.submit(play, run, tasks[run.task], chosen[run.strategy]) for run in todo]
        for future in tqdm(as_completed(futures), total=len(futures), unit="run", disable=None):
            rows.append(future.result())
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
    print("\n".join(report(rows, tasks, ("random_search", "none"))))


if __name__ == "__main__":
    main()
