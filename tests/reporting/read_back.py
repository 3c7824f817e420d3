"""What W&B's client wrote in offline mode, read back from its binary log."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from wandb.proto import wandb_internal_pb2


@dataclass
class Session:
    """One log: what one process told of a run."""

    folder: Path
    id: str = ""
    resumed: bool = False
    project: str = ""
    config: dict = field(default_factory=dict)
    rows: list = field(default_factory=list)  # of the history
    summary: dict = field(default_factory=dict)
    metrics: list = field(default_factory=list)  # definitions
    artifacts: list = field(default_factory=list)
    stats: set = field(default_factory=set)  # names of system figures
    exit_code: int | None = None

    @property
    def told(self):
        """The rows that have a generation's numbers."""
        return [row for row in self.rows if "generation" in row]

    @property
    def generations(self):
        return [row["generation"] for row in self.told]

    def artifact(self, kind):
        """Names and contents of the latest artifact of a kind."""
        found = [one for one in self.artifacts if one.type == kind][-1]
        return found, {
            entry.path: Path(entry.local_path).read_bytes() for entry in found.manifest.contents
        }


def sessions(run):
    """All logs of a run directory, in the order of their making.

    W&B's service writes the end of a log some milliseconds after the client has finished, which
    this waits for.
    """
    deadline = time.monotonic() + 60
    paths = sorted((run / "wandb").glob("*run-*/run-*.wandb"))
    found = [read(path) for path in paths]
    while any(session.exit_code is None for session in found):
        assert time.monotonic() < deadline
        time.sleep(0.005)
        found = [read(path) for path in paths]
    return found


def read(path):
    found = Session(path.parent)
    for data in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        _take(found, record)
    return found


def _take(found, record):
    match record.WhichOneof("record_type"):
        case "run":
            found.id, found.project = record.run.run_id, record.run.project
            found.resumed = record.run.resume
            _update(found.config, record.run.config.update)
        case "config":
            _update(found.config, record.config.update)
        case "history":
            row = {}
            _update(row, record.history.item)
            found.rows.append(row | {"_step": record.history.step.num})
        case "summary":
            _update(found.summary, record.summary.update)
        case "metric":
            found.metrics.append(record.metric)
        case "artifact":
            found.artifacts.append(record.artifact)
        case "stats":
            found.stats |= {item.key for item in record.stats.item}
        case "exit":
            found.exit_code = record.exit.exit_code


def _update(values, items):
    for item in items:
        *above, name = item.nested_key or [item.key]
        node = values
        for key in above:
            node = node.setdefault(key, {})
        node[name] = json.loads(item.value_json)


def _records(data):
    """LevelDB's format: blocks of 32 KB, records in pieces (1 whole, 2 first, 3 more, 4 last)."""
    assert data[:4] == b":W&B"
    whole = b""
    for start in range(0, len(data), 32768):
        block = data[start : start + 32768]
        at = 7 if start == 0 else 0
        while at + 7 <= len(block):
            length, kind = int.from_bytes(block[at + 4 : at + 6], "little"), block[at + 6]
            if kind == 0:
                break
            if at + 7 + length > len(block):
                return  # it is being written
            whole += block[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):
                yield whole
                whole = b""
