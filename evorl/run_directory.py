"""The folder of one run: its configuration, its metrics, its summary and its best agent."""

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError

from evorl.agent_file import SavedAgent, save_agent
from evorl.errors import RunError


class RunDirectory:
    """runs/<name>/: config.yaml, metrics.jsonl, summary.json, best/."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls, folder: str | Path, name: str, if_exists: Literal["error", "number"] = "error"
    ) -> "RunDirectory":
        """Make a new directory; one that exists is never touched."""
        for number in range(1, 10_000):
            path = Path(folder) / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if if_exists == "number":
                    continue
                raise RunError(
                    f"{path} exists already: choose another name, remove it,"
                    " or set run.if_exists=number"
                ) from None
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise RunError(f"{str(path)!r}: cannot be made: {reason}") from None
            return cls(path)
        raise RunError(f"{Path(folder) / name}: 9,999 runs of that name exist, choose another")

    def write_config(self, text: str) -> None:
        """The resolved configuration, which reruns the run."""
        _replace(self.path / "config.yaml", text)

    def append_metrics(self, line: dict[str, Any]) -> None:
        """One line of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        with _writing(path), path.open("a", encoding="utf-8") as file:
            file.write(_json(line) + "\n")

    def write_summary(self, summary: dict[str, Any]) -> None:
        """The final score."""
        _replace(self.path / "summary.json", _json(summary, indent=2) + "\n")

    def save_best(self, agent: SavedAgent) -> None:
        """Replace best/ by this agent."""
        aside, best = self.path / "best.new", self.path / "best"
        shutil.rmtree(aside, ignore_errors=True)
        with _writing(best):
            save_agent(aside, agent)
            shutil.rmtree(best, ignore_errors=True)
            aside.rename(best)


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(path.name + ".new")
    with _writing(path):
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full disk or a folder that has gone is the user's to mend."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise RunError(f"{path}: cannot be written: {reason}") from None


def _json(value: Any, indent: int | None = None) -> str:
    """Strict JSON: what is not a finite number becomes null, as no parser need know -Infinity."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
