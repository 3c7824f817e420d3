"""RunConfig: every option of a run, with its range and unit."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
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


class Section(BaseModel):
    """A part of the configuration: immutable, no unknown keys, no conversions."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


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


class Hyperparameters(Section):
    """The numbers that every agent has for itself, and that evolution may change."""

    lr: ranges.LearningRate = 1e-3
    gamma: ranges.Gamma = 0.99
    tau: ranges.Tau = 0.01
    batch_size: ranges.BatchSize = 64
    learn_step: ranges.LearnStep = 1
    max_grad_norm: ranges.MaxGradNorm = 10.0
    target_period: ranges.TargetPeriod = 1000
    epsilon_start: ranges.EpsilonStart = 1.0
    epsilon_end: ranges.EpsilonEnd = 0.05
    epsilon_steps: ranges.EpsilonSteps = 10_000


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
    learning_starts: int = Field(
        default=1000,
        ge=0,
        le=ranges.MOST,
        description="Own environment steps before the first update.",
    )


class NetworkConfig(Section):
    """The network that every agent starts from; images pass through convolutions first."""

    hidden: ranges.Hidden = [64, 64]
    activation: ranges.Activation = "relu"
    layer_norm: ranges.LayerNorm = False
    dueling: ranges.Dueling = False
    channels: ranges.Channels = [16, 32]
    kernels: ranges.Kernels = [3, 3]
    strides: ranges.Strides = [1, 1]
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
    share: Literal["rank", "agent"] = Field(
        default="rank", description="One replay for all agents of a process, or one per agent."
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
    final_episodes: int = Field(
        default=100, ge=2, le=ranges.MOST, description="Held-out episodes of the final score."
    )
    max_steps: ranges.Count = Field(
        default=10_000, description="Steps after which an evaluation episode is cut."
    )


class BudgetConfig(Section):
    """When training ends."""

    env_steps: ranges.Count = Field(
        default=100_000, description="Training steps of all agents and environments together."
    )


class FolderConfig(Section):
    """Where the run is written."""

    folder: str = Field(
        default="runs", min_length=1, description="Folder in which the run gets its own, by name."
    )
    if_exists: Literal["error", "number"] = Field(
        default="error", description="A run of this name exists: refuse, or add a number."
    )


class RunConfig(Section):
    """Everything that a run depends on."""

    name: Annotated[str, AfterValidator(ranges.folder_name)] = Field(
        default="run",
        min_length=1,
        max_length=100,
        description="Name of the run and of its folder: letters, digits, '.', '_' and '-'.",
    )
    seed: int = Field(default=1, ge=0, le=2**32 - 1, description="Seed of all random numbers.")
    compile: ranges.AutoBool = Field(
        default="auto", description="Whether updates are compiled; auto decides by the run."
    )
    env: EnvConfig = Field(description="What the agents learn in.")
    algorithm: AlgorithmConfig = Field(
        default_factory=AlgorithmConfig, description="How agents learn and explore."
    )
    network: NetworkConfig = Field(
        default_factory=NetworkConfig, description="The shape of the agents' networks."
    )
    replay: ReplayConfig = Field(
        default_factory=ReplayConfig, description="What is remembered and how it is drawn."
    )
    population: PopulationConfig = Field(
        default_factory=PopulationConfig,
        description="How many agents, and what single ones have of their own.",
    )
    evaluation: EvaluationConfig = Field(
        default_factory=EvaluationConfig,
        description="When agents are scored, and on how many episodes.",
    )
    budget: BudgetConfig = Field(default_factory=BudgetConfig, description="When training ends.")
    run: FolderConfig = Field(default_factory=FolderConfig, description="Where the run is written.")

    def agent_hyperparameters(self, index: int) -> Hyperparameters:
        """The hyperparameters that agent `index` starts from."""
        common = self.algorithm.model_dump(include=set(Hyperparameters.model_fields))
        own = self._own(index, Hyperparameters)
        return Hyperparameters(**(common | own))

    def agent_network(self, index: int) -> NetworkConfig:
        """The network that agent `index` starts from."""
        return NetworkConfig(**(self.network.model_dump() | self._own(index, NetworkConfig)))

    def _own(self, index: int, section: type[Section]) -> dict[str, Any]:
        if not 0 <= index < self.population.size:
            raise IndexError(f"agent {index} of a population of {self.population.size}")
        if index >= len(self.population.agents):
            return {}
        return self.population.agents[index].model_dump(include=set(section.model_fields))

    @model_validator(mode="after")
    def _fits_together(self) -> "RunConfig":
        agents, replay = self.population.agents, self.replay
        layers = len(self.network.channels)
        for index, agent in enumerate(agents):
            if agent.channels is not None and len(agent.channels) != layers:
                rule = f"have as many entries as network.channels, {layers}"
                refuse(f"population.agents.{index}.channels", rule, len(agent.channels))
        batch_sizes = [agent.batch_size or self.algorithm.batch_size for agent in agents]
        if len(agents) < self.population.size:
            batch_sizes.append(self.algorithm.batch_size)
        if replay.capacity < max(batch_sizes):
            rule = f"be at least the largest batch size, {max(batch_sizes)}"
            refuse("replay.capacity", rule, replay.capacity)
        writers = self.population.size if replay.share == "rank" else 1
        if replay.capacity < (step := writers * self.env.num_envs):
            rule = f"hold one step of every environment, {step} transitions"
            refuse("replay.capacity", rule, replay.capacity)
        return self
