"""Tracking: tells the trackers of a run what its files say, and lets none of them stop it."""

import importlib.util
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from evorl.config import RunConfig, TrackingConfig
from evorl.errors import ConfigError, one_line
from evorl.reporting.console import Console
from evorl.reporting.tracking.rows import Evolving, Row
from evorl.reporting.tracking.story import Story
from evorl.runs.directory import RunDirectory

DRAWING = 0.001  # share of a run's time that drawing may take until its end


class Tracker(Protocol):
    """Somewhere that a run is copied to. Any method may raise: that is the last one called."""

    name: str

    def begin(self) -> int:
        """Open it; the first generation that it does not know yet."""

    def log(self, row: Row) -> None:
        """The numbers of a generation."""

    def draw(self, story: Story) -> None:
        """What is drawn of the whole run, anew."""

    def end(self, story: Story, final: Mapping[str, float]) -> None:
        """The final figures, and the best agent."""

    def close(self, finished: bool) -> None:
        """No more will come; `finished`: the run has its score."""

    def abandon(self, error: Exception) -> None:
        """It has failed, and is not asked again."""


def refuse_missing(config: TrackingConfig) -> None:
    """ConfigError if a tracker is asked for that is not installed."""
    wanted = {"wandb": config.wandb != "off", "tensorboard": config.tensorboard}
    for name, asked in wanted.items():
        if asked and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"tracking.{name}: the package {name} is not installed; pip install {name},"
                f" or set tracking.{name}={'off' if name == 'wandb' else 'false'}"
            )


def make_trackers(config: RunConfig, directory: RunDirectory, console: Console) -> list[Tracker]:
    """The trackers that a run asks for; the others are not even imported."""
    refuse_missing(config.tracking)
    found: list[Tracker] = []
    if config.tracking.wandb != "off":
        from evorl.reporting.tracking.weights_and_biases import WeightsAndBiases

        found.append(WeightsAndBiases(config, directory, console))
    if config.tracking.tensorboard:
        from evorl.reporting.tracking.tensor_board import TensorBoard

        found.append(TensorBoard(config, directory, console))
    return found


class Tracking:
    """The trackers of a run, on its main rank. With none of them it does nothing."""

    def __init__(self, config: RunConfig, directory: RunDirectory, console: Console) -> None:
        self.trackers = make_trackers(config, directory, console)
        self._story = Story(directory, Evolving.of(config))
        self._first: dict[str, int] = {}  # generation that each tracker does not know yet
        self._drawn = -1  # generation
        self._drawing = 0.0  # seconds so far
        self._began = time.perf_counter()
        self._finished = False

    def begin(self) -> None:
        """Before the first generation, or before a run goes on; tells what trackers have missed."""
        self._each(self._begin)
        self.follow()

    def follow(self) -> None:
        """After a generation, when its metrics and lineage are written."""
        rows = self._news()
        self._each(partial(self._tell, rows))
        if rows and self._drawing <= DRAWING * (time.perf_counter() - self._began):
            self._draw()

    def end(self, summary: Mapping[str, Any]) -> None:
        """The run has its final score; `summary` is what summary.json says."""
        self._draw()
        self._each(lambda tracker: tracker.end(self._story, final_figures(summary)))
        self._finished = True

    def close(self) -> None:
        """However the run ended."""
        self._draw()
        self._each(lambda tracker: tracker.close(self._finished))
        self.trackers = []

    def _begin(self, tracker: Tracker) -> None:
        self._first[tracker.name] = tracker.begin()

    def _tell(self, rows: Sequence[Row], tracker: Tracker) -> None:
        for row in rows:
            if row.generation >= self._first[tracker.name]:
                tracker.log(row)

    def _draw(self) -> None:
        """All of the run up to now, unless that is drawn already."""
        generation = self._story.latest.get("generation", -1)
        if generation > self._drawn:
            started = time.perf_counter()
            self._each(lambda tracker: tracker.draw(self._story))
            self._drawing += time.perf_counter() - started
            self._drawn = generation

    def _news(self) -> list[Row]:
        if not self.trackers:
            return []
        try:
            return list(self._story.news())
        except Exception as error:
            for tracker in list(self.trackers):
                self._give_up(tracker, error)
            return []

    def _each(self, act: Callable[[Tracker], None]) -> None:
        """One tracker's failure is neither the run's nor the other's."""
        for tracker in list(self.trackers):
            try:
                act(tracker)
            except Exception as error:
                self._give_up(tracker, error)

    def _give_up(self, tracker: Tracker, error: Exception) -> None:
        self.trackers.remove(tracker)
        reason = one_line(" ".join(str(error).split())) or type(error).__name__
        warnings.warn(
            f"{tracker.name} is off from here on, training goes on: {reason}", stacklevel=2
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
