"""RunConfig: all sections together, what must fit between them, and what has no effect.

Checks across sections begin in `_fits_together`.
"""

import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from typing import Any, Self

from pydantic import Field, ValidationError, create_model, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from evorl.config.evolution import EvolutionConfig, SpaceConfig, spaces_model
from evorl.config.sections import (
    AGENT_NETWORK,
    ActorsConfig,
    AutoBool,
    BudgetConfig,
    CheckpointConfig,
    EnvConfig,
    EvaluationConfig,
    FolderConfig,
    MeshConfig,
    NetworkConfig,
    PopulationConfig,
    ReplayConfig,
    Section,
    TrackingConfig,
    agent_model,
    check_part,
    option,
    refuse,
)


class RunConfig(Section):
    """Everything that a run depends on.

    The options of algorithm, population.agents, evolution.spaces and evolution.selection are those
    of the classes that algorithm.name and evolution.selection.kind stand for: an instance belongs
    to a subclass made for them.
    """

    name: str = option(
        "run", "Name of the run and of its folder.", pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$"
    )
    seed: int = option(1, "Seed of all random numbers.", ge=0, le=2**32 - 1)
    compile: AutoBool = option("auto", "Whether updates are compiled; auto decides by the run.")
    env: EnvConfig = option(..., "The environment, such as {id: CartPole-v1}.")
    algorithm: Any = None  # an instance of evorl.algorithms.hyperparameters.Declaration
    network: NetworkConfig = Field(default_factory=NetworkConfig)
    replay: ReplayConfig = Field(default_factory=ReplayConfig)
    population: PopulationConfig = Field(default_factory=PopulationConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    evolution: EvolutionConfig = Field(default_factory=EvolutionConfig)
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    mesh: MeshConfig = Field(default_factory=MeshConfig)
    actors: ActorsConfig = Field(default_factory=ActorsConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
    run: FolderConfig = Field(default_factory=FolderConfig)

    def __new__(cls, **values: Any) -> Self:
        """Of the subclass for its algorithm and selection."""
        model: Any = model_of(values) if cls is RunConfig else cls
        return super().__new__(model)  # type: ignore[no-any-return]

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """An instance of the subclass for its algorithm and selection."""
        model: Any = model_of(obj) if cls is RunConfig else cls
        return super(RunConfig, model).model_validate(obj, **options)  # type: ignore[return-value]

    def agent_hyperparameters(self, index: int) -> dict[str, int | float]:
        """The hyperparameters that agent `index` starts from, in the order of their declaration."""
        own, known = self._own(index), self.algorithm.hyperparameters
        return {name: own.get(name, known[name]) for name in known}

    def agent_network(self, index: int) -> NetworkConfig:
        """The network that agent `index` starts from."""
        own = {name: value for name, value in self._own(index).items() if name in AGENT_NETWORK}
        return NetworkConfig(**(self.network.model_dump() | own))

    def _own(self, index: int) -> dict[str, Any]:
        agents = self.population.agents
        return agents[index].model_dump() if index < len(agents) else {}

    @property
    def spaces(self) -> dict[str, SpaceConfig]:
        """Where hyperparameters evolve, if anything does; without those that have no effect.

        A default space that agents start outside of reaches as far as their values: else the first
        mutation would make them jump to its bound.
        """
        given, unused = self.evolution.spaces, self.algorithm.unused
        if self.replay.samples_per_insert is not None:
            unused |= {"learn_step"}
        found = {name: own for name, own in given if own is not None and name not in unused}
        if self._draws:
            return found
        default = self.algorithm.default_spaces()
        return {
            name: self._reaching(name, own) if own.model_dump() == default.get(name) else own
            for name, own in found.items()
        }

    def _reaching(self, name: str, space: SpaceConfig) -> SpaceConfig:
        """The space with the values that agents start from, as far as its scale has them."""
        if space.kind in ("choice", "power_of_two"):
            return space
        least, most = (0.0 if space.kind == "log" else -math.inf), math.inf
        most = 1.0 if space.kind == "reverse_log" else most
        values = [self.agent_hyperparameters(i)[name] for i in range(self.population.size)]
        ends = [*space.bounds, *(value for value in values if least < value < most)]
        return space.model_copy(update={"low": min(ends), "high": max(ends)})

    @property
    def _draws(self) -> bool:
        """Whether agents draw what they start from."""
        return self.population.init == "sample" or self.evolution.method == "random_search"

    @property
    def has_actors(self) -> bool:
        """Whether others play for those who learn: the run's own, or who joins."""
        return self.mesh.actors > 0 or self.actors.listen is not None

    @property
    def first_errors(self) -> bool:
        """Whether new transitions come with TD errors."""
        first = self.replay.first_priority
        wanted = first == "error" or (first == "auto" and self.has_actors)
        return wanted and self.replay.kind == "prioritized"

    @property
    def replay_at_actors(self) -> bool:
        """Whether actors keep what they play."""
        return self.replay.at == "actors" and self.algorithm.experience == "replay"

    @property
    def drawn(self) -> dict[str, SpaceConfig]:
        """The spaces from which agents draw what they start from, by hyperparameter."""
        return self.spaces if self._draws else {}

    @property
    def evolves(self) -> bool:
        """Whether agents are replaced by children of others; a single agent never is."""
        return self.evolution.method == "evolution" and self.population.size > 1

    @property
    def mutated(self) -> dict[str, SpaceConfig]:
        """The spaces in which children move away from their parents, by hyperparameter."""
        moves = self.evolves and self.evolution.mutation.hyperparameters > 0
        return self.spaces if moves else {}

    @model_validator(mode="after")
    def _fits_together(self) -> "RunConfig":
        name = self.algorithm.name
        if check_part("algorithm", name, "algorithm.name") is not type(self.algorithm):
            refuse("algorithm.name", "name the algorithm's own class", name)
        check_part("fitness", self.evaluation.fitness, "evaluation.fitness")
        self._check_agents()
        if self.algorithm.experience == "replay" and "batch_size" in self.algorithm.hyperparameters:
            self._check_replay()
        if self.algorithm.experience != "replay":
            every = self.evaluation.every
            steps = getattr(self.algorithm, "rollout_steps", 0)
            if steps > every:  # none would ever be full
                refuse("algorithm.rollout_steps", f"be at most evaluation.every, {every}", steps)
        episodes, seeded = self.evaluation.episodes, self.evaluation.source == "episodes"
        if seeded and self.mesh.data > episodes:
            rule = f"be at most evaluation.episodes, which its ranks share, {episodes}"
            refuse("mesh.data", rule, self.mesh.data)
        if (evaluators := self.mesh.evaluators) > episodes:
            rule = f"be at most evaluation.episodes, which they share, {episodes}"
            refuse("mesh.evaluators", rule, evaluators)
        if evaluators and not seeded:
            rule = "be 0 with evaluation.source: training, which leaves them nothing to score"
            refuse("mesh.evaluators", rule, evaluators)
        survivors = self.evolution.halving.survivors
        if survivors is not None and self.has_actors:
            refuse("evolution.halving.survivors", "be left out where there are actors", survivors)
        if self.has_actors:
            self._check_actors()
        if self.replay_at_actors:
            self._check_shards()
        return self

    def _check_actors(self) -> None:
        actors, place, name = self.mesh.actors, self.actors.place, self.algorithm.name
        listen, most = self.actors.listen, self.actors.most
        if self.algorithm.sends is None:
            if actors:
                refuse("mesh.actors", f"be 0 with algorithm.name: {name}, which has none", actors)
            refuse("actors.listen", f"be left out with algorithm.name: {name}", listen)
        if listen and self.actors.lockstep:
            refuse("actors.listen", "be left out with actors.lockstep: nobody can join", listen)
        learners = self.mesh.data
        learners *= 1 if isinstance(self.mesh.population, str) else self.mesh.population
        if actors % learners:
            refuse("mesh.actors", f"be as many for each of {learners} learners", actors)
        if listen and most <= (own := actors // learners):
            refuse("actors.most", f"be more than the {own} that a learner has of its own", most)
        if self.replay.share == "world":
            refuse("replay.share", "be rank or agent where there are actors", "world")
        if place == "inline" and not self.actors.lockstep:
            refuse("actors.lockstep", "be true with actors.place: inline", False)
        if self.algorithm.sends == "gradients" and self.compile is True:
            refuse("compile", f"be auto or false with actors of {name}: gradients are eager", True)

    def _check_shards(self) -> None:
        if not self.mesh.actors:
            refuse("replay.at", "be learners without mesh.actors", "actors")
        if self.actors.listen:
            rule = "be learners with actors.listen: who joins keeps no part of it"
            refuse("replay.at", rule, "actors")
        if self.replay.kind != "prioritized":
            rule = "be prioritized with replay.at: actors (with replay.alpha: 0 it draws alike)"
            refuse("replay.kind", rule, self.replay.kind)

    def _check_agents(self) -> None:
        layers = len(self.network.channels)
        for index, agent in enumerate(self.population.agents):
            where, own = f"population.agents.{index}", agent.model_dump()
            if len(own.get("channels", self.network.channels)) != layers:
                rule = f"have as many entries as network.channels, {layers}"
                refuse(f"{where}.channels", rule, len(own["channels"]))
            for name in (name for name in self.drawn if name in own):
                rule = f"be left out, as agents draw it from evolution.spaces.{name}"
                refuse(f"{where}.{name}", rule, own[name])

    def _check_replay(self) -> None:
        capacity, agents = self.replay.capacity, range(self.population.size)
        space = (self.drawn | self.mutated).get("batch_size")
        sizes = [space.bounds[1]] if space else []
        if "batch_size" not in self.drawn:
            sizes += [self.agent_hyperparameters(agent)["batch_size"] for agent in agents]
        if capacity < max(sizes):
            rule = f"be at least the largest batch size of an agent or a space, {max(sizes)}"
            refuse("replay.capacity", rule, capacity)
        writers = 1 if self.replay.share == "agent" else self.population.size
        if capacity < (step := writers * self.env.num_envs):
            rule = f"hold one step of every environment, {step} transitions"
            refuse("replay.capacity", rule, capacity)


def model_of(data: Any) -> type[RunConfig]:
    """The subclass of RunConfig for the algorithm and selection that `data` names."""
    algorithm = _class("algorithm", data, ("algorithm", "name"), "dqn")
    selection = _class("selection", data, ("evolution", "selection", "kind"), "truncation")
    model: type[RunConfig] = _model_for(algorithm, selection)
    return model


@cache
def _model_for(algorithm: Any, selection: Any) -> Any:
    declared = algorithm.hyperparameter_fields()
    agents, spaces = agent_model(declared), spaces_model(declared)
    known = PopulationConfig.model_fields["agents"]
    population = _with(PopulationConfig, agents=(list[agents], known))  # type: ignore[valid-type]
    evolution = _with(
        EvolutionConfig,
        spaces=(spaces, Field(default_factory=lambda: spaces(**algorithm.default_spaces()))),
        selection=(selection, Field(default_factory=selection)),
    )
    return _with(
        RunConfig,
        algorithm=(algorithm, Field(default_factory=algorithm)),
        population=(population, Field(default_factory=population)),
        evolution=(evolution, Field(default_factory=evolution)),
    )


def _with(base: type[Section], **fields: Any) -> Any:
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


def unused_options(
    config: RunConfig, images: bool, dueling: bool = True, spread: bool = True
) -> list[str]:
    """A line on each option that was changed, but has no effect given the others.

    Whether there are images, heads that can be dueling, and a learned spread of actions.
    """
    found: dict[str, str] = {}
    for holds, why, patterns in _rules(config, images, dueling, spread):
        for path, value in _changed(config) if holds else ():
            if any(fnmatch(path, pattern) for pattern in patterns.split()):
                found.setdefault(path, f"{path}={value} has no effect with {why}")
    default, used = config.algorithm.default_spaces(), config.drawn | config.mutated
    for name, space in config.evolution.spaces.model_dump().items():
        if name not in used and space != default.get(name):
            found[name] = f"evolution.spaces.{name} has no effect with the other options"
    return list(found.values())


def _rules(
    config: RunConfig, images: bool, dueling: bool, spread: bool
) -> Iterator[tuple[bool, str, str]]:
    """Whether a rule holds, what it is, and the options that then have no effect."""
    method, mutation = config.evolution.method, config.evolution.mutation
    why = "one agent" if method == "evolution" else f"evolution.method: {method}"
    sections = "selection mutation explore halving"
    sections = " ".join(f"evolution.{name}.*" for name in sections.split())
    yield not config.evolves, why, sections
    trained = config.evaluation.source == "training"
    yield trained, "evaluation.source: training", "evaluation.episodes"
    rollout = config.algorithm.experience != "replay"
    yield rollout, "an algorithm that learns from rollouts", "replay.*"
    keeps_none = rollout and not getattr(config.algorithm, "replay_unrolls", 0)
    yield keeps_none, "an algorithm that replays nothing", "checkpoint.replay"
    ratio, slack = config.replay.samples_per_insert, "replay.samples_per_insert_slack"
    yield not config.has_actors, "mesh.actors: 0", f"actors.* {slack}"
    yield not config.mesh.actors, "mesh.actors: 0", "actors.place"
    yield ratio is None, "no replay.samples_per_insert", slack
    yield config.replay_at_actors, "replay.at: actors", "checkpoint.replay"
    by_ratio = ratio is not None and not rollout
    yield by_ratio, "replay.samples_per_insert", "algorithm.learn_step algorithm.updates"
    gradients = config.algorithm.sends == "gradients"
    yield not gradients, "an algorithm whose actors send no gradients", "actors.max_lag"
    yield rollout, "an algorithm that learns from rollouts", "actors.steps"
    priorities = "replay.alpha replay.beta_* replay.priority_eps replay.first_priority"
    yield config.replay.kind == "uniform", "replay.kind: uniform", priorities
    unused = " ".join(f"algorithm.{name}" for name in config.algorithm.unused)
    yield True, "the other options of algorithm", unused
    yield not config.spaces, "no evolution.spaces", "population.init evolution.explore.*"
    for name in config.drawn:
        yield True, f"agents that draw it from evolution.spaces.{name}", f"algorithm.{name}"
    convolutions = "network.channels* network.kernels network.strides *.mutation.*channels"
    yield not dueling, "networks that give no values of actions", "network.dueling"
    yield not spread, "actions that are choices", "algorithm.initial_log_std"
    yield not images, "observations that are no images", convolutions
    shapes = "*.mutation.*layer* *.mutation.*units *.mutation.*channels"
    yield not mutation.architecture, "architecture: 0", shapes
    noise = "*.mutation.noise* *.mutation.reset_dormant"
    yield not mutation.parameters, "parameters: 0", noise
    yield not mutation.activation, "activation: 0", "*.mutation.activations"
    yield not mutation.hyperparameters, "mutation.hyperparameters: 0", "evolution.explore.*"
    strategy = config.evolution.explore.strategy
    yield strategy != "resample", f"strategy: {strategy}", "evolution.explore.resample"
    yield not config.actors.listen, "no actors.listen", "actors.most"
    yield config.actors.lockstep, "actors.lockstep: true", f"actors.max_lag {slack}"
    accounts = "tracking.project tracking.entity tracking.group tracking.timeout"
    yield config.tracking.wandb == "off", "tracking.wandb: off", accounts


def _changed(section: Section, above: str = "") -> Iterator[tuple[str, Any]]:
    """The options of a section, and of those in it, that are not as by default."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _changed(value, f"{above}{name}.")
        elif value != field.default:
            yield f"{above}{name}", value
