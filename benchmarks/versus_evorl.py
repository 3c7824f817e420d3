"""evorl as a contender of versus.py: two ranks that train until their time is up."""

import shutil
import time
from math import inf
from pathlib import Path

from versus_contender import Act, Job, Log, main

import evorl


class KeepBest(evorl.Callback):
    """Copies best/ whenever the run replaces it, and ends the run in time."""

    def __init__(self, job: Job) -> None:
        self.job, self.log = job, Log(job, 0)
        self.written: int | None = None  # when best/ was, the last time that it was copied
        self.agents = 0  # that there have been
        self.before = time.time()  # the latest generation

    def on_generation_begin(self, event: evorl.Event) -> None:
        """Count those that were born."""
        self.agents = max(self.agents, *(genome.id + 1 for genome in event.genomes))

    def on_evaluated(self, event: evorl.Event) -> None:
        """Keep the champion if it is another one; stop if another generation would be too long."""
        file, save = event.directory / "best" / "agent.json", None
        if event.best_score > -inf and (written := file.stat().st_mtime_ns) != self.written:
            self.written, best = written, file.parent
            save = lambda path: shutil.copytree(best, path)  # noqa: E731
        self.log.add(event.best_score, event.env_steps, self.agents, save)
        now = time.time()
        if now - self.before > self.job.left:
            event.stop()
        self.before = now


def train(job: Job) -> None:
    """Train on this rank; the options are those of versus.py."""
    config = evorl.parse_config(job.config)
    evorl.train(config, callbacks=[KeepBest(job)])


def load(job: Job, path: Path) -> Act:
    """The agent that was kept."""
    act: Act = evorl.load_agent(path).act
    return act


if __name__ == "__main__":
    main(train, load)
