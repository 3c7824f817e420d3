"""A run on Weights & Biases and TensorBoard, through Accelerate's trackers, if it asks for that.

metrics.jsonl and lineage.jsonl are the truth, and all that trackers see. Any method of a tracker
may raise: Tracking sees to it that none of them ever stops a run.
"""

import importlib.util
import json
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from accelerate.tracking import TensorBoardTracker, WandBTracker  # type: ignore[import-untyped]

from evorl.config import RunConfig, TrackingConfig, dump_config
from evorl.errors import ConfigError, one_line
from evorl.reporting.agent_curves import AgentCurves
from evorl.reporting.console import Console
from evorl.reporting.curves import RunReader
from evorl.reporting.page import render
from evorl.reporting.run_data import read_payload
from evorl.runs import BEST, FACTS, WEIGHTS, RunDirectory, atomic_write

SLOTS = 8
WANDB, TENSORBOARD, IDENTITY = "wandb", "tensorboard", "wandb.json"  # in the run's folder


def refuse_missing(config: TrackingConfig) -> None:
    """ConfigError if a tracker is asked for that is not installed."""
    wanted = {"wandb": config.wandb != "off", "tensorboard": config.tensorboard}
    for name, asked in wanted.items():
        if asked and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"tracking.{name}: the package {name} is not installed; pip install {name},"
                f" or set tracking.{name}={'off' if name == 'wandb' else 'false'}"
            )


class TensorBoard:
    """A run's numbers as event files in its folder, by environment steps."""

    name = "TensorBoard"

    def __init__(self, config: RunConfig, directory: RunDirectory, console: Console) -> None:
        self.config, self.path, self.console = config, directory.path, console
        self.reader = RunReader(directory.path, config)
        # A run that resumes logs all of it again: with this, TensorBoard forgets what was there.
        self.tracker = TensorBoardTracker(TENSORBOARD, self.path, purge_step=0)

    def begin(self) -> None:
        """Start, with the configuration."""
        self.tracker.start()
        self.agents = AgentCurves(self.path / TENSORBOARD, type(self.tracker.writer))
        indented = "".join(f"    {line}\n" for line in dump_config(self.config).splitlines())
        self.tracker.log({"config": indented}, step=0)
        self.console.say(f"TensorBoard:  tensorboard --logdir {self.path / TENSORBOARD}")

    def follow(self) -> None:
        """Log the generations that are new in the run's files."""
        for row in self.reader.new_rows():
            for point in self.reader.points():
                self.tracker.log(point, step=int(point["env_steps"]))
            self.tracker.log(row, step=int(row["env_steps"]))
            self.agents.follow(self.reader.latest, self.reader.lineage)

    def end(self, final: dict[str, float]) -> None:
        """The final figures."""
        self.tracker.log(final, step=self.reader.latest["env_steps"])

    def close(self, finished: bool) -> None:
        """No more will come; `finished`: the run has its score."""
        self.agents.close()
        self.tracker.finish()

    def abandon(self, error: Exception) -> None:
        """It failed, and nothing is left to do."""


