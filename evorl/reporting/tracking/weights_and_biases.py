"""Weights & Biases: numbers, curves, tables and the best agent, through Accelerate's tracker.

W&B's own step is 2 g for the numbers of generation g and 2 g + 1 for what is drawn after it, so
that a run that goes on knows from the last step what is there already. Curves have the environment
steps as their x axis.
"""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from accelerate.tracking import WandBTracker  # type: ignore[import-untyped]

from evorl.config import RunConfig
from evorl.reporting.console import Console
from evorl.reporting.tracking.charts import charts
from evorl.reporting.tracking.offline_log import next_step
from evorl.reporting.tracking.rows import Row
from evorl.reporting.tracking.story import Story
from evorl.runs.directory import BEST, RunDirectory
from evorl.runs.files import atomic_write
from evorl.runs.saved_agent import FACTS, WEIGHTS

FOLDER, IDENTITY = "wandb", "wandb.json"


class WeightsAndBiases:
    """One W&B run for one run directory, however often it is resumed."""

    name = "W&B"

    def __init__(self, config: RunConfig, directory: RunDirectory, console: Console) -> None:
        self.config, self.directory, self.console = config, directory, console
        self.folder = directory.path / FOLDER
        self.run: Any = None
        self._free = 0  # the first step that is not taken

    def begin(self) -> int:
        """Start the run or go on with it; the first generation that it does not know."""
        wanted, online = self.config.tracking, self.config.tracking.wandb == "online"
        self.folder.mkdir(exist_ok=True)  # W&B would go elsewhere if it could not
        identity = self._identity()
        with self._inside():
            import wandb

            if online and not wandb.login(prompt=False, verify=False):
                raise RuntimeError("no login: run `wandb login`, or set tracking.wandb=offline")
            self.tracker = WandBTracker(
                wanted.project,
                entity=wanted.entity,
                group=wanted.group,
                id=identity,
                name=self.directory.path.name,
                dir=str(self.directory.path),
                mode=wanted.wandb,
                resume="allow",
                reinit="create_new",  # a run that the caller may have is left alone
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    init_timeout=wanted.timeout,
                    finish_timeout=wanted.timeout,
                    finish_timeout_raises=True,
                ),
            )
            # Before there is another log of the same run. Online the server knows better.
            self._free = 0 if online else next_step(self.folder, identity)
            self.tracker.start()
        self.run = self.tracker.tracker
        if online:
            self._free = self.run.step
        self.run.config.update(self.config.model_dump(mode="json"), allow_val_change=True)
        self.run.define_metric("env_steps")
        self.run.define_metric("*", step_metric="env_steps")
        self.console.say(f"W&B:          {self.run.url if online else self._how_to_upload()}")
        return (self._free + 1) // 2

    def log(self, row: Row) -> None:
        """The numbers of one generation."""
        step = 2 * row.generation
        told = {"generation": row.generation, "env_steps": row.env_steps, **row.values}
        self.tracker.log(told, step=step, commit=True)
        self._free = step + 1

    def draw(self, story: Story) -> None:
        """Curves and tables of the whole run so far; the latest ones are what W&B shows."""
        step = 2 * story.latest["generation"] + 1
        if step < self._free:  # drawn already
            return
        with self._inside():
            drawn = charts(story) | {"env_steps": story.latest["env_steps"]}
            self.tracker.log(drawn, step=step, commit=True)
        self._free = step + 1

    def end(self, story: Story, final: Mapping[str, float]) -> None:
        """The final figures, and the best agent."""
        import wandb

        self.run.summary.update(dict(final))
        best = self.directory.path / BEST
        with self._inside():
            artifact = wandb.Artifact(
                f"{self.directory.path.name}-best",
                type="model",
                description="Weights as safetensors, everything else as JSON; nothing executable.",
                metadata=dict(final),
            )
            for name in (WEIGHTS, FACTS):
                artifact.add_file(str(best / name), name=name)
            self.run.log_artifact(artifact)

    def close(self, finished: bool) -> None:
        """Wait, but not long, until everything is written or uploaded."""
        try:
            self.run.finish(exit_code=0 if finished else 1)
        except TimeoutError:
            again = f"{self.folder}/run-*"
            raise RuntimeError(
                f"not all was uploaded in {self.config.tracking.timeout:g} seconds; the rest is on"
                f" disk: wandb sync --include-online {again}"
            ) from None

    def abandon(self, error: Exception) -> None:
        """It failed; a service that is gone would fail once more when Python ends."""
        if isinstance(error, ConnectionError):
            import wandb

            with suppress(Exception):
                wandb.teardown()

    def _how_to_upload(self) -> str:
        return f"offline; to upload: wandb sync {self.folder}/offline-run-*"

    def _identity(self) -> str:
        """The id of this run on W&B, written down before W&B hears of it; by project and entity."""
        path, wanted = self.directory.path / IDENTITY, self.config.tracking
        where = {"project": wanted.project, "entity": wanted.entity}
        with suppress(OSError, ValueError):
            known = json.loads(path.read_bytes())
            if isinstance(known, dict) and known == where | {"id": known.get("id")}:
                found = known["id"]
                if isinstance(found, str) and found.isascii() and found.isalnum():
                    return found
        fresh = secrets.token_hex(4)
        atomic_write(path, json.dumps({"id": fresh, **where}, indent=2) + "\n")
        return fresh

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """W&B reads from these where to put files that are to be uploaded, and whether to talk."""
        wanted = {"WANDB_SILENT": "true"}
        if self.config.tracking.wandb == "offline":  # which W&B's reports of its own would not be
            wanted["WANDB_ERROR_REPORTING"] = "false"
        for name in ("DATA", "CACHE"):
            wanted[f"WANDB_{name}_DIR"] = str((self.folder / name.lower()).absolute())
        new = {name: value for name, value in wanted.items() if name not in os.environ}
        os.environ.update(new)
        try:
            yield
        finally:
            for name in new:
                os.environ.pop(name, None)
