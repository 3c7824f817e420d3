"""Tracking: copies what the files of a run say to its trackers, and lets none of them stop it."""

import importlib.util
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evorl.config import RunConfig, TrackingConfig
from evorl.errors import ConfigError, one_line
from evorl.reporting.console import Console
from evorl.reporting.tracking.run_reader import Row, RunReader
from evorl.runs import RunDirectory

if TYPE_CHECKING:
    from evorl.reporting.tracking.trackers import TensorBoard, WeightsAndBiases

    Tracker = TensorBoard | WeightsAndBiases

DRAWING = 0.001  # share of a run's time that drawing may take until its end


def refuse_missing(config: TrackingConfig) -> None:
    """ConfigError if a tracker is asked for that is not installed."""
    wanted = {"wandb": config.wandb != "off", "tensorboard": config.tensorboard}
    for name, asked in wanted.items():
        if asked and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"tracking.{name}: the package {name} is not installed; pip install {name},"
                f" or set tracking.{name}={'off' if name == 'wandb' else 'false'}"
            )


def make_trackers(config: RunConfig, directory: RunDirectory, console: Console) -> "list[Tracker]":
    """The trackers that a run asks for; without any, nothing of theirs is imported."""
    refuse_missing(config.tracking)
    wandb, tensorboard = config.tracking.wandb != "off", config.tracking.tensorboard
    if not (wandb or tensorboard):
        return []
    from evorl.reporting.tracking.trackers import TensorBoard, WeightsAndBiases

    kinds = (WeightsAndBiases,) * wandb + (TensorBoard,) * tensorboard
    return [kind(config, directory, console) for kind in kinds]


class Tracking:
    """The trackers of a run, on its main rank. With none of them it does nothing."""

    def __init__(self, config: RunConfig, directory: RunDirectory, console: Console) -> None:
        self.trackers = make_trackers(config, directory, console)
        self._run = RunReader(directory, config)
        self._first: dict[str, int] = {}  # generation that each tracker does not know yet
        self._drawn = -1  # generation
        self._drawing = 0.0  # seconds so far
        self._began = time.perf_counter()
        self._finished = False

    def begin(self) -> None:
        """Before the first generation, or when a run resumes: logs what trackers have missed."""
        self._each(self._begin)
        self.follow()

    def follow(self) -> None:
        """After a generation, when its metrics and lineage are written."""
        rows = self._new_rows()
        self._each(lambda tracker: self._log(tracker, rows))
        if rows and self._drawing <= DRAWING * (time.perf_counter() - self._began):
            self._draw()

    def end(self, summary: Mapping[str, Any]) -> None:
        """The run has its final score; `summary` is what summary.json says."""
        self._draw()
        self._each(lambda tracker: tracker.end(self._run, final_figures(summary)))
        self._finished = True

    def close(self) -> None:
        """However the run ended."""
        self._draw()
        self._each(lambda tracker: tracker.close(self._finished))
        self.trackers = []

    def _begin(self, tracker: "Tracker") -> None:
        self._first[tracker.name] = tracker.begin()

    def _log(self, tracker: "Tracker", rows: Sequence[Row]) -> None:
        for row in rows:
            if row.generation >= self._first[tracker.name]:
                tracker.log(row)

    def _draw(self) -> None:
        """All of the run up to now, unless that is drawn already."""
        generation = self._run.latest.get("generation", -1)
        if generation > self._drawn:
            started = time.perf_counter()
            self._each(lambda tracker: tracker.draw(self._run))
            self._drawing += time.perf_counter() - started
            self._drawn = generation

    def _new_rows(self) -> list[Row]:
        if not self.trackers:
            return []
        try:
            return list(self._run.new_rows())
        except Exception as error:
            for tracker in list(self.trackers):
                self._give_up(tracker, error)
            return []

    def _each(self, act: "Callable[[Tracker], None]") -> None:
        """One tracker's failure is neither the run's nor the other's."""
        for tracker in list(self.trackers):
            try:
                act(tracker)
            except Exception as error:
                self._give_up(tracker, error)

    def _give_up(self, tracker: "Tracker", error: Exception) -> None:
        self.trackers.remove(tracker)
        reason = one_line(" ".join(str(error).split())) or type(error).__name__
        warnings.warn(
            f"{tracker.name} is off from here on, training continues: {reason}", stacklevel=2
        )
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
