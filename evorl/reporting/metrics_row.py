"""A line of metrics.jsonl, as far as reports show it: types and bounds."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evorl.evolution import first_problem
from evorl.runs import TOO_LARGE, parse_json

Count = Annotated[int, Field(ge=-1, le=10**15)]
Number = Annotated[float, Field(gt=-TOO_LARGE, lt=TOO_LARGE)]
Numbers = list[Number | None]


class Actors(BaseModel):
    """What the learner tells of its actors."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")
    __pydantic_extra__: dict[str, Number | None]

    refused: dict[str, Count] = {}


class MetricsRow(BaseModel):
    """One evaluation; what belongs to an agent is in the order of `ids`."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    generation: Count
    env_steps: Count
    evaluation_steps: Count
    seconds: Number
    steps_per_second: Number
    best: Number | None
    ids: list[Count]
    fitness: Numbers
    loss: Numbers
    exploration: Numbers
    hyperparameters: dict[str, list[Number]]
    shares: dict[str, Number]
    actors: Actors | None = None


def read_row(line: bytes) -> dict[str, Any]:
    """A line of metrics.jsonl; ValueError if it is none."""
    values = parse_json(line)
    try:
        row = MetricsRow.model_validate(values)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    known: list[Any] = [row.fitness, row.loss, row.exploration, *row.hyperparameters.values()]
    if any(len(each) != len(row.ids) for each in known):
        raise ValueError(f"not all values are those of {len(row.ids)} agents")
    return dict(values)
