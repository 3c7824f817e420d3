"""Weights & Biases and TensorBoard, through Accelerate's trackers. Any method may raise.

A tracker begins, logs generations, may draw curves and tables of the whole run, gets the final
figures and is closed; one that raised is abandoned instead.

W&B's own step is 2 g for the numbers of generation g and 2 g + 1 for what is drawn after it, so
that a run that resumes knows from the last step what is there already. Curves have the environment
steps as their x axis.
"""

import json
import os
import secrets
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from accelerate.tracking import TensorBoardTracker, WandBTracker  # type: ignore[import-untyped]

from evorl.config import RunConfig, dump_config
from evorl.reporting.console import Console
from evorl.reporting.tracking.charts import charts
from evorl.reporting.tracking.run_reader import Row, RunReader
from evorl.runs import BEST, FACTS, WEIGHTS, RunDirectory, atomic_write

WANDB, TENSORBOARD, IDENTITY = "wandb", "tensorboard", "wandb.json"  # in the run's folder


class TensorBoard:
    """A run's numbers as event files in its folder, by environment steps; it has no charts."""

    name = "TensorBoard"

    def __init__(self, config: RunConfig, directory: RunDirectory, console: Console) -> None:
        self.config, self.path, self.console = config, directory.path, console
        # A run that resumes logs all of it again: with this, TensorBoard forgets what was there.
        self.tracker = TensorBoardTracker(TENSORBOARD, self.path, purge_step=0)

    def begin(self) -> int:
        """The first generation to log: all of them, as that takes a second in a thousand."""
        self.tracker.start()
        indented = "".join(f"    {line}\n" for line in dump_config(self.config).splitlines())
        self.tracker.log({"config": indented}, step=0)
        self.console.say(f"TensorBoard:  tensorboard --logdir {self.path / TENSORBOARD}")
        return 0

    def log(self, row: Row) -> None:
        """One generation."""
        self.tracker.log({"generation": row.generation, **row.values}, step=row.env_steps)

    def draw(self, run: RunReader) -> None:
        """Nothing: TensorBoard draws each number by itself."""

    def end(self, run: RunReader, final: Mapping[str, float]) -> None:
        """The final figures."""
        self.tracker.log(dict(final), step=run.latest["env_steps"])

    def close(self, finished: bool) -> None:
        """No more will come; `finished`: the run has its score."""
        self.tracker.finish()

    def abandon(self, error: Exception) -> None:
        """It failed, and nothing is left to do."""


class WeightsAndBiases:
    """One W&B run for one run directory, however often it is resumed."""

    name = "W&B"

    def __init__(self, config: RunConfig, directory: RunDirectory, console: Console) -> None:
        self.config, self.path, self.console = config, directory.path, console
        self.folder = self.path / WANDB
        self.run: Any = None
        self._free = 0  # the first step that is not taken

    def begin(self) -> int:
        """Start the run or resume it; the first generation that it does not know."""
        online = self.config.tracking.wandb == "online"
        self.folder.mkdir(exist_ok=True)  # W&B would write elsewhere if it could not
        identity = self._identity()
        with self._inside():
            self.tracker = self._tracker(identity)
            # Before there is another log of the same run. Online the server knows better.
            self._free = 0 if online else next_step(self.folder, identity)
            self.tracker.start()
        self.run = self.tracker.tracker
        if online:
            self._free = self.run.step
        self.run.config.update(self.config.model_dump(mode="json"), allow_val_change=True)
        self.run.define_metric("env_steps")
        self.run.define_metric("*", step_metric="env_steps")
        offline = f"offline; to upload: wandb sync {self.folder}/offline-run-*"
        self.console.say(f"W&B:          {self.run.url if online else offline}")
        return (self._free + 1) // 2

    def _tracker(self, identity: str) -> WandBTracker:
        import wandb

        wanted = self.config.tracking
        if wanted.wandb == "online" and not wandb.login(prompt=False, verify=False):
            raise RuntimeError("no login: run `wandb login`, or set tracking.wandb=offline")
        return WandBTracker(
            wanted.project,
            entity=wanted.entity,
            group=wanted.group,
            id=identity,
            name=self.path.name,
            dir=str(self.path),
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

    def log(self, row: Row) -> None:
        """The numbers of one generation."""
        step = 2 * row.generation
        values = {"generation": row.generation, "env_steps": row.env_steps, **row.values}
        self.tracker.log(values, step=step, commit=True)
        self._free = step + 1

    def draw(self, run: RunReader) -> None:
        """Curves and tables of the whole run so far; the latest ones are what W&B shows."""
        step = 2 * run.latest["generation"] + 1
        if step < self._free:  # drawn already
            return
        with self._inside():
            drawn = charts(run) | {"env_steps": run.latest["env_steps"]}
            self.tracker.log(drawn, step=step, commit=True)
        self._free = step + 1

    def end(self, run: RunReader, final: Mapping[str, float]) -> None:
        """The final figures, and the best agent."""
        import wandb

        self.run.summary.update(dict(final))
        with self._inside():
            artifact = wandb.Artifact(
                f"{self.path.name}-best",
                type="model",
                description="Weights as safetensors, everything else as JSON; nothing executable.",
                metadata=dict(final),
            )
            for name in (WEIGHTS, FACTS):
                artifact.add_file(str(self.path / BEST / name), name=name)
            self.run.log_artifact(artifact)

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

    def _identity(self) -> str:
        """The id of this run on W&B, written down before W&B hears of it; by project and entity."""
        path, wanted = self.path / IDENTITY, self.config.tracking
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
        """W&B reads from these where to put files that are to be uploaded, and what to print."""
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


def next_step(folder: Path, run_id: str) -> int:
    """The first step that no offline log of a run has; W&B writes them up to 15 seconds late.

    Of a run that was killed only the log itself says what is in it, and W&B has no reader for it.
    """
    from wandb.proto import wandb_internal_pb2

    step = -1
    for path in folder.glob(f"*run-*/run-{run_id}.wandb"):
        for data in _records(path.read_bytes()):
            record: Any = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            record.ParseFromString(data)
            if record.HasField("history"):
                step = max(step, int(record.history.step.num))
    return step + 1


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a log, up to the first that is not whole: LevelDB's format and a header."""
    block, header, place, record = 32768, 7, 7, b""
    while data[:4] == b":W&B" and place + header <= len(data):
        left = block - place % block
        if left < header:  # too little for a record: zeros
            place += left
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, place)
        piece = data[place + header : place + header + length]
        if len(piece) < length or checksum != zlib.crc32(piece, zlib.crc32(bytes([kind]))):
            return
        place += header + length
        record += piece
        if kind in (1, 4):  # a record in one piece, or the last piece of one
            yield record
            record = b""
