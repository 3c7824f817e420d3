"""metrics.jsonl, read back: one line a generation."""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from evorl.evolution import first_problem
from evorl.runs import read_lines, run_error


@dataclass(frozen=True)
class MetricsLine:
    """What a report needs of a line; lists are by the agent's place, null is what is not finite."""

    __pydantic_config__ = {"allow_inf_nan": False}  # noqa: RUF012

    generation: int
    env_steps: int
    evaluation_steps: int
    updates: int
    seconds: float  # since the process began: a resumed run starts at zero again
    best: float | None  # the confirmed fitness of the best agent so far
    ids: list[int]
    fitness: list[float | None]
    loss: list[float | None]
    exploration: list[float | None]
    hyperparameters: dict[str, list[float | None]]
    shares: dict[str, float] = field(default_factory=dict)  # of the time, by stage

    def __post_init__(self) -> None:
        lists = [self.fitness, self.loss, self.exploration, *self.hyperparameters.values()]
        if any(len(values) != len(self.ids) for values in lists):
            raise ValueError("its lists are not equally long")
        if len(set(self.ids)) != len(self.ids):
            raise ValueError("an agent is named twice")


_LINE = TypeAdapter(MetricsLine)


def read_metrics(path: Path) -> list[MetricsLine]:
    """All complete lines; none if there is no file yet. A last line that is cut off is left out."""
    lines: list[MetricsLine] = []
    for number, text in enumerate(read_lines(path), 1):
        try:
            lines.append(_LINE.validate_json(text, strict=True))
        except ValidationError as error:
            problem = f"line {number}: not metrics of this version: {first_problem(error)}"
            raise run_error(path, problem) from None
    for number, (before, after) in enumerate(pairwise(lines), 2):
        if after.generation <= before.generation:
            raise run_error(path, f"line {number}: the generations go back in time")
    return lines


def running_seconds(lines: list[MetricsLine]) -> list[float]:
    """The time at each line's end, added up over the times that the run was resumed."""
    found: list[float] = []
    offset = 0.0
    for place, line in enumerate(lines):
        if place and line.seconds < lines[place - 1].seconds:
            offset = found[-1]
        found.append(offset + line.seconds)
    return found
