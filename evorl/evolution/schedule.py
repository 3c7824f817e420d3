"""The hyperparameters that an agent's line trained with, by its own steps: to train by them again.

    schedule = read_schedule("schedule.yaml")
    schedule.at(12_000)["lr"]

Legend: a segment is what held from its step until that of the next.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from evorl.config import Hyperparameters, RunConfig, parse_config, ranges
from evorl.config.overrides import refuse_override
from evorl.config.ranges import refuse
from evorl.config.section import Section
from evorl.config.wording import REFUSED, describe, explain
from evorl.config.yaml_text import dump_yaml, one_line, read_yaml
from evorl.errors import ConfigError
from evorl.evolution.lineage import Ancestor
from evorl.genome import Architecture

# The options that `along` takes from the schedule. Its steps are steps of training.
FIXED = frozenset(
    {
        ("population",),
        ("evolution",),
        ("replay", "share"),
        ("budget", "env_steps"),
        ("budget", "counts"),
        *(("algorithm", name) for name in Hyperparameters.model_fields),
        *(("network", field.name) for field in fields(Architecture) if field.name != "gated"),
    }
)


class Segment(NamedTuple):
    """The hyperparameters from one of the agent's own steps on."""

    step: int
    hyperparameters: dict[str, float]


@dataclass(frozen=True)
class Schedule:
    """One agent's way from its first step to its best."""

    env: str
    steps: int  # own training steps in all
    architecture: Architecture  # the final one
    segments: tuple[Segment, ...]  # the first starts at step 0

    def at(self, step: int) -> dict[str, float]:
        """The hyperparameters at one of the agent's own steps."""
        after = bisect_right(self.segments, step, key=lambda segment: segment.step)
        return dict(self.segments[after - 1].hyperparameters)

    def to_yaml(self, heading: str = "") -> str:
        """The text that read_schedule reads back to an equal schedule."""
        lines = [
            *([f"# {one_line(heading)}"] if heading else []),
            dump_yaml({"env": self.env}).rstrip("\n"),
            f"steps: {self.steps}  # the agent's own training steps",
            f"architecture: {flow_text(_given(self.architecture))}",
            "schedule:",
            *(f"  - {flow_text({'step': step} | values)}" for step, values in self.segments),
        ]
        return "\n".join(lines) + "\n"


