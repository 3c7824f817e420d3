"""What the stages of a run share: how far this rank's agents have come, and where its time goes."""

import math
import time
import warnings
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evorl.actors import ActorMessage
from evorl.envs import Failures, with_trace
from evorl.pipeline.snapshot import COUNTS, Progress, Snapshot
from evorl.pipeline.training_log import TrainingLog

Floats = npt.NDArray[np.float64]
MILLION = 1_000_000
ALL_TOLD = 10  # failures that are all warned of; after that 20, 30, … 100, 200, …


class Timed:
    """What `with` times; a generator would cost three times as much, six times an iteration."""

    __slots__ = ("name", "seconds", "start")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self.seconds, self.name = seconds, name

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *raised: object) -> None:
        self.seconds[self.name] += time.perf_counter() - self.start


class Timer:
    """Adds up the seconds spent under each name: `with timer("act"): ...`.

    For what a run records of itself; StepTimer of step_timer.py times the stages of any task.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def __call__(self, name: str) -> "Timed":
        """Time what runs inside."""
        return Timed(self.seconds, name)

    def shares(self) -> dict[str, float]:
        """Each name's part of the measured time; they add up to 1."""
        total = sum(self.seconds.values())
        return {name: spent / total for name, spent in self.seconds.items()} if total else {}


class Scored(NamedTuple):
    """What evaluators found out, while the others trained."""

    returns: Floats  # [P, E] of the agents with which the generation began
    crowned: int | None  # which of them is the champion now, if there is a new one
    champion: Floats | None  # the champion's returns on the further seeds; None: there is none yet


@dataclass
class TrainingContext(Progress):
    """This rank's agents. An iteration is one step of every environment.

    Counts are those of all ranks at the generation's beginning, and this rank's own since then.
    """

    iteration: int = 0
    timer: Timer = field(default_factory=Timer)
    began: float = field(default_factory=time.perf_counter)
    # all agents of all ranks at the latest generation's end; Gather gives it to the main rank. On
    # evaluators those with which the generation began
    snapshot: Snapshot = field(init=False, repr=False)
    evaluated: Snapshot = field(init=False, repr=False)  # the main rank's: whose fitness is known
    scored: Scored | None = field(default=None, repr=False)  # if there are evaluators
    received: list[ActorMessage] = field(default_factory=list, repr=False)  # if there are actors
    actors: dict[str, Any] | None = None  # what there is to tell of them, at a generation's end
    training: TrainingLog | None = field(default=None, repr=False)  # the main rank's: of all agents

    def __post_init__(self) -> None:
        super().__post_init__()
        self.new_steps = np.zeros(self.agents, dtype=np.int64)  # of the current iteration
        self.before = dict.fromkeys(COUNTS, 0)  # counts of all ranks when the generation began
        self.log = TrainingLog(self.agents)  # of this rank's agents, since then

    def begin_generation(self, snapshot: Progress, own: slice) -> None:
        """Go on from where all ranks together are; what is counted from now on is this rank's."""
        self.take(snapshot, own)
        self.new_steps = np.zeros_like(self.agent_steps)
        self.before = {name: getattr(self, name) for name in COUNTS}
        self.log = TrainingLog(len(self.agent_steps))

    def count_steps(self, new_steps: npt.NDArray[np.int64]) -> None:
        """Own steps [P] of this iteration, on all ranks that train an agent."""
        self.new_steps = new_steps
        self.agent_steps = self.agent_steps + new_steps
        self.log.step(self.iteration - self.begins, self.ends - self.begins, new_steps)


def count_failures(progress: Progress, failures: Failures) -> None:
    """Warns of new ones; EnvError, with the environment's own traceback, past the limit.

    The limit is for each million steps that has begun. Of many, only some are warned of. Of other
    ranks' failures those before this generation count, too.
    """
    new = failures.take()
    if not new:
        return
    steps = progress.env_steps + progress.evaluation_steps
    limit = failures.limit * max(1, math.ceil(steps / MILLION))
    for failure in new:
        progress.failures += 1
        count, did = progress.failures, f"{failures.env_id!r} {failure.verb}"
        if count > limit:
            what = f"{did} too often ({count}, {limit} allowed; fix it or allow more)"
            raise with_trace(f"env.max_failures: {what}", failure)
        if count <= ALL_TOLD or count % 10 ** (len(str(count)) - 1) == 0:
            allowed = f"({count} of {limit} allowed by env.max_failures)"
            warnings.warn(f"{did}, and {failures.then} {allowed}: {failure.line}", stacklevel=2)


def warn_dead(agent: int, reason: str) -> None:
    """Say once that an agent is out; the others carry on."""
    warnings.warn(f"agent {agent} is dead: {reason}; its fitness is -inf", stacklevel=2)
