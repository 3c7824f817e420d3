"""metrics.jsonl, read back: one line a generation."""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from evorl.errors import RunError, one_line


@dataclass(frozen=True)
class MetricsLine:
    """What a report needs of a line; lists go by the agent's place, null is what is not finite."""

    __pydantic_config__ = {"allow_inf_nan": False}  # noqa: RUF012

    generation: int
    env_steps: int
    evaluation_steps: int
    updates: int
    seconds: float  # since the process began, which starts anew when a run is resumed
    best: float | None  # the confirmed fitness of the best agent so far
    ids: list[int]
    fitness: list[float | None]
    loss: list[float | None]
    exploration: list[float | None]
    hyperparameters: dict[str, list[float | None]]
    shares: dict[str, float] = field(default_factory=dict)  # of the time, by what it went to

    def __post_init__(self) -> None:
        lists = [self.fitness, self.loss, self.exploration, *self.hyperparameters.values()]
        if any(len(values) != len(self.ids) for values in lists):
            raise ValueError("its lists are not equally long")
        if len(set(self.ids)) != len(self.ids):
            raise ValueError("an agent is named twice")


_LINE = TypeAdapter(MetricsLine)


def read_metrics(path: Path) -> list[MetricsLine]:
    """All complete lines; none if there is no file yet. A last line that is cut off is left out."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RunError(one_line(f"{path}: cannot be read: {reason}")) from None
    lines = [
        parse_line(line, f"{path}: line {number}")
        for number, line in enumerate(text.split(b"\n")[:-1], 1)
    ]
    for number, (before, after) in enumerate(pairwise(lines), 2):
        if after.generation <= before.generation:
            raise RunError(one_line(f"{path}: line {number}: the generations go back in time"))
    return lines


def parse_line(line: bytes, where: str) -> MetricsLine:
    """One line; RunError, which says where, if it is none."""
    try:
        return _LINE.validate_json(line, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        what = f"{key}: {first['msg']}" if key else first["msg"]
        raise RunError(one_line(f"{where}: not metrics of this version: {what}")) from None


def running_seconds(lines: list[MetricsLine]) -> list[float]:
    """The time at each line's end, which goes on where a resumed run counts from zero again."""
    found: list[float] = []
    offset = 0.0
    for place, line in enumerate(lines):
        if place and line.seconds < lines[place - 1].seconds:
            offset = found[-1]
        found.append(offset + line.seconds)
    return found
