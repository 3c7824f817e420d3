"""RunConfig: all sections together, and what must fit between them."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from evorl.config import ranges
from evorl.config.evolution import EvolutionConfig
from evorl.config.ranges import refuse
from evorl.config.section import Hyperparameters, Section
from evorl.config.sections import (
    AlgorithmConfig,
    BudgetConfig,
    CheckpointConfig,
    EnvConfig,
    EvaluationConfig,
    FolderConfig,
    MeshConfig,
    NetworkConfig,
    PopulationConfig,
    ReplayConfig,
)
from evorl.config.spaces import SpaceConfig
from evorl.config.tracking import TrackingConfig
from evorl.config.wording import number


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
    evolution: EvolutionConfig = Field(
        default_factory=EvolutionConfig,
        description="How the population changes from generation to generation.",
    )
    budget: BudgetConfig = Field(default_factory=BudgetConfig, description="When training ends.")
    mesh: MeshConfig = Field(
        default_factory=MeshConfig, description="How the ranks of a launch share the work."
    )
    checkpoint: CheckpointConfig = Field(
        default_factory=CheckpointConfig, description="What is kept for going on later."
    )
    tracking: TrackingConfig = Field(
        default_factory=TrackingConfig, description="Where the run can be followed."
    )
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

    @property
    def drawn(self) -> dict[str, SpaceConfig]:
        """The spaces from which agents draw what they start from, by hyperparameter."""
        sampled = self.population.init == "sample" or self.evolution.method == "random_search"
        return self.evolution.spaces.evolving if sampled else {}

    @property
    def evolves(self) -> bool:
        """Whether agents are replaced by children of others; a single agent never is."""
        return self.evolution.method == "evolution" and self.population.size > 1

    @property
    def mutated(self) -> dict[str, SpaceConfig]:
        """The spaces in which children move away from their parents, by hyperparameter."""
        moves = self.evolves and self.evolution.mutation.hyperparameters > 0
        return self.evolution.spaces.evolving if moves else {}

    @property
    def drawn_by(self) -> str:
        """The option because of which agents draw what they start from."""
        if self.population.init == "sample":
            return "population.init: sample"
        return "evolution.method: random_search"

    @model_validator(mode="after")
    def _fits_together(self) -> "RunConfig":
        self._check_agents()
        self._check_batch_sizes()
        self._check_timeouts()
        if self.mesh.data > (episodes := self.evaluation.episodes):
            rule = f"be at most evaluation.episodes, which its ranks share, {episodes}"
            refuse("mesh.data", rule, self.mesh.data)
        replay = self.replay
        writers = 1 if replay.share == "agent" else self.population.size
        if replay.capacity < (step := writers * self.env.num_envs):
            rule = f"hold one step of every environment, {step} transitions"
            refuse("replay.capacity", rule, replay.capacity)
        return self

    def _check_agents(self) -> None:
        layers, drawn = len(self.network.channels), self.drawn
        for index, agent in enumerate(self.population.agents):
            where = f"population.agents.{index}"
            if agent.channels is not None and len(agent.channels) != layers:
                rule = f"have as many entries as network.channels, {layers}"
                refuse(f"{where}.channels", rule, len(agent.channels))
            for name in drawn:
                if (value := getattr(agent, name)) is not None:
                    rule = f"be left out, as {self.drawn_by} draws it from evolution.spaces.{name}"
                    refuse(f"{where}.{name}", rule, value)

    def _check_timeouts(self) -> None:
        """Other ranks wait while the main one starts W&B: they must not think that it is lost."""
        longest = self.mesh.timeout / 3
        if self.tracking.wandb != "off" and self.tracking.timeout > longest:
            rule = f"be at most a third of mesh.timeout, {number(longest)}"
            refuse("tracking.timeout", rule, self.tracking.timeout)

    def _check_batch_sizes(self) -> None:
        agents, capacity = self.population.agents, self.replay.capacity
        own = [agent.batch_size or self.algorithm.batch_size for agent in agents]
        if len(agents) < self.population.size:
            own.append(self.algorithm.batch_size)
        if "batch_size" not in self.drawn and capacity < max(own):
            refuse("replay.capacity", f"be at least the largest batch size, {max(own)}", capacity)
        if space := (self.drawn | self.mutated).get("batch_size"):
            most = number(space.bounds[1])
            if capacity < space.bounds[1]:
                rule = f"be at least the largest batch size that evolution may choose, {most}"
                refuse("replay.capacity", f"{rule} (evolution.spaces.batch_size)", capacity)
