"""What a network must fit: what it reads and what it gives, apart from its architecture."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class NetworkSpec:
    """The ends of one network: the observation it reads, and how many numbers it gives."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (when read from a file)

    inputs: int  # length of an observation after encoding; 0 for images
    outputs: int
    image: tuple[int, int, int] | None = None  # channels, height, width
    one_hot: bool = False  # observations are indices below `inputs`
    scale: float = 1.0  # raw observations are multiplied by this on use (uint8 images)
    extra: int = 0  # numbers read beside the observation, such as an action
    dueling: bool = False  # may its head be split into a value and advantages?
    choices: tuple[int, ...] = ()  # outputs are the logits of choices among so many
    mask: int = 0  # numbers behind the observation: which actions are allowed
    normalize: bool = False  # are observations read by the agent's running statistics of them?

    def giving(
        self, outputs: int, *, extra: int = 0, dueling: bool = False, choices: tuple[int, ...] = ()
    ) -> "NetworkSpec":
        """The same inputs for another network."""
        return replace(self, outputs=outputs, extra=extra, dueling=dueling, choices=choices)


@dataclass(frozen=True)
class ParameterSpec:
    """Numbers that an agent learns without a network, such as a temperature."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (when read from a file)

    size: int = 1
    initial: float = 0.0

    @property
    def segments(self) -> dict[str, tuple[int, float]]:
        """How many numbers each segment has, and what they are at first."""
        return {VALUE: (self.size, self.initial)}


@dataclass(frozen=True)
class NormalizerSpec:
    """An agent's running statistics: a part of its row that is counted and never trained."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (when read from a file)

    observations: int = 0  # numbers of an observation; 0: they are read as they are
    rewards: bool = False  # are rewards scaled by the spread of discounted returns?

    @property
    def segments(self) -> dict[str, tuple[int, float]]:
        """How many numbers each segment has, and what they are at first."""
        sizes = {"obs": self.observations, "return": int(self.rewards)}
        return {
            f"{what}_{name}": (1 if name == "samples" else size, initial)
            for what, size in sizes.items()
            if size
            for name, initial in (("mean", 0.0), ("var", 1.0), ("samples", 0.0))
        }


Spec = NetworkSpec | ParameterSpec | NormalizerSpec
VALUE = "value"  # the only segment of a bare parameter
NORMALIZER = "normalizer"  # the name of the statistics among the networks of an agent
