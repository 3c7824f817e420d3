"""The sections of a configuration: their options, each with its range and unit."""

from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from evorl.config import ranges
from evorl.config.ranges import refuse
from evorl.config.section import Hyperparameters, Section


class WrapperConfig(Section):
    """A class of gymnasium.wrappers put around every environment; a string is a name alone."""

    name: str = Field(min_length=1, description="Name of a class in gymnasium.wrappers.")
    kwargs: ranges.Kwargs = Field(default={}, description="Arguments of the wrapper.")

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

    id: str = Field(min_length=1, description="Gymnasium environment id, such as CartPole-v1.")
    num_envs: int = Field(default=8, ge=1, le=1024, description="Environments per agent.")
    backend: Literal["auto", "sync", "async", "native", "envpool"] = Field(
        default="auto", description="What steps the environments; auto takes the fastest."
    )
    kwargs: ranges.Kwargs = Field(default={}, description="Arguments of gymnasium.make.")
    wrappers: list[WrapperConfig] = Field(
        default=[], description="Wrappers of every environment, innermost first."
    )
    max_failures: int = Field(
        default=10,
        ge=0,
        le=ranges.MOST,
        description="Exceptions of environments that a run survives; 0: the first one stops it.",
    )


class AlgorithmConfig(Hyperparameters):
    """The algorithm: the hyperparameters agents start from, and what all of them share."""

    name: Literal["dqn"] = Field(default="dqn", description="The learning algorithm.")
    double: bool = Field(
        default=True, description="Whether the online network chooses the target's action."
    )
    n_step: int = Field(
        default=1, ge=1, le=32, description="Environment steps of reward before the bootstrap."
    )
    loss: Literal["huber", "mse"] = Field(default="huber", description="Loss of the TD error.")
    target_update: Literal["soft", "periodic"] = Field(
        default="soft", description="Target network: soft uses tau, periodic target_period."
    )
    updates: int = Field(
        default=1, ge=1, le=64, description="Updates at each learn step (see learn_step)."
    )
    learning_starts: int = Field(
        default=1000,
        ge=0,
        le=ranges.MOST,
        description="Own environment steps before the first update.",
    )


class NetworkConfig(Section):
    """The network that every agent starts from; images pass through convolutions first."""

    hidden: ranges.Hidden = Field(default=[64, 64])
    activation: ranges.Activation = "relu"
    layer_norm: ranges.LayerNorm = False
    dueling: ranges.Dueling = False
    channels: ranges.Channels = Field(default=[16, 32])
    kernels: ranges.Kernels = Field(default=[3, 3])
    strides: ranges.Strides = Field(default=[1, 1])
    channels_last: ranges.AutoBool = Field(
        default="auto", description="Whether an image's channels are its last dimension."
    )

    @model_validator(mode="after")
    def _one_of_each_per_convolution(self) -> "NetworkConfig":
        for field, values in (("kernels", self.kernels), ("strides", self.strides)):
            if len(values) != len(self.channels):
                rule = f"have as many entries as channels, {len(self.channels)}"
                refuse(field, rule, len(values))
        return self


class ReplayConfig(Section):
    """Where transitions are kept, and how they are drawn."""

    kind: Literal["uniform", "prioritized"] = Field(
        default="uniform", description="Draw transitions alike, or by their TD error."
    )
    capacity: ranges.Count = Field(default=100_000, description="Transitions per replay.")
    share: Literal["rank", "agent", "world"] = Field(
        default="rank",
        description="One replay for all agents of a process, one per agent, or one of all ranks.",
    )
    alpha: ranges.Fraction = Field(
        default=0.6, description="Exponent of priorities; 0 is uniform (prioritized only)."
    )
    beta_start: ranges.Fraction = Field(
        default=0.4, description="Importance exponent at the start (prioritized only)."
    )
    beta_end: ranges.Fraction = Field(
        default=1.0, description="Importance exponent at the end (prioritized only)."
    )
    priority_eps: float = Field(
        default=1e-6, gt=0, description="Added to every absolute TD error (prioritized only)."
    )


def _describe_optional(schema: dict[str, Any]) -> None:
    """Move each description from the value to its field, where editors look for it."""
    for field in schema["properties"].values():
        field["description"] = field["anyOf"][0].pop("description")