def flow_text(value: Any) -> str:
    """Numbers, names, lists and mappings as YAML on one line."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key}: {flow_text(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(flow_text(item) for item in value) + "]"
        case bool():
            return str(value).lower()
    return str(value)


def schedule_of(env: str, ancestry: Sequence[Ancestor], steps: int) -> Schedule:
    """What the last of a line of descent trained with, up to so many of its own steps."""
    segments: list[Segment] = []
    for ancestor in ancestry:
        part = Segment(ancestor.own_steps, _typed(ancestor.genome.hyperparameters))
        if segments and segments[-1].step == part.step:  # it was replaced before it trained
            segments.pop()
        if not segments or segments[-1].hyperparameters != part.hyperparameters:
            segments.append(part)
    return Schedule(
        env, steps, next(iter(ancestry[-1].genome.architectures.values())), tuple(segments)
    )


def refuse_fixed(overrides: Sequence[str]) -> None:
    """ConfigError that names the first option which is given, but fixed by any schedule."""
    for text in overrides:
        refuse_override(text, FIXED, "is fixed by the schedule that is replayed; leave it out")


def along(config: RunConfig, schedule: Schedule) -> RunConfig:
    """The configuration of one agent that trains by the schedule, without selection.

    What it takes from the schedule is FIXED; the run may still end early, at budget.stop_at. Gated
    layers, which no configuration can say, are left to the schedule's own architecture.
    """
    if config.env.id != schedule.env:
        raise ConfigError(
            one_line(f"env.id: is {config.env.id}, but the schedule is for {schedule.env}")
        )
    data = config.model_dump()
    network = _given(schedule.architecture)
    network.pop("gated", None)
    data["network"] |= network
    data["algorithm"] |= schedule.at(0)
    data["population"] = {"size": 1}
    data["evolution"] = {"method": "none"}
    data["replay"]["share"] = "agent"  # it has nobody to share with
    data["budget"] |= {"env_steps": schedule.steps, "counts": "training"}
    largest = int(max(part.hyperparameters["batch_size"] for part in schedule.segments))
    if largest > config.replay.capacity:
        raise ConfigError(
            f"replay.capacity: must be at least the schedule's largest batch size, {largest},"
            f" got {config.replay.capacity}"
        )
    return parse_config(data, source="config along the schedule")


def read_schedule(path: str | Path) -> Schedule:
    """Read a schedule from a YAML file; ConfigError if it is wrong."""
    return parse_schedule(read_yaml(path), str(path))


def parse_schedule(data: Any, source: str) -> Schedule:
    """A schedule from what its YAML says; ConfigError if it is wrong."""
    if not isinstance(data, dict):
        got = describe(data)
        raise ConfigError(one_line(f"{source}: expected the mapping of a schedule, got {got}"))
    try:
        found = _ScheduleFile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, _ScheduleFile, source, {})) from None
    segments = (Segment(part.step, part.model_dump(exclude={"step"})) for part in found.schedule)
    return Schedule(found.env, found.steps, found.architecture.build(), tuple(segments))


class _ArchitectureFile(Section):
    hidden: ranges.Hidden
    activation: ranges.Activation
    layer_norm: bool = False
    dueling: bool = False
    gated: list[bool] = Field(default=[], max_length=8)
    channels: list[Annotated[int, Field(ge=1, le=1024)]] = Field(default=[], max_length=8)
    kernels: ranges.Kernels = Field(default=[])
    strides: ranges.Strides = Field(default=[])

    def build(self) -> Architecture:
        """As agents have it; ValueError if its parts don't fit each other."""
        values = self.model_dump()
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return Architecture(**(values | lists))

    @model_validator(mode="after")
    def _fits_together(self) -> "_ArchitectureFile":
        try:
            self.build()
        except ValueError as error:
            context = {"field": "", "message": str(error)}
            raise PydanticCustomError(REFUSED, "{message}", context) from None
        return self


class _SegmentFile(Hyperparameters):
    step: int = Field(ge=0, le=ranges.MOST, description="The agent's own step at which it begins.")

    @model_validator(mode="after")
    def _says_everything(self) -> "_SegmentFile":
        for name in Hyperparameters.model_fields:
            if name not in self.model_fields_set:
                refuse(name, "be given in every segment", None)
        return self


class _ScheduleFile(Section):
    env: str = Field(min_length=1, description="Gymnasium environment id, such as CartPole-v1.")
    steps: ranges.Count = Field(description="The agent's own training steps in all.")
    architecture: _ArchitectureFile
    schedule: list[_SegmentFile] = Field(
        min_length=1, description="The hyperparameters, by the step from which they hold."
    )

    @model_validator(mode="after")
    def _ascends(self) -> "_ScheduleFile":
        steps = [part.step for part in self.schedule]
        if steps[0] != 0:
            refuse("schedule.0.step", "be 0", steps[0])
        for place, (before, after) in enumerate(pairwise(steps), 1):
            if after <= before:
                refuse(f"schedule.{place}.step", f"be greater than the one before, {before}", after)
        if steps[-1] >= self.steps:
            refuse("steps", f"be greater than the last segment's step, {steps[-1]}", self.steps)
        return self


def _typed(values: Mapping[str, float]) -> dict[str, float]:
    """In the usual order, and whole numbers as such: JSON may have made floats of them."""
    return {
        name: values[name] if field.annotation is float else int(values[name])
        for name, field in Hyperparameters.model_fields.items()
    }


def _given(architecture: Architecture) -> dict[str, Any]:
    """Plain values, without the lists that are empty and gates that are not there."""
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(architecture).items()
    }
    values["gated"] = values["gated"] if any(values["gated"]) else []
    return {name: value for name, value in values.items() if value != []}
