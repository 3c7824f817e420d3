"""Which observations and actions evorl takes, and the one form the rest of it sees them in.

Images come out channels first, every other box as a flat vector, and Discrete numbers start at 0.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from evorl.errors import ConfigError

Array = NDArray[Any]
ChannelsLast = bool | Literal["auto"]


@dataclass(frozen=True)
class ObservationSpec:
    """What one observation looks like to networks and replay."""

    kind: Literal["vector", "image", "discrete"]
    shape: tuple[int, ...]  # vector (D,), image (C, H, W), discrete ()
    dtype: np.dtype[Any]  # what the replay stores
    n: int | None = None  # how many values a discrete observation takes
    scale: float = 1.0  # brings bytes to the range from 0 to 1, on use


@dataclass(frozen=True)
class ActionSpec:
    """What one action looks like to networks and replay."""

    kind: Literal["discrete", "continuous"]
    n: int | None = None  # how many values a discrete action takes
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = np.dtype(np.int64)  # what the replay stores


@dataclass(frozen=True)
class SpaceAdapter:
    """Translates between an environment's own arrays and evorl's."""

    observation: ObservationSpec
    num_actions: int
    transpose: bool = False  # images arrive as H, W, C
    observation_start: int = 0
    action_start: int = 0

    def observations(self, raw: Any, *, copy: bool = True) -> Array:
        """A batch [M, …] in evorl's form; copy=False if nobody will write into raw again."""
        array: Array = np.asarray(raw)
        if self.observation_start:
            array, copy = array - self.observation_start, False
        elif self.transpose:
            array = array.transpose(0, 3, 1, 2)
        elif array.ndim != 1 + len(self.observation.shape):
            array = array.reshape(len(array), *self.observation.shape)
        return array.astype(self.observation.dtype, order="C", copy=copy)

    def actions(self, actions: Array) -> Array:
        """Actions [M], counted from 0, as the environment counts them."""
        return actions + self.action_start if self.action_start else actions


def adapt(
    env_id: str,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    channels_last: ChannelsLast = "auto",
) -> SpaceAdapter:
    """The adapter for an environment's spaces; a space that evorl cannot take is refused by name.

    Args:
        env_id: the environment's id, for messages.
        observation_space: of a single environment.
        action_space: of a single environment.
        channels_last: whether images are (H, W, C); "auto" takes the smaller of the first and the
            last dimension for the channels, the last if they are equal. Read for images only.
    """
    if not isinstance(action_space, spaces.Discrete):
        raise ConfigError(
            f"env.id: {env_id!r} has {type(action_space).__name__} actions; "
            "only Discrete actions are supported"
        )
    num_actions, action_start = int(action_space.n), int(action_space.start)
    if isinstance(observation_space, spaces.Discrete):
        n = int(observation_space.n)
        observation = ObservationSpec("discrete", (), np.dtype(np.int64), n)
        start = int(observation_space.start)
        return SpaceAdapter(observation, num_actions, False, start, action_start)
    if not isinstance(observation_space, spaces.Box | spaces.MultiBinary):
        raise ConfigError(_refused_observation(env_id, observation_space))

    dtype = _stored(np.dtype(observation_space.dtype))
    shape = tuple(int(size) for size in observation_space.shape)
    if 0 in shape or len(shape) > 3:
        raise ConfigError(
            f"env.id: {env_id!r} has observations of shape {shape}; vectors and images with up to"
            " three dimensions are supported (the wrapper FlattenObservation makes vectors)"
        )
    scale = 1.0
    if isinstance(observation_space, spaces.Box) and dtype == np.uint8:
        scale = 1 / max(float(observation_space.high.max()), 1.0)
        if len(shape) == 2:  # pixels without a dimension for their channel
            observation = ObservationSpec("image", (1, *shape), dtype, scale=scale)
            return SpaceAdapter(observation, num_actions, False, 0, action_start)
    if isinstance(observation_space, spaces.Box) and len(shape) == 3:
        last = shape[2] <= shape[0] if channels_last == "auto" else channels_last
        chw = (shape[2], shape[0], shape[1]) if last else shape
        observation = ObservationSpec("image", chw, dtype, scale=scale)
        return SpaceAdapter(observation, num_actions, last, 0, action_start)
    observation = ObservationSpec("vector", (int(np.prod(shape)),), dtype, scale=scale)
    return SpaceAdapter(observation, num_actions, False, 0, action_start)


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """One byte stays one byte; everything else is float32, as the networks compute in it anyway."""
    if dtype == np.bool_:
        return np.dtype(np.int8)  # not uint8, which stands for pixels from 0 to 255
    return dtype if dtype in (np.uint8, np.int8) else np.dtype(np.float32)


def _refused_observation(env_id: str, space: spaces.Space[Any]) -> str:
    hint = (
        " (the wrapper FlattenObservation makes a Box of it)"
        if isinstance(space, spaces.Dict | spaces.Tuple | spaces.MultiDiscrete)
        else ""
    )
    return (
        f"env.id: {env_id!r} has {type(space).__name__} observations; "
        f"only Box, Discrete and MultiBinary observations are supported{hint}"
    )
