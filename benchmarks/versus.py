"""evorl against what a user would pick instead: two cores, five minutes, the same search spaces.

    pip install -e '.[versus]'
    python benchmarks/versus.py                                  # evorl, Optuna: 4 tasks x 5 seeds
    python benchmarks/versus.py --ray PYTHON --agilerl PYTHON    # with those of other environments
    python benchmarks/versus.py --tasks CartPole-v1 --seeds 1 --seconds 40 --results /tmp/try.json
    python benchmarks/versus.py --show --plot versus.png         # the tables of what was kept

Ray Tune and AgileRL need environments of their own, if only for the versions that they ask for:

    python -m venv ray && ray/bin/pip install -c constraints.txt torch==2.13.0 'ray[tune]' \\
        stable-baselines3 'gymnasium[box2d,classic-control]'
    python -m venv agilerl && agilerl/bin/pip install -c constraints.txt torch==2.13.0 \\
        agilerl==2.58.0 peft==0.21.0 'gymnasium[box2d,classic-control]'

Contenders, each in a file of its own, with what it would return:

- `evorl`: what `evorl init` writes, and OVERRIDES, on two ranks. Its champion.
- `optuna`: TPE and a median pruner over trials of Stable-Baselines3 in two processes. The agent of
  the best evaluation.
- `ray`: Ray Tune's population based training of SB3's agents, on two CPUs. The agent of the best
  evaluation.
- `agilerl`: AgileRL's own evolutionary loop, on LunarLander only. The elite of the best evaluation.

They search evorl's spaces, with networks of its size, and its values for all else, where they have
them. Seconds count from the start of a process, imports included. Whenever the agent that would be
returned is another one, it is put aside; those current at some moments are scored after the run, on
100 episodes that nobody trained or selected on, the same for all contenders with one seed. As long
as there is none, random actions are scored. Steps are those of training.

Every run is kept in benchmarks/results/versus.json as soon as it has ended, and not run again.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click
import gymnasium
import numpy as np
from versus_contender import Row, play, read_rows

import evorl
from evorl.runs import Estimate, summarise_group
from evorl.runs.compare import probability_of_improvement
from evorl.seeding import fresh

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "versus.json"
OVERRIDES = {  # of what `evorl init` writes
    "population.init": "sample",
    "budget.env_steps": 10**12,  # time ends it
    "evaluation.final_episodes": 2,  # which come after the time
}
TASKS = {  # steps of a trial of SB3: those that rl-baselines3-zoo trains DQN or SAC for
    "LunarLander-v3": 100_000,
    "CartPole-v1": 50_000,
    "Acrobot-v1": 100_000,
    "Pendulum-v1": 20_000,
}
MOMENTS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)  # shares of the time at which agents are scored
SHOWN = (0.2, 0.4, 1.0)  # those in the tables
EPISODES = 100
GRACE = 20.0  # seconds after its time, in which a contender may end by itself
LAUNCH = [
    *(sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"),
    *("--config_file", str(HERE.parent / "configs" / "accelerate" / "cpu.yaml")),
]
OWN = [sys.executable]
Rows = dict[str, Row]


class Contender(NamedTuple):
    """How one is started."""

    name: str
    train: list[str]  # what runs its script
    score: list[str]
    workers: int = 1
    tasks: Sequence[str] = tuple(TASKS)

    @property
    def script(self) -> str:
        """Its file."""
        return str(HERE / f"versus_{self.name}.py")


def contenders(ray: str | None, agilerl: str | None) -> dict[str, Contender]:
    """All that can be started here."""
    known = [Contender("evorl", LAUNCH, OWN), Contender("optuna", OWN, OWN, workers=2)]
    # not resolved: a virtual environment is known by where its link is
    if ray:
        python = [str(Path(ray).absolute())]
        known.append(Contender("ray", python, python))
    if agilerl:
        python = [str(Path(agilerl).absolute())]
        known.append(Contender("agilerl", python, python, tasks=["LunarLander-v3"]))
    return {one.name: one for one in known}


def write_job(
    task: str, seed: int, seconds: float, folder: Path, overrides: Sequence[str]
) -> dict[str, Any]:
    """What a contender is to do, in job.json."""
    file = folder / "init.yaml"
    command = [sys.executable, "-m", "evorl", "init", task, "-o", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    options = [f"{key}={value}" for key, value in OVERRIDES.items()]
    options += [f"seed={seed}", f"run.folder={folder}", *overrides]
    job = {
        "folder": str(folder),
        "env": task,
        "seed": seed,
        "seconds": seconds,
        "steps": TASKS[task],
        "config": evorl.load_config(str(file), options).model_dump(mode="json"),
        "held_out": fresh(seed, EPISODES, used=()),
    }
    (folder / "job.json").write_text(json.dumps(job))
    return job


def compete(contender: Contender, job: dict[str, Any]) -> Row:
    """One run of a contender, and the scores of the agents that it would have returned."""
    folder, seconds = Path(job["folder"]), job["seconds"]
    train(contender, folder, seconds)
    logs = [read_rows(path) for path in sorted(folder.glob("log-*.jsonl"))]
    logs = [[row for row in log if row["seconds"] <= seconds] for log in logs]
    last = [log[-1] for log in logs if log]
    found = list(current(incumbents(logs), [share * seconds for share in MOMENTS]))
    scores = score(contender, folder, [row["agent"] for _, row in found])
    space = gymnasium.make(job["env"]).action_space
    space.seed(job["seed"])
    at_random = play(lambda obs: [space.sample() for _ in obs], job["env"], job["held_out"])
    return {
        "seconds": seconds,
        "env_steps": sum(row["env_steps"] for row in last),
        "trials": sum(row["trials"] for row in last),
        "incumbents": [
            {"since": 0.0, "own": None, "held_out": float(np.mean(at_random))},
            *(
                {"since": since, "own": row["score"], "held_out": scores[row["agent"]]}
                for since, row in found
            ),
        ],
    }


def train(contender: Contender, folder: Path, seconds: float) -> None:
    """Start its workers, and wait until they have ended; nobody has more than the time."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment = os.environ | threads | {"ACCELERATE_USE_CPU": "true"}
    began, workers = time.time(), []
    for worker in range(contender.workers):
        arguments = ["train", str(folder / "job.json"), str(began), str(worker)]
        command = [*contender.train, contender.script, *arguments]
        with (folder / f"output-{worker}.txt").open("w") as output:
            workers.append(
                subprocess.Popen(
                    command,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=folder,
                    start_new_session=True,  # a group of its own, to be ended as a whole
                )
            )
    for worker, process in enumerate(workers):
        with suppress(subprocess.TimeoutExpired):
            if process.wait(max(0.1, began + seconds + GRACE - time.time())):
                said = (folder / f"output-{worker}.txt").read_text()[-3000:]
                raise SystemExit(f"{contender.name} failed ({process.returncode}):\n{said}")
    for process in workers:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def incumbents(logs: Iterable[Sequence[Row]]) -> list[tuple[float, Row]]:
    """The agents that would be returned, and since when.

    Each log has one at a time; of several logs, the one that was evaluated as the best.
    """
    rows = [(row["seconds"], i, row) for i, log in enumerate(logs) for row in log if row["agent"]]
    latest: dict[int, Row] = {}
    found: list[tuple[float, Row]] = []
    for since, log, row in sorted(rows, key=lambda one: one[:2]):
        latest[log] = row
        best = max(latest.values(), key=lambda one: one["score"])
        if not found or best is not found[-1][1]:
            found.append((since, best))
    return found


