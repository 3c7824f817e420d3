"""What all contenders of versus.py have in common: their job, their log, and how agents are scored.

Every contender is a script that versus.py starts, and that may run in an environment without evorl:

    python versus_optuna.py train JOB BEGAN WORKER      # trains until its time is up
    python versus_optuna.py score JOB AGENT...          # each agent's mean held-out return

Each worker has a log of JSON lines, one for every evaluation: the seconds since its process was
started, the mean return, the steps and trials until then, and where the agent was saved if it is
what the worker would now return.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log2
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

Act = Callable[[npt.NDArray[Any]], Any]  # observations [B, ...] in, greedy actions [B, ...] out
Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What a contender is to do; versus.py writes it down as JSON."""

    folder: Path  # for all that it keeps
    env: str
    seed: int
    seconds: float  # that it has, from the start of its process
    steps: int  # of one trial of SB3
    config: dict[str, Any]  # evorl's for this task, with all defaults
    held_out: list[int]  # seeds of the episodes by which agents are scored in the end
    began: float = 0.0  # when the process was started, by time.time()
    worker: int = 0

    @classmethod
    def read(cls, path: str, **own: Any) -> "Job":
        """From its file, and what is this process's own."""
        values = json.loads(Path(path).read_text())
        return cls(**values | {"folder": Path(values["folder"])} | own)

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.began + self.seconds - time.time()

    @property
    def values(self) -> dict[str, Any]:
        """The algorithm's options as evorl has them."""
        values: dict[str, Any] = self.config["algorithm"]
        return values

    @property
    def spaces(self) -> dict[str, "Space"]:
        """The spaces that evorl searches."""
        return {name: Space(**own) for name, own in self.config["evolution"]["spaces"].items()}


class Space(NamedTuple):
    """A space of evorl's, for tools that have no such kinds: they search numbers from low to high.

    What they find is translated by `value`; gamma is searched as 1 - gamma, on a log scale.
    """

    kind: str
    low: float = 0.0
    high: float = 0.0
    values: Sequence[float] = ()

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the numbers that are searched."""
        if self.kind == "reverse_log":
            return 1 - self.high, 1 - self.low
        if self.kind == "power_of_two":
            return log2(self.low), log2(self.high)
        return (0, len(self.values) - 1) if self.kind == "choice" else (self.low, self.high)

    @property
    def log(self) -> bool:
        """Whether they are searched on a log scale."""
        return self.kind in ("log", "reverse_log")

    @property
    def whole(self) -> bool:
        """Whether they are whole."""
        return self.kind in ("integer", "power_of_two", "choice")

    def value(self, number: float) -> float:
        """The hyperparameter that a number stands for."""
        if self.kind == "reverse_log":
            return 1 - number
        if self.kind == "power_of_two":
            return 2 ** round(number)
        return self.values[round(number)] if self.kind == "choice" else number


class Log:
    """One worker's lines; a log that exists is continued."""

    def __init__(self, job: Job, name: object) -> None:
        self.job, self.name = job, name
        self.path = job.folder / f"log-{name}.jsonl"
        rows = read_rows(self.path) if self.path.exists() else []
        self.count = len(rows)
        self.best = max((row["score"] for row in rows), default=-inf)
        self.latest: Row = rows[-1] if rows else {"env_steps": 0, "trials": 0}

    def better(
        self, score: float, env_steps: int, trials: int, save: Callable[[Path], object]
    ) -> None:
        """Note an evaluation, and save the agent if it has done better than all before."""
        self.add(score, env_steps, trials, save if score > self.best else None)

    def add(
        self, score: float, env_steps: int, trials: int, save: Callable[[Path], object] | None
    ) -> None:
        """Note an evaluation; with `save` the agent is what would be returned from now on."""
        agent = None
        if save is not None:
            self.best = max(self.best, score)
            agent = f"agent-{self.name}-{self.count}"
            save(self.job.folder / agent)
        self.count += 1
        self.latest = {
            "seconds": round(time.time() - self.job.began, 2),  # when it is on disk
            "score": score,
            "env_steps": env_steps,
            "trials": trials,
            "agent": agent,
        }
        with self.path.open("a") as file:
            file.write(json.dumps(self.latest) + "\n")


def read_rows(path: Path) -> list[Row]:
    """The lines of a log, but for one that a kill has cut off."""
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def play(act: Act, env_id: str, seeds: Sequence[int]) -> list[float]:
    """The returns of one episode for each seed, all played at once."""
    envs = [gymnasium.make(env_id, disable_env_checker=True) for _ in seeds]
    obs = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    returns, playing = [0.0] * len(envs), list(range(len(envs)))
    while playing:
        actions, still = act(np.stack([obs[i] for i in playing])), []
        for i, action in zip(playing, actions, strict=True):
            obs[i], reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += float(reward)
            if not (terminated or truncated):
                still.append(i)
        playing = still
    for env in envs:
        env.close()
    return returns


def evaluate(act: Act, job: Job) -> float:
    """The mean return of as many episodes as evorl plays for fitness, other ones each time."""
    # below 2^30: held-out episodes are above
    seeds = [random.randrange(2**30) for _ in range(job.config["evaluation"]["episodes"])]
    return float(np.mean(play(act, job.env, seeds)))


def main(train: Callable[[Job], None], load: Callable[[Job, Path], Act]) -> None:
    """The command line of a contender."""
    command, path, *rest = sys.argv[1:]
    if command == "train":
        job = Job.read(path, began=float(rest[0]), worker=int(rest[1]))
        random.seed(1000 * job.seed + job.worker)
        train(job)
        return
    job = Job.read(path)
    scores: Mapping[str, float] = {
        name: float(np.mean(play(load(job, job.folder / name), job.env, job.held_out)))
        for name in rest
    }
    print(json.dumps(scores))
