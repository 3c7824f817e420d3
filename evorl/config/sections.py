"""The sections of a configuration but for algorithm and evolution: options, ranges and units."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from evorl.config.section import (
    MOST,
    Activation,
    AutoBool,
    Channels,
    Count,
    Fraction,
    Pixels,
    Section,
    Sparse,
    Units,
    option,
    part_name,
    refuse,
)

UNFIT = "/\\#?%:"  # what W&B refuses in the name of a project
Kwargs = dict[str, Any]
T = TypeVar("T")
Layers = Annotated[list[T], Field(min_length=1, max_length=8)]
Name = Annotated[str, Field(min_length=1, max_length=128)]


def folder_name(value: str) -> str:
    """Check that a name can be a folder on every system."""
    if not value.strip("."):
        refuse("", "be more than dots", value)
    if not all(letter.isascii() and (letter.isalnum() or letter in "._-") for letter in value):
        refuse("", "consist of letters, digits, '.', '_' and '-'", value)
    return value


def _off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


def _project_name(value: str) -> str:
    if not value.isprintable() or any(letter in UNFIT for letter in value):
        refuse("", f"be without {' '.join(UNFIT)} and line breaks", value)
    return value


class WrapperConfig(Section):
    """A class of gymnasium.wrappers put around every environment; a string is a name alone."""

    name: str = option(..., "Name of a class in gymnasium.wrappers.", min_length=1)
    kwargs: Kwargs = option({}, "Arguments of the wrapper.")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The schema of both ways to write it."""
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(core_schema)]}


class EnvConfig(Section):
    """The environment, and how many of it each agent plays."""

    id: str = option(..., "Gymnasium environment id, such as CartPole-v1.", min_length=1)
    num_envs: int = option(8, "Environments per agent.", ge=1, le=1024)
    backend: Literal["auto", "sync", "async", "native", "envpool"] = option(
        "auto", "What steps the environments; auto takes the fastest."
    )
    kwargs: Kwargs = option({}, "Arguments of gymnasium.make.")
    wrappers: list[WrapperConfig] = option([], "Wrappers of every environment, innermost first.")
    max_failures: int = option(
        10, "Exceptions of environments that a run survives; 0: the first stops it.", ge=0, le=MOST
    )


class NetworkConfig(Section):
    """The network that every agent starts from; images pass through convolutions first."""

    hidden: Layers[Units] = option([64, 64], "Units of each hidden layer.")
    activation: Activation = option("relu", "Activation after every hidden layer.")
    layer_norm: bool = option(False, "Whether hidden layers are layer-normalised.")
    dueling: bool = option(False, "Whether value and advantage have separate heads.")
    channels: Layers[Channels] = option([16, 32], "Channels of each convolution (images only).")
    kernels: list[Pixels] = option([3, 3], "Kernel sizes in pixels; as many as channels.")
    strides: list[Pixels] = option([1, 1], "Strides in pixels; as many as channels.")
    channels_last: AutoBool = option("auto", "Whether an image's channels are its last dimension.")

    @model_validator(mode="after")
    def _one_of_each_per_convolution(self) -> "NetworkConfig":
        for field, values in (("kernels", self.kernels), ("strides", self.strides)):
            if len(values) != len(self.channels):
                rule = f"have as many entries as channels, {len(self.channels)}"
                refuse(field, rule, len(values))
        return self


AGENT_NETWORK = ("hidden", "activation", "layer_norm", "dueling", "channels")  # may be one agent's


class ReplayConfig(Section):
    """Where transitions are kept, and how they are drawn."""

    kind: Literal["uniform", "prioritized"] = option(
        "uniform", "Draw transitions alike, or by their TD error."
    )
    capacity: Count = option(100_000, "Transitions per replay.")
    share: Literal["rank", "agent", "world"] = option(
        "rank", "One replay for all agents of a process, one per agent, or one of all ranks."
    )
    alpha: Fraction = option(0.6, "Exponent of priorities; 0 is uniform (prioritized only).")
    beta_start: Fraction = option(0.4, "Importance exponent at the start (prioritized only).")
    beta_end: Fraction = option(1.0, "Importance exponent at the end (prioritized only).")
    priority_eps: float = option(1e-6, "Added to every absolute TD error (prioritized only).", gt=0)


class AgentConfig(Sparse):
    """One agent's own values; what it leaves out is as in algorithm and network."""