def current(
    found: Sequence[tuple[float, Row]], moments: Iterable[float]
) -> Iterable[tuple[float, Row]]:
    """Those that are current at one of the moments."""
    last = {max((i for i, one in enumerate(found) if one[0] <= at), default=-1) for at in moments}
    return (found[i] for i in sorted(last - {-1}))


def score(contender: Contender, folder: Path, agents: Sequence[str]) -> dict[str, float]:
    """Their mean held-out returns, played on both cores by the contender's own script."""

    def half(names: Sequence[str]) -> dict[str, float]:
        arguments = [contender.script, "score", str(folder / "job.json"), *names]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*contender.score, *arguments], capture_output=True, text=True, env=environment
        )
        if done.returncode:
            raise SystemExit(f"{contender.name} cannot be scored:\n{done.stderr[-3000:]}")
        scores: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return scores

    with ThreadPoolExecutor(2) as pool:
        halves = list(pool.map(half, [part for part in (agents[::2], agents[1::2]) if part]))
    return {name: value for scores in halves for name, value in scores.items()}


def score_at(row: Row, seconds: float) -> float:
    """The held-out score of what was current then."""
    value: float = [one for one in row["incumbents"] if one["since"] <= seconds][-1]["held_out"]
    return value


def by_contender(rows: Rows, task: str) -> dict[str, list[Row]]:
    """The runs of a task."""
    found: dict[str, list[Row]] = {}
    for key, row in rows.items():
        own, name, _ = key.split()
        if own == task:
            found.setdefault(name, []).append(row)
    return found


