"""The ranges and units of options: the types that the sections of sections.py are made of."""

from typing import Annotated, Any, Literal, NoReturn

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from evorl.config.wording import REFUSED, describe

MOST = 10**12  # the upper bound of counts that have no natural one: still exact as a float


def refuse(field: str, rule: str, got: object) -> NoReturn:
    """Tell pydantic of a broken rule; `field` is the path below the section that checks it."""
    message = f"must {rule}, got {describe(got)}"
    raise PydanticCustomError(REFUSED, "{message}", {"field": field, "message": message})


def folder_name(value: str) -> str:
    """Check that a name can be a folder on every system."""
    if not value.strip("."):
        refuse("", "be more than dots", value)
    if not all(letter.isascii() and (letter.isalnum() or letter in "._-") for letter in value):
        refuse("", "consist of letters, digits, '.', '_' and '-'", value)
    return value


def no_number(value: object) -> object:
    """Check that true or false is not given as 1 or 0, which Python holds to be equal."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        refuse("", "be one of auto, true, false", value)
    return value


# The ranges of everything that an agent may have for itself: used by all agents, and by one.
LearningRate = Annotated[float, Field(gt=0, le=1, description="Adam's step size.")]
Gamma = Annotated[float, Field(ge=0, le=1, description="Discount per environment step.")]
Tau = Annotated[
    float, Field(gt=0, le=1, description="Fraction of a soft target update, per update.")
]
BatchSize = Annotated[int, Field(ge=1, le=65536, description="Transitions per update.")]
LearnStep = Annotated[
    int, Field(ge=1, le=MOST, description="The agent's own environment steps per learn step.")
]
MaxGradNorm = Annotated[
    float, Field(ge=0, description="Largest norm of an agent's gradient; 0 turns clipping off.")
]
TargetPeriod = Annotated[
    int, Field(ge=1, le=MOST, description="Updates between copies to a periodic target network.")
]
EpsilonStart = Annotated[
    float, Field(ge=0, le=1, description="Probability of a random action at the first step.")
]
EpsilonEnd = Annotated[
    float, Field(ge=0, le=1, description="Probability of a random action after epsilon_steps.")
]
EpsilonSteps = Annotated[
    int,
    Field(ge=1, le=MOST, description="Own environment steps over which epsilon falls linearly."),
]
Hidden = Annotated[
    list[Annotated[int, Field(ge=1, le=4096)]],
    Field(min_length=1, max_length=8, description="Units of each hidden layer."),
]
Activation = Annotated[
    Literal["relu", "elu", "gelu", "tanh", "silu"],
    Field(description="Activation after every hidden layer."),
]
LayerNorm = Annotated[bool, Field(description="Whether hidden layers are layer-normalised.")]
Dueling = Annotated[bool, Field(description="Whether value and advantage have separate heads.")]
Channels = Annotated[
    list[Annotated[int, Field(ge=1, le=1024)]],
    Field(min_length=1, max_length=8, description="Channels of each convolution (images only)."),
]
# What all agents share.
Kernels = Annotated[
    list[Annotated[int, Field(ge=1, le=64)]],
    Field(description="Kernel size of each convolution, in pixels; as many as channels."),
]
Strides = Annotated[
    list[Annotated[int, Field(ge=1, le=64)]],
    Field(description="Stride of each convolution, in pixels; as many as channels."),
]
AutoBool = Annotated[Literal["auto", True, False], BeforeValidator(no_number)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Kwargs = dict[str, Any]