class AgentConfig(Section):
    """One agent's own values; what it leaves out is as in algorithm and network."""

    model_config = ConfigDict(json_schema_extra=_describe_optional)

    lr: ranges.LearningRate | None = None
    gamma: ranges.Gamma | None = None
    tau: ranges.Tau | None = None
    batch_size: ranges.BatchSize | None = None
    learn_step: ranges.LearnStep | None = None
    max_grad_norm: ranges.MaxGradNorm | None = None
    target_period: ranges.TargetPeriod | None = None
    epsilon_start: ranges.EpsilonStart | None = None
    epsilon_end: ranges.EpsilonEnd | None = None
    epsilon_steps: ranges.EpsilonSteps | None = None
    hidden: ranges.Hidden | None = None
    activation: ranges.Activation | None = None
    layer_norm: ranges.LayerNorm | None = None
    dueling: ranges.Dueling | None = None
    channels: ranges.Channels | None = None

    @model_serializer(mode="wrap")
    def given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only the values that this agent has for itself."""
        return {name: value for name, value in handler(self).items() if value is not None}


class PopulationConfig(Section):
    """How many agents there are, and what some of them have for themselves."""

    size: int = Field(default=4, ge=1, le=4096, description="Agents in the population.")
    init: Literal["config", "sample"] = Field(
        default="config",
        description="Agents start from the values of algorithm, or drawn from evolution.spaces.",
    )
    agents: list[AgentConfig] = Field(
        default=[], description="Element i holds the own values of agent i; at most size elements."
    )

    @model_validator(mode="after")
    def _no_more_than_size(self) -> "PopulationConfig":
        if len(self.agents) > self.size:
            rule = f"have at most population.size = {self.size} elements"
            refuse("agents", rule, len(self.agents))
        return self


class EvaluationConfig(Section):
    """When agents are scored, and on how many episodes."""

    every: ranges.Count = Field(
        default=1000, description="Steps of each environment between evaluations: a generation."
    )
    episodes: ranges.Count = Field(default=10, description="Episodes per agent and evaluation.")
    confirm_episodes: ranges.Count = Field(
        default=20, description="Further episodes that decide whether an agent is the best so far."
    )
    final_episodes: int = Field(
        default=100, ge=2, le=ranges.MOST, description="Held-out episodes of the final score."
    )
    max_steps: ranges.Count = Field(
        default=10_000, description="Steps after which an episode for fitness is cut."
    )
    final_max_steps: ranges.Count = Field(
        default=10_000, description="Steps after which a held-out episode is cut."
    )


class BudgetConfig(Section):
    """When training ends."""

    env_steps: ranges.Count = Field(
        default=100_000, description="Steps of all agents and environments together."
    )
    counts: Literal["training", "all"] = Field(
        default="training", description="Whether steps of evaluations count, too."
    )
    stop_at: float | None = Field(
        default=None, description="Confirmed fitness at which the run ends early."
    )

    def spent(self, training: int, evaluation: int) -> int:
        """Of so many environment steps those that count."""
        return training + (evaluation if self.counts == "all" else 0)


class MeshConfig(Section):
    """How the ranks of a launch share the work: ranks = population × data."""

    population: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = Field(
        default="auto", description="Ranks among which agents are divided; auto: all that are left."
    )
    data: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="Ranks that train the same agents, each on its own experience.",
    )
    timeout: float = Field(
        default=600.0,
        gt=0,
        le=86400,
        description="Seconds before a rank that does not come is lost. Must be longer than what the"
        " main rank does alone while the others wait, above all the confirmation and scoring of the"
        " best agent.",
    )


class CheckpointConfig(Section):
    """What is kept for going on after a run was stopped or killed."""

    every: ranges.Count = Field(default=1, description="Generations between checkpoints.")
    keep: int = Field(
        default=2, ge=1, le=1000, description="Newest checkpoints that stay, beside the best one."
    )
    replay: bool = Field(
        default=True,
        description="Whether replays are kept; without, a resumed run first collects anew.",
    )
    shared_filesystem: ranges.AutoBool = Field(
        default="auto", description="Whether all ranks see the run's folder; auto tries it."
    )


class FolderConfig(Section):
    """Where the run is written."""

    folder: str = Field(
        default="runs", min_length=1, description="Folder in which the run gets its own, by name."
    )
    if_exists: Literal["error", "number"] = Field(
        default="error", description="A run of this name exists: refuse, or add a number."
    )
