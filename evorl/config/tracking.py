"""Where a run can be followed, beside its own folder: every tracker is off unless asked for."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from evorl.config.ranges import refuse
from evorl.config.section import Section

UNFIT = "/\\#?%:"  # what W&B refuses in the name of a project


def _off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


def _project_name(value: str) -> str:
    if not value.isprintable() or any(letter in UNFIT for letter in value):
        refuse("", f"be without {' '.join(UNFIT)} and line breaks", value)
    return value


Name = Annotated[str, Field(min_length=1, max_length=128)]


class TrackingConfig(Section):
    """Trackers that a run is copied to; metrics.jsonl and lineage.jsonl stay the truth."""

    wandb: Annotated[Literal["off", "offline", "online"], BeforeValidator(_off)] = Field(
        default="off",
        description="Weights & Biases: off, offline (into the run's folder), online.",
    )
    tensorboard: bool = Field(
        default=False, description="Whether TensorBoard events are written to the run's folder."
    )
    project: Annotated[Name, AfterValidator(_project_name)] = Field(
        default="evorl", description="Project on W&B."
    )
    entity: Name | None = Field(
        default=None, description="User or team on W&B; left out: whoever is logged in."
    )
    group: Name | None = Field(
        default=None, description="Group of runs on W&B, such as the seeds of one experiment."
    )
    timeout: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="Seconds that W&B may take to begin, and at the end to upload what is left.",
    )
