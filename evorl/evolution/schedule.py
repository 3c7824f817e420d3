"""The hyperparameters that an agent's line trained with, by its own steps: to train by them again.

    schedule = read_schedule("schedule.yaml")
    schedule.at(12_000)["lr"]

Legend: a segment is what held from its step until that of the next.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError, create_model, model_validator

from evorl.config import (
    MOST,
    Activation,
    Channels,
    Count,
    Pixels,
    RunConfig,
    Section,
    Units,
    describe,
    dump_yaml,
    explain,
    option,
    parse_config,
    read_yaml,
    refusal,
    refuse,
    refuse_override,
    resolve,
)
from evorl.errors import ConfigError, one_line
from evorl.evolution.lineage import Ancestor
from evorl.genome import Architecture

# The options that `config_for_schedule` takes from the schedule, beside the hyperparameters. Its
# steps are steps of training.
FIXED = frozenset(
    {
        ("population",),
        ("evolution",),
        ("replay", "share"),
        ("budget", "env_steps"),
        ("budget", "counts"),
        ("algorithm", "name"),
        *(("network", field.name) for field in fields(Architecture) if field.name != "gated"),
    }
)


class Segment(NamedTuple):
    """The hyperparameters from one of the agent's own steps on."""

    step: int
    hyperparameters: dict[str, int | float]


@dataclass(frozen=True)
class Schedule:
    """One agent's way from its first step to its best."""

    env: str
    steps: int  # own training steps in all
    architectures: Mapping[str, Architecture]  # the final ones, by network
    segments: tuple[Segment, ...]  # the first starts at step 0
    algorithm: str = "dqn"  # its name

    def at(self, step: int) -> dict[str, int | float]:
        """The hyperparameters at one of the agent's own steps."""
        after = bisect_right(self.segments, step, key=lambda segment: segment.step)
        return dict(self.segments[after - 1].hyperparameters)

    def to_yaml(self, heading: str = "") -> str:
        """The text that read_schedule reads back to an equal schedule."""
        shapes = {name: _given(own) for name, own in self.architectures.items()}
        lines = [
            *([f"# {one_line(heading)}"] if heading else []),
            dump_yaml({"env": self.env}).rstrip("\n"),
            dump_yaml({"algorithm": self.algorithm}).rstrip("\n"),
            f"steps: {self.steps}  # the agent's own training steps",
            f"architectures: {flow_text(shapes)}",
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


def schedule_of(config: RunConfig, ancestry: Sequence[Ancestor], steps: int) -> Schedule:
    """What the last of a line of descent trained with, up to `steps` of its own."""
    declared = config.algorithm.hyperparameter_fields()
    segments: list[Segment] = []
    for ancestor in ancestry:
        values = ancestor.genome.hyperparameters
        # in the order of their declaration, and whole numbers as such: JSON may have made floats
        typed = {
            name: int(values[name]) if field.annotation is int else values[name]
            for name, field in declared.items()
        }
        if segments and segments[-1].step == ancestor.own_steps:  # replaced before it trained
            segments.pop()
        if not segments or segments[-1].hyperparameters != typed:
            segments.append(Segment(ancestor.own_steps, typed))
    shapes = ancestry[-1].genome.architectures
    return Schedule(config.env.id, steps, shapes, tuple(segments), config.algorithm.name)


def refuse_fixed(config: RunConfig, overrides: Sequence[str]) -> None:
    """ConfigError that names the first option which is given, but fixed by any schedule."""
    own = {("algorithm", name) for name in config.algorithm.hyperparameters}
    why = "is fixed by the schedule that is replayed; leave it out"
    for text in overrides:
        refuse_override(text, FIXED | own, why)


def config_for_schedule(config: RunConfig, schedule: Schedule) -> RunConfig:
    """The configuration of one agent that trains by the schedule, without selection.

    It takes what is FIXED from the schedule; the run may still end early, at budget.stop_at. What
    no configuration can say, such as gated layers, is left to the schedule's own architectures.
    """
    for option_, own, other in (
        ("env.id", config.env.id, schedule.env),
        ("algorithm.name", config.algorithm.name, schedule.algorithm),
    ):
        if own != other:
            raise ConfigError(one_line(f"{option_}: is {own}, but the schedule is for {other}"))
    data = config.model_dump()
    network = _given(next(iter(schedule.architectures.values())))
    network.pop("gated", None)
    data["network"] |= network
    data["algorithm"] |= schedule.at(0)
    data["population"] = {"size": 1}
    data["evolution"] = {"method": "none"}
    data["replay"]["share"] = "agent"  # it has nobody to share with
    data["budget"] |= {"env_steps": schedule.steps, "counts": "training"}
    largest = max(part.hyperparameters.get("batch_size", 0) for part in schedule.segments)
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
    name = data.get("algorithm")
    try:
        model = _file_model(resolve("algorithm", name if isinstance(name, str) else "dqn"))
    except ConfigError as error:
        raise ConfigError(one_line(f"{source}: algorithm: {error}")) from None
    try:
        found = model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, model, source)) from None
    segments = tuple(Segment(p.step, p.model_dump(exclude={"step"})) for p in found.schedule)
    shapes = {name: own.build() for name, own in found.architectures.items()}
    return Schedule(found.env, found.steps, shapes, segments, found.algorithm)


class _ArchitectureFile(Section):
    hidden: list[Units] = option(..., "Units of each hidden layer.", min_length=1, max_length=8)
    activation: Activation = option(..., "Activation after every hidden layer.")
    layer_norm: bool = False
    dueling: bool = False
    gated: list[bool] = Field(default=[], max_length=8)
    channels: list[Channels] = Field(default=[], max_length=8)
    kernels: list[Pixels] = Field(default=[])
    strides: list[Pixels] = Field(default=[])

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
            refusal("", str(error))
        return self


class _SegmentFile(Section):
    step: int = option(..., "The agent's own step at which it begins.", ge=0, le=MOST)


class _ScheduleFile(Section):
    env: str = option(..., "Gymnasium environment id, such as CartPole-v1.", min_length=1)
    algorithm: str = option(..., "The algorithm's name, such as dqn.")
    steps: Count = option(..., "The agent's own training steps in all.")
    architectures: dict[str, _ArchitectureFile] = option(
        ..., "The architecture of each network, by its name.", min_length=1
    )
    schedule: list[_SegmentFile] = option(
        ..., "The hyperparameters, by the step from which they hold.", min_length=1
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


@cache
def _file_model(algorithm: Any) -> type[_ScheduleFile]:
    """The file of a schedule whose every segment has all of this algorithm's hyperparameters."""
    values: dict[str, Any] = {
        name: (field.rebuild_annotation(), option(..., field.description or ""))
        for name, field in algorithm.hyperparameter_fields().items()
    }
    segment = create_model("Segment", __base__=_SegmentFile, **values)
    about = _ScheduleFile.model_fields["schedule"].description or ""
    segments: Any = (list[segment], option(..., about, min_length=1))  # type: ignore[valid-type]
    return create_model("Schedule", __base__=_ScheduleFile, schedule=segments)


def _given(architecture: Architecture) -> dict[str, Any]:
    """Plain values, without the lists that are empty and gates that are not there."""
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(architecture).items()
    }
    values["gated"] = values["gated"] if any(values["gated"]) else []
    return {name: value for name, value in values.items() if value != []}