def table(rows: Rows, task: str) -> list[str]:
    """The contenders side by side."""
    found = by_contender(rows, task)
    if not found:
        return []
    seconds = next(iter(found.values()))[0]["seconds"]
    moments = [share * seconds for share in SHOWN]
    titles = [*(f"at {at:.0f} s" for at in moments), "evorl is better", "steps", "trials", "runs"]
    lines = [f"{task}:", "", f"| | {' | '.join(titles)} |", "| --- " * (len(titles) + 1) + "|"]
    for name, runs in found.items():
        means = [summarise_group([score_at(row, at) for row in runs]).mean for at in moments]
        chance, ends = "", [[score_at(row, seconds) for row in one] for one in (runs, [])]
        if name != "evorl" and "evorl" in found:
            ends[1] = [score_at(row, seconds) for row in found["evorl"]]
            chance = text(probability_of_improvement(ends[1], ends[0]))
        steps, trials = (np.mean([row[key] for row in runs]) for key in ("env_steps", "trials"))
        cells = [*map(text, means), chance, f"{steps:,.0f}", f"{trials:.0f}", str(len(runs))]
        lines.append(f"| {name} | {' | '.join(cells)} |".replace("-", "−"))
    return [*lines, ""]


def text(estimate: Estimate) -> str:
    """A figure, and its interval if there is one."""
    value, interval = estimate.texts()
    return f"{value} ({interval})" if interval else value


def draw(rows: Rows, path: Path) -> None:
    """Score over time: means over the seeds, and their 95 % intervals as bands."""
    from matplotlib.figure import Figure

    tasks = [task for task in TASKS if by_contender(rows, task)]
    figure = Figure(figsize=(5 * len(tasks), 4), layout="constrained")
    for task, axes in zip(tasks, np.ravel(figure.subplots(1, len(tasks))), strict=True):
        for name, runs in by_contender(rows, task).items():
            moments = [0.0, *(share * runs[0]["seconds"] for share in MOMENTS)]
            means = [summarise_group([score_at(row, at) for row in runs]).mean for at in moments]
            (line,) = axes.plot(moments, [mean.value for mean in means], marker=".", label=name)
            low, high = ([getattr(mean, end) for mean in means] for end in ("low", "high"))
            axes.fill_between(moments, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        axes.set(title=task, xlabel="seconds")
    figure.axes[0].set_ylabel("held-out score of what would be returned")
    figure.axes[-1].legend()
    figure.savefig(path, dpi=120)


@click.command()
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
@click.option("--tasks", default=",".join(TASKS), show_default=True)
@click.option("--rivals", help="evorl,optuna,ray,agilerl: all that can be started, if left out.")
@click.option("--seeds", default="1,2,3,4,5", show_default=True)
@click.option("--seconds", default=300.0, show_default=True, help="Of a run.")
@click.option("--ray", metavar="PYTHON", help="That has Ray Tune and Stable-Baselines3.")
@click.option("--agilerl", metavar="PYTHON", help="That has AgileRL.")
@click.option("--results", type=Path, default=RESULTS, help="Where the figures are kept.")
@click.option("--folder", type=Path, help="Keep what the runs wrote there.")
@click.option("--show", is_flag=True, help="Only print what was kept.")
@click.option("--plot", type=Path, metavar="FILE", help="Draw score over time, as PNG or SVG.")
def main(
    overrides: tuple[str, ...],
    tasks: str,
    rivals: str | None,
    seeds: str,
    seconds: float,
    ray: str | None,
    agilerl: str | None,
    results: Path,
    folder: Path | None,
    show: bool,
    plot: Path | None,
) -> None:
    """Let them compete, one after another; options of evorl hold for all who have them."""
    rows: Rows = json.loads(results.read_text()) if results.exists() else {}
    known = contenders(ray, agilerl)
    chosen = rivals.split(",") if rivals else list(known)
    if unknown := [name for name in chosen if name not in known and not show]:
        raise click.UsageError(f"cannot start {unknown[0]}: see the top of this file")
    if not show and any(row["seconds"] != seconds for row in rows.values()):
        raise click.UsageError(f"{results} has runs of other --seconds; choose other --results")
    work = [(t, r, s) for s in seeds.split(",") for t in tasks.split(",") for r in chosen]
    for task, rival, seed in [] if show else work:
        key = f"{task} {rival} {seed}"
        if key in rows or task not in known[rival].tasks:
            continue
        with TemporaryDirectory() as temporary:
            own = (folder / key.replace(" ", "-") if folder else Path(temporary)).absolute()
            own.mkdir(parents=True, exist_ok=True)
            rows[key] = compete(known[rival], write_job(task, int(seed), seconds, own, overrides))
        results.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
        print(key, *(f"{one['held_out']:.1f}" for one in rows[key]["incumbents"]), flush=True)
    print("\n".join(line for task in tasks.split(",") for line in table(rows, task)))
    if plot:
        draw(rows, plot)


if __name__ == "__main__":
    main()