class WeightsAndBiases:
    """A run on W&B: online one, however often it is resumed; offline a log of all of it.

    A generation has `SLOTS` of W&B's own steps, the last of them for its figures: so a run that
    resumes knows from the last step what is there already. Curves have the environment steps as
    their x axis.
    """

    name = "W&B"

    def __init__(self, config: RunConfig, directory: RunDirectory, console: Console) -> None:
        self.config, self.path, self.console = config, directory.path, console
        self.reader = RunReader(directory.path, config)
        self.folder = self.path / WANDB
        self.online = config.tracking.wandb == "online"

    def begin(self) -> None:
        """Start the run on W&B, or resume it there."""
        self.folder.mkdir(exist_ok=True)  # W&B would write elsewhere if it could not
        offline = [*self.folder.glob("offline-run-*")]
        with self._inside():
            self.tracker = self._tracker()
            self.tracker.start()
        # Of a run that was killed a log may lack the end: all of it is logged again. A log that was
        # uploaded is the user's.
        for log in offline:
            if not any(log.glob("*.synced")):
                shutil.rmtree(log)
        self.run: Any = self.tracker.tracker
        self._free: int = self.run.step  # the first that W&B does not have
        self.run.config.update(self.config.model_dump(mode="json"), allow_val_change=True)
        self.run.define_metric("env_steps")
        self.run.define_metric("*", step_metric="env_steps")
        upload = f"offline; to upload: wandb sync {self.folder}/offline-run-*"
        self.console.say(f"W&B:          {self.run.url if self.online else upload}")

    def _tracker(self) -> WandBTracker:
        import wandb

        wanted = self.config.tracking
        if self.online and not wandb.login(prompt=False, verify=False):
            raise RuntimeError("no login: run `wandb login`, or set tracking.wandb=offline")
        return WandBTracker(
            wanted.project,
            entity=wanted.entity,
            group=wanted.group,
            id=self._identity() if self.online else None,
            name=self.path.name,
            dir=str(self.path),
            mode=wanted.wandb,
            resume="allow" if self.online else None,
            reinit="create_new",  # a run that the caller may have is left alone
            settings=wandb.Settings(
                silent=True,
                console="off",
                init_timeout=wanted.timeout,
                finish_timeout=wanted.timeout,
                finish_timeout_raises=True,
            ),
        )

    def _identity(self) -> str:
        """The id of this run on W&B, written down before W&B hears of it; by project and entity."""
        path, wanted = self.path / IDENTITY, self.config.tracking
        where = {"project": wanted.project, "entity": wanted.entity}
        if path.exists():
            known: dict[str, str] = json.loads(path.read_bytes())
            if known.items() >= where.items():
                return known["id"]
        fresh = secrets.token_hex(4)
        atomic_write(path, json.dumps({"id": fresh, **where}, indent=2) + "\n")
        return fresh

    def follow(self) -> None:
        """Log the generations that are new in the run's files and on W&B."""
        for row in self.reader.new_rows():
            last = SLOTS * int(row["generation"]) + SLOTS - 1
            points = self.reader.points()[: SLOTS - 1]
            for step, own in [*enumerate(points, last + 1 - SLOTS), (last, row)]:
                if step >= self._free:
                    self.tracker.log(own, step=step, commit=True)

    def end(self, final: dict[str, float]) -> None:
        """The final figures, and the best agent."""
        import wandb

        self.run.summary.update(final)
        with self._inside():
            artifact = wandb.Artifact(
                f"{self.path.name}-best",
                type="model",
                description="Weights as safetensors, everything else as JSON; nothing executable.",
                metadata=final,
            )
            for name in (WEIGHTS, FACTS):
                artifact.add_file(str(self.path / BEST / name), name=name)
            self.run.log_artifact(artifact)
            self._sum_up()

    def _sum_up(self) -> None:
        """Every evaluation as a table, what mattered, and the report with its charts."""
        import wandb

        columns, rows = self.reader.evaluations()
        self.run.summary.update(self.reader.importance())
        data = read_payload([self.path])
        page = render({"kind": "report", "data": data, "live": None}, self.path.name)
        self.run.summary["agents"] = wandb.Table(columns=columns, data=rows)
        self.run.summary["report"] = wandb.Html(page, inject=False)

    def close(self, finished: bool) -> None:
        """Wait, but not long, until everything is written or uploaded."""
        try:
            self.run.finish(exit_code=0 if finished else 1)
        except TimeoutError:
            raise RuntimeError(
                f"not all was uploaded in {self.config.tracking.timeout:g} seconds; the rest is on"
                f" disk: wandb sync --include-online {self.folder}/run-*"
            ) from None

    def abandon(self, error: Exception) -> None:
        """It failed; a service that is gone would fail once more when Python ends."""
        if isinstance(error, ConnectionError):
            import wandb

            with suppress(Exception):
                wandb.teardown()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """W&B reads from these where to put files that are to be uploaded, and what to print."""
        wanted = {"WANDB_SILENT": "true"}
        if not self.online:  # which W&B's reports of its own would not be
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


Tracker = TensorBoard | WeightsAndBiases


class Tracking:
    """The trackers of a run, on its main rank. With none of them it does nothing."""

    def __init__(self, config: RunConfig, directory: RunDirectory, console: Console) -> None:
        kinds: list[type[Tracker]] = []
        kinds += [WeightsAndBiases] if config.tracking.wandb != "off" else []
        kinds += [TensorBoard] if config.tracking.tensorboard else []
        self.trackers = [kind(config, directory, console) for kind in kinds]
        self._finished = False

    def begin(self) -> None:
        """Before the first generation, or when a run resumes: logs what trackers have missed."""
        self._each(lambda tracker: tracker.begin())
        self.follow()

    def follow(self) -> None:
        """After a generation, when its metrics and lineage are written."""
        self._each(lambda tracker: tracker.follow())

    def end(self, summary: Mapping[str, Any]) -> None:
        """The run has its final score; `summary` is what summary.json says."""
        self._each(lambda tracker: tracker.end(final_figures(summary)))
        self._finished = True

    def close(self) -> None:
        """However the run ended."""
        self._each(lambda tracker: tracker.close(self._finished))
        self.trackers = []

    def _each(self, act: Callable[[Tracker], None]) -> None:
        """One tracker's failure is neither the run's nor the other's."""
        for tracker in list(self.trackers):
            try:
                act(tracker)
            except Exception as error:
                self.trackers.remove(tracker)
                reason = one_line(" ".join(str(error).split())) or type(error).__name__
                message = f"{tracker.name} is off from here on, training continues: {reason}"
                warnings.warn(message, stacklevel=3)
                tracker.abandon(error)


def final_figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of summary.json, flat."""
    score = summary["score"]
    found = {"score/episodes": score["episodes"]}
    for name in ("mean", "iqm"):
        found[f"score/{name}"] = score[name]["value"]
        found |= {f"score/{name}_{end}": score[name][end] for end in ("low", "high")}
    names = ("env_steps", "evaluation_steps", "final_steps", "total_steps", "updates", "seconds")
    return found | {f"final/{name}": summary[name] for name in names}
