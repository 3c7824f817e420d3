"""The sections of a configuration but for algorithm and evolution: options, ranges and units.

First what all sections are made of: a base class, options, and refusals in plain words.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, create_model, model_serializer, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from evorl.config.registry import did_you_mean, resolve
from evorl.errors import ConfigError
from evorl.genome import Activation

MOST = 10**12  # the upper bound of counts that have no natural one: still exact as a float
REFUSED = "refused"  # the error type of evorl's own checks, which bring their message along


class Section(BaseModel):
    """A part of the configuration: immutable, no unknown keys, no conversions."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Sparse(Section):
    """A section that is written without the options that are None."""

    @model_serializer(mode="wrap")
    def _given(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


def option(default: Any, description: str, **limits: Any) -> Any:
    """A field that all agents share; a default of `...` means that it must be given."""
    return Field(default=default, description=description, **limits)


def hyperparameter(
    default: float, description: str, *, space: dict[str, Any] | None = None, **limits: Any
) -> Any:
    """A field that every agent has for itself: genomes hold it, evolution may change it.

    `space` is where it evolves unless evolution.spaces says otherwise, such as
    {"kind": "log", "low": 1e-4, "high": 1e-2}; None: it stays as it is.
    """
    extra: dict[str, Any] = {"hyperparameter": True} | ({"space": space} if space else {})
    return Field(default=default, description=description, json_schema_extra=extra, **limits)


def marks(field: FieldInfo) -> dict[str, Any]:
    """What `hyperparameter` says of a field; nothing for other fields."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def describe(value: object) -> str:
    """A value as the user knows it from YAML."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the string {value!r:.60}"
    if isinstance(value, list | tuple):
        return "a list"
    return "a mapping" if isinstance(value, Mapping) else f"{value!r:.60}"


def unknown_key(key: str, known: Collection[str]) -> str:
    """That a key does not exist, and which one was probably meant."""
    return "unknown key" + (did_you_mean(key, known) or f"; known keys: {', '.join(known)}")


def refuse(field: str, rule: str, got: object) -> NoReturn:
    """Tell pydantic of a broken rule; `field` is the path below the section that checks it."""
    refusal(field, f"must {rule}, got {describe(got)}")


def refusal(field: str, message: str) -> NoReturn:
    """Tell pydantic what is wrong, in our own words."""
    raise PydanticCustomError(REFUSED, "{message}", {"field": field, "message": message})


def check_part(kind: str, name: str, field: str = "") -> Any:
    """The class or function of this name; refused if there is none."""
    try:
        return resolve(kind, name)
    except ConfigError as error:
        refusal(field, str(error))


AutoBool = Literal["auto", True, False]
Count = Annotated[int, Field(ge=1, le=MOST)]
AutoCount = Literal["auto"] | Count
Fraction = Annotated[float, Field(ge=0, le=1)]
Units = Annotated[int, Field(ge=1, le=4096)]
Channels = Annotated[int, Field(ge=1, le=1024)]
Pixels = Annotated[int, Field(ge=1, le=64)]
Name = Annotated[str, Field(min_length=1, max_length=128)]


class WrapperConfig(Section):
    """A class of gymnasium.wrappers, or one of your own, put around every environment."""

    name: str = option(
        ..., "Name of a class in gymnasium.wrappers, or your own as module:Class.", min_length=1
    )
    kwargs: dict[str, Any] = option({}, "Arguments of the wrapper.")


class NormalizeConfig(Section):
    """Running statistics that every agent keeps in training, and its children inherit."""

    observations: bool = option(False, "Whether networks read observations by mean and spread.")
    rewards: bool = option(False, "Whether rewards are divided by the spread of the returns.")


class EnvConfig(Section):
    """The environment, and how many of it each agent plays."""

    id: str = option(
        ..., "Gymnasium environment id, such as CartPole-v1.", min_length=1, max_length=512
    )
    num_envs: int = option(8, "Environments per agent.", ge=1, le=1024)
    backend: Literal["auto", "sync", "async", "native", "envpool"] = option(
        "auto", "What steps the environments; auto takes the fastest."
    )
    kwargs: dict[str, Any] = option({}, "Arguments of gymnasium.make.")
    wrappers: list[WrapperConfig] = option(
        [], "Wrappers of every environment, innermost first.", max_length=32
    )
    normalize: NormalizeConfig = Field(default_factory=NormalizeConfig)
    max_failures: int = option(
        100,
        "Failures of environments that a run survives, for each million steps that has begun.",
        ge=0,
        le=MOST,
    )
    timeout: float = option(
        300.0,
        "Seconds that a step or reset may take; then an async environment is replaced, and of"
        " another one the run says where it hangs.",
        gt=0,
        le=86400,
    )


class NetworkConfig(Section):
    """The network that every agent starts from; images pass through convolutions first."""

    hidden: list[Units] = option([64, 64], "Units of each layer.", min_length=1, max_length=8)
    activation: Activation = option("relu", "Activation after every hidden layer.")
    layer_norm: bool = option(False, "Whether hidden layers are layer-normalised.")
    dueling: bool = option(False, "Whether value and advantage have separate heads.")
    channels: list[Channels] = option([16, 32], "Channels (images).", min_length=1, max_length=8)
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

    kind: Literal["uniform", "prioritized"] = option("uniform", "Draw alike, or by TD error.")
    capacity: Count = option(100_000, "Transitions per replay.")
    share: Literal["rank", "agent", "world"] = option(
        "rank", "One replay for all agents of a process, one per agent, or one of all ranks."
    )
    counts: Literal["own", "all"] = option(
        "own",
        "Steps that learn_step and learning_starts count: own ones, or all that enter the replay.",
    )
    alpha: Fraction = option(0.6, "Exponent of priorities; 0 is uniform (prioritized only).")
    beta_start: Fraction = option(0.4, "Importance exponent at the start (prioritized only).")
    beta_end: Fraction = option(1.0, "Importance exponent at the end (prioritized only).")
    priority_eps: float = option(1e-6, "Added to every absolute TD error (prioritized only).", gt=0)
    first_priority: Literal["auto", "highest", "error"] = option(
        "auto",
        "Priority of new transitions: the highest so far, or by the TD error of who collected them;"
        " auto: error where actors do (prioritized only).",
    )
    samples_per_insert: float | None = option(
        None,
        "Samples that an agent draws for each of its transitions; null: as learn_step calls for.",
        gt=0,
        le=1e6,
    )
    samples_per_insert_slack: int = option(
        1000,
        "Transitions of an agent by which learners may be ahead of that, or behind, where actors"
        " play at their own pace.",
        ge=0,
        le=MOST,
    )
    at: Literal["learners", "actors"] = option(
        "learners", "Who keeps what actors play: learners, or each actor its own (mesh.actors)."
    )


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
    init: Literal["config", "sample"] = option("config", "From algorithm, or drawn from spaces.")
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
    source: Literal["episodes", "training"] = option(
        "episodes", "Fitness from seeded episodes, or from those of training, which cost nothing."
    )
    episodes: Count = option(10, "Episodes per agent and evaluation.")
    fitness: str = option("mean", "What counts of returns: mean, median, iqm, or module:function.")
    confirm_episodes: Count = option(20, "Further episodes at most, in a race for the best.")
    final_episodes: int = option(100, "Held-out episodes of the final score.", ge=2, le=MOST)
    max_steps: AutoCount = option(
        "auto",
        "Steps after which an episode for fitness is cut; auto: the environment's own limit, but at"
        " most 10,000, and 1,000 if it has none.",
    )
    final_max_steps: AutoCount = option(
        "auto", "Steps after which a held-out episode is cut; auto: as for max_steps."
    )


class BudgetConfig(Section):
    """When training ends."""

    env_steps: Count = option(100_000, "Steps of all agents and environments together.")
    counts: Literal["training", "all"] = option("training", "Whether evaluations count, too.")
    stop_at: float | None = option(None, "Confirmed fitness at which the run ends early.")
    seconds: float | None = option(
        None,
        "Seconds of training after which it ends, too; of every process anew that resumes it.",
        gt=0,
        le=1e9,
    )
    patience: int | None = option(
        None, "Generations without a higher confirmed fitness after which it ends.", ge=1, le=MOST
    )

    def spent(self, training: int, evaluation: int) -> int:
        """The environment steps that count."""
        return training + (evaluation if self.counts == "all" else 0)


class MeshConfig(Section):
    """How the ranks of a launch share the work: ranks = population × data + evaluators + actors."""

    population: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = option(
        "auto", "Ranks among which agents are divided; auto: all that are left."
    )
    data: int = option(1, "Ranks that train the same agents, on own experience.", ge=1, le=4096)
    evaluators: int = option(
        0,
        "Ranks that only score, while the others train; selection is then a generation behind.",
        ge=0,
        le=4096,
    )
    actors: int = option(0, "Processes that only play, for the others to learn.", ge=0, le=4096)
    timeout: float = option(600.0, "Seconds that ranks wait for each other.", gt=0, le=86400)


class ActorsConfig(Section):
    """Processes that play while others learn (mesh.actors): experience up, weights down."""

    place: Literal["auto", "ranks", "children", "inline"] = option(
        "auto",
        "Ranks of a launch, children of each learner, or within it (lock-step only); auto takes"
        " ranks where there are several, else children.",
    )
    lockstep: bool = option(
        False, "Whether all play with the same weights, one message each: the same bytes again."
    )
    listen: str | None = option(
        None,
        "HOST:PORT on which further actors may join at any time, by evorl actor; port 0 takes a"
        " free one. Left out: no port is open.",
        pattern=r"^(\[[^\[\]/\s]+\]|[^:/\[\]\s]+):[0-9]{1,5}$",
    )
    most: int = option(
        64, "Actors of a learner at the most: its own, and those that join.", ge=1, le=4096
    )
    steps: int = option(
        16, "Steps of each environment in a message, where there is a replay.", ge=1, le=65536
    )
    max_lag: int = option(
        100, "Updates since a gradient's weights were sent, beyond which it is refused.", ge=0
    )

    @model_validator(mode="after")
    def _has_a_port(self) -> "ActorsConfig":
        if self.listen and int(self.listen.rpartition(":")[2]) >= 2**16:
            refuse("listen", "have a port below 65536", self.listen)
        return self


class CheckpointConfig(Section):
    """What is kept to resume a run that was stopped or killed."""

    every: Count = option(1, "Generations between checkpoints.")
    keep: int = option(2, "Newest checkpoints that stay.", ge=1, le=1000)
    replay: bool = option(True, "Whether replays are kept; else a resumed run collects again.")


class TrackingConfig(Section):
    """Trackers that a run is copied to; metrics.jsonl and lineage.jsonl stay the truth."""

    wandb: Literal["off", "offline", "online"] = option(
        "off", "Weights & Biases: off, offline (into the run's folder), online."
    )
    tensorboard: bool = option(False, "Whether TensorBoard events are written to the run's folder.")
    project: Name = option("evorl", "Project on W&B.")
    entity: Name | None = option(None, "User or team on W&B; left out: whoever is logged in.")
    group: Name | None = option(None, "Group of runs on W&B, such as the seeds of one experiment.")
    timeout: float = option(30.0, "Seconds that W&B may take to begin or end.", gt=0, le=3600)


class FolderConfig(Section):
    """Where the run is written."""

    folder: str = option("runs", "Folder in which the run gets its own, by name.", min_length=1)
    if_exists: Literal["error", "number"] = option("error", "Name in use: refuse, or add a number.")