def agent_model(hyperparameters: dict[str, FieldInfo]) -> type[AgentConfig]:
    """AgentConfig with an algorithm's hyperparameters and the network's keys as options."""
    network = {name: NetworkConfig.model_fields[name] for name in AGENT_NETWORK}
    fields: dict[str, Any] = {
        name: (field.rebuild_annotation() | None, option(None, field.description or ""))
        for name, field in (hyperparameters | network).items()
    }
    return create_model("AgentConfig", __base__=AgentConfig, __doc__=AgentConfig.__doc__, **fields)


class PopulationConfig(Section):
    """How many agents there are, and what some of them have for themselves."""

    size: int = option(4, "Agents in the population.", ge=1, le=4096)
    init: Literal["config", "sample"] = option(
        "config", "Agents start from the values of algorithm, or drawn from evolution.spaces."
    )
    agents: list[AgentConfig] = option([], "Element i has the own values of agent i.")

    @model_validator(mode="after")
    def _no_more_than_size(self) -> "PopulationConfig":
        if len(self.agents) > self.size:
            rule = f"have at most population.size = {self.size} elements"
            refuse("agents", rule, len(self.agents))
        return self


class EvaluationConfig(Section):
    """When agents are scored, and on how many episodes."""

    every: Count = option(1000, "Steps of each environment between evaluations: a generation.")
    episodes: Count = option(10, "Episodes per agent and evaluation.")
    fitness: Annotated[str, part_name("fitness")] = option(
        "mean", "What counts of an agent's returns: mean, median, iqm, or module:function."
    )
    confirm_episodes: Count = option(20, "Further episodes that decide who is the best so far.")
    final_episodes: int = option(100, "Held-out episodes of the final score.", ge=2, le=MOST)
    max_steps: Count = option(10_000, "Steps after which an episode for fitness is cut.")
    final_max_steps: Count = option(10_000, "Steps after which a held-out episode is cut.")


class BudgetConfig(Section):
    """When training ends."""

    env_steps: Count = option(100_000, "Steps of all agents and environments together.")
    counts: Literal["training", "all"] = option(
        "training", "Whether steps of evaluations count, too."
    )
    stop_at: float | None = option(None, "Confirmed fitness at which the run ends early.")

    def spent(self, training: int, evaluation: int) -> int:
        """The environment steps that count."""
        return training + (evaluation if self.counts == "all" else 0)


class MeshConfig(Section):
    """How the ranks of a launch share the work: ranks = population × data."""

    population: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = option(
        "auto", "Ranks among which agents are divided; auto: all that are left."
    )
    data: int = option(1, "Ranks that train the same agents, on own experience.", ge=1, le=4096)
    timeout: float = option(
        600.0,
        "Seconds before a rank that does not come is lost. Must be longer than what the main rank"
        " does alone while the others wait, above all the confirmation and scoring of the best"
        " agent.",
        gt=0,
        le=86400,
    )


class CheckpointConfig(Section):
    """What is kept to resume a run that was stopped or killed."""

    every: Count = option(1, "Generations between checkpoints.")
    keep: int = option(2, "Newest checkpoints that stay, beside the best one.", ge=1, le=1000)
    replay: bool = option(True, "Whether replays are kept; else a resumed run collects again.")


class TrackingConfig(Section):
    """Trackers that a run is copied to; metrics.jsonl and lineage.jsonl stay the truth."""

    wandb: Annotated[Literal["off", "offline", "online"], BeforeValidator(_off)] = option(
        "off", "Weights & Biases: off, offline (into the run's folder), online."
    )
    tensorboard: bool = option(False, "Whether TensorBoard events are written to the run's folder.")
    project: Annotated[Name, AfterValidator(_project_name)] = option("evorl", "Project on W&B.")
    entity: Name | None = option(None, "User or team on W&B; left out: whoever is logged in.")
    group: Name | None = option(None, "Group of runs on W&B, such as the seeds of one experiment.")
    timeout: float = option(
        30.0, "Seconds that W&B may take to begin, and at the end to upload.", gt=0, le=3600
    )


class FolderConfig(Section):
    """Where the run is written."""

    folder: str = option("runs", "Folder in which the run gets its own, by name.", min_length=1)
    if_exists: Literal["error", "number"] = option(
        "error", "A run of this name exists: refuse, or add a number."
    )
