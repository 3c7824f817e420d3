"""Every agent as a run of its own in TensorBoard: its curves, and HParams with its best fitness."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evorl.evolution import Lineage
from evorl.reporting.importance import sizes_of
from evorl.reporting.training_data import CURVES, measured, measured_names

FOLDER = "agents"
MOST = 200  # agents that are shown: TensorBoard is slow with more runs
BEST = "fitness/highest"


class AgentCurves:
    """Writes while agents live; of those who are gone, or at the end, what they were worth."""

    def __init__(self, folder: Path, make_writer: Callable[[str], Any]) -> None:
        """`make_writer` opens event files in a folder; what an earlier process wrote is removed."""
        self.folder, self.make_writer = folder / FOLDER, make_writer
        shutil.rmtree(self.folder, ignore_errors=True)
        self._writers: dict[int, Any] = {}  # of agents that live
        self._known: dict[int, dict[str, Any]] = {}  # of all: what they train with
        self._best: dict[int, float] = {}

    def follow(self, line: Mapping[str, Any], lineage: Lineage) -> None:
        """A generation, as metrics.jsonl has it."""
        for place, id in enumerate(line["ids"]):
            if id in self._known or len(self._known) < MOST:
                values = {name: own[place] for name, own in line["hyperparameters"].items()}
                self._known[id] = values | sizes_of(lineage.births[id].genome)
                self._log(id, line, place)
        for id in self._writers.keys() - set(line["ids"]):
            self._end(id)

    def close(self) -> None:
        """No more will come."""
        for id in list(self._writers):
            self._end(id)

    def _log(self, id: int, line: Mapping[str, Any], place: int) -> None:
        if id not in self._writers:
            self._writers[id] = self.make_writer(str(self.folder / f"{id:04d}"))
        writer, step = self._writers[id], line["env_steps"]
        names = measured_names([line])
        told: dict[str, float | None] = {
            "fitness/own": line["fitness"][place],
            "training/exploration": line["exploration"][place],
        }
        told |= {f"training/{name}": measured(line, name, place) for name in names}
        self._write(writer, told, step)
        training = line.get("training", {"env_steps": []})
        for k, at in enumerate(training["env_steps"]):
            self._write(writer, {f"training/{n}": training[n][k][place] for n in CURVES}, at)
        if (fitness := line["fitness"][place]) is not None:
            self._best[id] = max(self._best.get(id, fitness), fitness)

    def _write(self, writer: Any, values: Mapping[str, float | None], step: int) -> None:
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(name, value, step)

    def _end(self, id: int) -> None:
        """HParams wants each agent's values beside one figure of it."""
        from torch.utils.tensorboard.summary import hparams

        writer = self._writers.pop(id)
        if id in self._best:
            summaries: Any = hparams(self._known[id], {BEST: self._best[id]})  # type: ignore[no-untyped-call]
            for summary in summaries:
                writer.file_writer.add_summary(summary)
            writer.add_scalar(BEST, self._best[id])
        writer.close()
