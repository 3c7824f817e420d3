"""RunConfig: all sections together, and what must fit between them."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, ValidationError, create_model, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from evorl.config.evolution import EvolutionConfig, SpaceConfig, spaces_model
from evorl.config.messages import number
from evorl.config.section import AutoBool, Section, check_part, option, refuse, section
from evorl.config.sections import (
    AGENT_NETWORK,
    BudgetConfig,
    CheckpointConfig,
    EnvConfig,
    EvaluationConfig,
    FolderConfig,
    MeshConfig,
    NetworkConfig,
    PopulationConfig,
    ReplayConfig,
    TrackingConfig,
    agent_model,
    folder_name,
)

S = TypeVar("S", bound=Section)


class RunConfig(Section):
    """Everything that a run depends on.

    The options of algorithm, population.agents, evolution.spaces and evolution.selection are those
    of the classes that algorithm.name and evolution.selection.kind stand for: an instance belongs
    to a subclass made for them.
    """

    name: Annotated[str, AfterValidator(folder_name)] = option(
        "run",
        "Name of the run and of its folder: letters, digits, '.', '_' and '-'.",
        min_length=1,
        max_length=100,
    )
    seed: int = option(1, "Seed of all random numbers.", ge=0, le=2**32 - 1)
    compile: AutoBool = option("auto", "Whether updates are compiled; auto decides by the run.")
    env: EnvConfig
    algorithm: Any = None  # an instance of evorl.algorithms.hyperparameters.Declaration
    network: NetworkConfig = section(NetworkConfig)
    replay: ReplayConfig = section(ReplayConfig)
    population: PopulationConfig = section(PopulationConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)
    evolution: EvolutionConfig = section(EvolutionConfig)
    budget: BudgetConfig = section(BudgetConfig)
    mesh: MeshConfig = section(MeshConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    tracking: TrackingConfig = section(TrackingConfig)
    run: FolderConfig = section(FolderConfig)

    def __new__(cls, **values: Any) -> Self:
        """Of the subclass for its algorithm and selection."""
        model: Any = model_of(values) if cls is RunConfig else cls
        return super().__new__(model)  # type: ignore[no-any-return]

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """An instance of the subclass for its algorithm and selection."""
        model: Any = model_of(obj) if cls is RunConfig else cls
        return super(RunConfig, model).model_validate(obj, **options)  # type: ignore[return-value]

    def __reduce__(self) -> tuple[Any, ...]:
        """The subclass has no name by which pickle could find it."""
        return RunConfig.model_validate, (self.model_dump(),)

    def agent_hyperparameters(self, index: int) -> dict[str, int | float]:
        """The hyperparameters that agent `index` starts from, in the order of their declaration."""
        known: dict[str, int | float] = self.algorithm.hyperparameters
        own = self._own(index)
        return {name: own.get(name, value) for name, value in known.items()}

    def agent_network(self, index: int) -> NetworkConfig:
        """The network that agent `index` starts from."""
        own = {name: value for name, value in self._own(index).items() if name in AGENT_NETWORK}
        return NetworkConfig(**(self.network.model_dump() | own))

    def _own(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.population.size:
            raise IndexError(f"agent {index} of a population of {self.population.size}")
        agents = self.population.agents
        return agents[index].model_dump() if index < len(agents) else {}

    @property
    def spaces(self) -> dict[str, SpaceConfig]:
        """Where hyperparameters evolve, if anything does; without those that have no effect."""
        unused = self.algorithm.unused
        given = self.evolution.spaces.evolving
        return {name: space for name, space in given.items() if name not in unused}

    @property
    def drawn(self) -> dict[str, SpaceConfig]:
        """The spaces from which agents draw what they start from, by hyperparameter."""
        sampled = self.population.init == "sample" or self.evolution.method == "random_search"
        return self.spaces if sampled else {}

    @property
    def evolves(self) -> bool:
        """Whether agents are replaced by children of others; a single agent never is."""
        return self.evolution.method == "evolution" and self.population.size > 1

    @property
    def mutated(self) -> dict[str, SpaceConfig]:
        """The spaces in which children move away from their parents, by hyperparameter."""
        moves = self.evolves and self.evolution.mutation.hyperparameters > 0
        return self.spaces if moves else {}

    @property
    def drawn_by(self) -> str:
        """The option because of which agents draw what they start from."""
        if self.population.init == "sample":
            return "population.init: sample"
        return "evolution.method: random_search"

    @model_validator(mode="after")
    def _fits_together(self) -> "RunConfig":
        name = self.algorithm.name
        if check_part("algorithm", name, "algorithm.name") is not type(self.algorithm):
            refuse("algorithm.name", "name the algorithm's own class", name)
        self._check_agents()
        if "batch_size" in self.algorithm.hyperparameters:  # it learns from a replay
            self._check_replay()
        longest = self.mesh.timeout / 3  # the other ranks wait while the main one starts W&B
        if self.tracking.wandb != "off" and self.tracking.timeout > longest:
            rule = f"be at most a third of mesh.timeout, {number(longest)}"
            refuse("tracking.timeout", rule, self.tracking.timeout)
        if self.mesh.data > (episodes := self.evaluation.episodes):
            rule = f"be at most evaluation.episodes, which its ranks share, {episodes}"
            refuse("mesh.data", rule, self.mesh.data)
        return self

    def _check_agents(self) -> None:
        layers = len(self.network.channels)
        for index, agent in enumerate(self.population.agents):
            where, own = f"population.agents.{index}", agent.model_dump()
            if len(own.get("channels", self.network.channels)) != layers:
                rule = f"have as many entries as network.channels, {layers}"
                refuse(f"{where}.channels", rule, len(own["channels"]))
            for name in (name for name in self.drawn if name in own):
                rule = f"be left out, as {self.drawn_by} draws it from evolution.spaces.{name}"
                refuse(f"{where}.{name}", rule, own[name])

    def _check_replay(self) -> None:
        capacity, agents = self.replay.capacity, range(self.population.size)
        largest = max(self.agent_hyperparameters(agent)["batch_size"] for agent in agents)
        if "batch_size" not in self.drawn and capacity < largest:
            refuse("replay.capacity", f"be at least the largest batch size, {largest}", capacity)
        space = (self.drawn | self.mutated).get("batch_size")
        if space and capacity < space.bounds[1]:
            rule = "be at least the largest batch size that evolution may choose"
            where = f"{number(space.bounds[1])} (evolution.spaces.batch_size)"
            refuse("replay.capacity", f"{rule}, {where}", capacity)
        writers = 1 if self.replay.share == "agent" else self.population.size
        if capacity < (step := writers * self.env.num_envs):
            rule = f"hold one step of every environment, {step} transitions"
            refuse("replay.capacity", rule, capacity)


def model_of(data: Any) -> type[RunConfig]:
    """The subclass of RunConfig for the algorithm and selection that `data` names."""
    algorithm = _class("algorithm", data, ("algorithm", "name"), "dqn")
    selection = _class("selection", data, ("evolution", "selection", "kind"), "truncation")
    return model_for(algorithm, selection)


@cache
def model_for(algorithm: Any, selection: Any) -> type[RunConfig]:
    """RunConfig with the options of these classes."""
    declared = algorithm.hyperparameter_fields()
    agents, spaces = agent_model(declared), spaces_model(declared)
    about = PopulationConfig.model_fields["agents"].description or ""
    population = _with(PopulationConfig, agents=(list[agents], option([], about)))  # type: ignore[valid-type]
    evolution = _with(
        EvolutionConfig,
        spaces=(spaces, section(lambda: spaces(**algorithm.default_spaces()))),
        selection=(selection, section(selection)),
    )
    return _with(
        RunConfig,
        algorithm=(algorithm, section(algorithm)),
        population=(population, section(population)),
        evolution=(evolution, section(evolution)),
    )


def _with(base: type[S], **fields: Any) -> type[S]:
    return create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields)


def _class(kind: str, data: Any, path: tuple[str, ...], default: str) -> Any:
    """The class that is named there; as our default if there is no name, which is checked later."""
    node = data
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else getattr(node, key, None)
    name = node if isinstance(node, str) else default
    try:
        return check_part(kind, name)
    except PydanticCustomError as error:
        line = InitErrorDetails(type=error, loc=path, input=name)
        raise ValidationError.from_exception_data("RunConfig", [line]) from None
