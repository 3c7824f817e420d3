"""The hyperparameters that an agent's line trained with, by its own steps: to train by them again.

    schedule = read_schedule("schedule.yaml")
    schedule.at(12_000)["lr"]

A segment is what held from its step until that of the next.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import PlainValidator, TypeAdapter, ValidationError, model_validator

from evorl.config import (
    SCHEDULE,
    Count,
    RunConfig,
    Section,
    explain,
    option,
    parse_config,
    read_yaml,
    refusal,
    refuse,
    refuse_override,
)
from evorl.errors import ConfigError, one_line
from evorl.evolution.lineage import Ancestor, first_problem
from evorl.genome import Architecture

_ARCHITECTURE = TypeAdapter(Architecture)


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
        values = {
            "env": self.env,
            "algorithm": self.algorithm,
            "steps": self.steps,
            "architectures": {name: _given(own) for name, own in self.architectures.items()},
            "schedule": [{"step": step} | values for step, values in self.segments],
        }
        # one line for each segment: its numbers are on the innermost level
        text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=10**6)
        return (f"# {one_line(heading)}\n" if heading else "") + text


def schedule_of(env: str, algorithm: str, ancestry: Sequence[Ancestor], steps: int) -> Schedule:
    """What the last of a line of descent trained with, up to `steps` of its own."""
    segments: list[Segment] = []
    for ancestor in ancestry:
        values = dict(ancestor.genome.hyperparameters)
        if segments and segments[-1].step == ancestor.own_steps:  # replaced before it trained
            segments.pop()
        if not segments or segments[-1].hyperparameters != values:
            segments.append(Segment(ancestor.own_steps, values))
    shapes = ancestry[-1].genome.architectures
    return Schedule(env, steps, shapes, tuple(segments), algorithm)


def config_for_schedule(
    config: RunConfig, schedule: Schedule, overrides: Sequence[str] = ()
) -> RunConfig:
    """The configuration of one agent that trains by the schedule; what it fixes is not overridden.

    Gated layers, which no configuration has, are left to the schedule's own architectures.
    """
    for what, own, other in (
        ("env.id", config.env.id, schedule.env),
        ("algorithm.name", config.algorithm.name, schedule.algorithm),
    ):
        if own != other:
            raise ConfigError(f"{what}: is {own}, but the schedule is for {other}")
    network = _given(next(iter(schedule.architectures.values())))
    network.pop("gated", None)
    sections = {"population": {"size": 1}, "evolution": {"method": "none"}}
    options: dict[str, dict[str, Any]] = {
        "network": network,
        "algorithm": schedule.at(0) | {"name": schedule.algorithm},
        "budget": {"env_steps": schedule.steps, "counts": "training"},
    }
    if config.algorithm.experience == "replay":
        options["replay"] = {"share": "agent"}  # it has nobody to share with
    fixed = {(name,) for name in sections} | {(s, name) for s in options for name in options[s]}
    for text in overrides:
        refuse_override(text, fixed, "is fixed by the schedule that is replayed; leave it out")
    data = config.model_dump() | sections
    for name, values in options.items():
        data[name] |= values
    known, found = config.algorithm.hyperparameters.keys(), config
    for place, (_, values) in reversed(list(enumerate(schedule.segments))):  # the first one counts
        if odd := sorted(known ^ values.keys()):
            what = f"schedule.{place}: must have all hyperparameters, and nothing else"
            raise ConfigError(f"{what}; look at {', '.join(odd)}")
        data["algorithm"] |= values
        found = parse_config(data, source=f"config with schedule.{place}")
    return found


def read_schedule(path: str | Path) -> Schedule:
    """Read a schedule from a YAML file; ConfigError if it is wrong."""
    return parse_schedule(read_yaml(path, SCHEDULE), str(path))


def parse_schedule(data: Any, source: str) -> Schedule:
    """A schedule from what its YAML says; ConfigError if it is wrong."""
    try:
        found = _ScheduleFile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, _ScheduleFile, source, {})) from None
    segments = (
        Segment(own["step"], {n: own[n] for n in own if n != "step"}) for own in found.schedule
    )
    return Schedule(found.env, found.steps, found.architectures, tuple(segments), found.algorithm)


def _architecture(values: Any) -> Architecture:
    try:
        return _ARCHITECTURE.validate_python(values)
    except ValidationError as error:
        refusal("", first_problem(error))


class _ScheduleFile(Section):
    env: str = option(..., "Gymnasium environment id, such as CartPole-v1.", min_length=1)
    algorithm: str = option(..., "The algorithm's name, such as dqn.")
    steps: Count = option(..., "The agent's own training steps in all.")
    architectures: dict[str, Annotated[Architecture, PlainValidator(_architecture)]] = option(
        ..., "The architecture of each network, by its name.", min_length=1
    )
    schedule: list[dict[str, Any]] = option(
        ..., "The hyperparameters, by the step from which they hold.", min_length=1
    )

    @model_validator(mode="after")
    def _ascends(self) -> "_ScheduleFile":
        steps: list[Any] = [part.get("step") for part in self.schedule]
        whole = all(type(step) is int for step in steps)
        if not whole or steps != sorted({0, *steps}) or steps[-1] >= self.steps:
            rule = f"have whole steps that ascend from 0 to less than steps = {self.steps}"
            refuse("schedule", rule, steps)
        return self


def _given(architecture: Architecture) -> dict[str, Any]:
    """Plain values, without the lists that are empty."""
    values = _ARCHITECTURE.dump_python(architecture, mode="json")
    return {name: value for name, value in values.items() if value != []}
