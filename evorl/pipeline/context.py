"""What the stages of a run share: how far this rank's agents have come, and where its time goes."""

import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from evorl.envs import Failures, with_trace
from evorl.pipeline.snapshot import COUNTS, Progress, Snapshot


class Timer:
    """Adds up the seconds spent under each name: `with timer("act"): ...`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time what runs inside."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def shares(self) -> dict[str, float]:
        """Each name's part of the measured time; they add up to 1."""
        total = sum(self.seconds.values())
        return {name: spent / total for name, spent in self.seconds.items()} if total else {}


@dataclass
class Context(Progress):
    """This rank's agents. An iteration is one step of every environment.

    Counts are those of all ranks at the generation's beginning, and this rank's own since then.
    """

    iteration: int = 0
    timer: Timer = field(default_factory=Timer)
    began: float = field(default_factory=time.perf_counter)
    # all agents of all ranks at the latest generation's end; Gather gives it to the main rank
    snapshot: Snapshot = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.new_steps = np.zeros(self.agents, dtype=np.int64)  # of the current iteration
        self.before = dict.fromkeys(COUNTS, 0)  # counts of all ranks when the generation began

    def begin_generation(self, snapshot: Progress, own: slice) -> None:
        """Go on from where all ranks together are; what is counted from now on is this rank's."""
        self.take(snapshot, own)
        self.new_steps = np.zeros_like(self.agent_steps)
        self.before = {name: getattr(self, name) for name in COUNTS}


def count_failures(progress: Progress, failures: Failures) -> None:
    """Warns of every new one; EnvError, with the environment's own traceback, past the limit.

    Of other ranks' failures those before this generation count, too.
    """
    limit = failures.limit
    for failure in failures.take():
        progress.failures += 1
        if progress.failures > limit:
            what = f"raised too often ({progress.failures}, {limit} allowed; fix it or allow more)"
            raise with_trace(f"env.max_failures: {failures.env_id!r} {what}", failure)
        warnings.warn(
            f"{failures.env_id!r} raised, and a new environment took its place"
            f" ({progress.failures} of {limit} allowed by env.max_failures): {failure.line}",
            stacklevel=2,
        )
