"""Which observations and actions evorl takes, and the one form the rest of it sees them in.

Images come out channels first, every other box as a flat vector, and Discrete numbers start at 0.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from evorl.errors import ConfigError

Array = NDArray[Any]
INT64: np.dtype[Any] = np.dtype(np.int64)
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

    kind: Literal["discrete", "continuous", "multidiscrete"]
    n: int | None = None  # how many values a discrete action takes
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = INT64  # what the replay stores
    low: tuple[float, ...] = ()  # of a box, number by number
    high: tuple[float, ...] = ()
    parts: tuple[int, ...] = ()  # of a MultiDiscrete action: how many values each part takes

    @property
    def choices(self) -> tuple[int, ...]:
        """How many values each part of an action takes that is no box."""
        return (self.n,) if self.n is not None else self.parts


@dataclass(frozen=True)
class SpaceAdapter:
    """Translates between an environment's own arrays and evorl's."""

    observation: ObservationSpec
    action: ActionSpec
    transpose: bool = False  # images arrive as H, W, C
    observation_start: int = 0
    action_start: int = 0
    raw_shape: tuple[int, ...] = ()  # of one observation, as the environment gives it
    raw_dtype: str = "float32"

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
    """The adapter for one environment's spaces; ConfigError for one that evorl cannot take.

    `channels_last` says whether images are (H, W, C); "auto" takes the smaller of the first and
    the last dimension for the channels, the last if they are equal.
    """
    if not isinstance(action_space, spaces.Discrete):
        raise ConfigError(
            f"env.id: {env_id!r} has {type(action_space).__name__} actions; "
            "only Discrete actions are supported"
        )
    shape = tuple(int(size) for size in observation_space.shape or ())
    if 0 in shape or len(shape) > 3:
        raise ConfigError(
            f"env.id: {env_id!r} has observations of shape {shape}; vectors and images with up to"
            " three dimensions are supported (the wrapper FlattenObservation makes vectors)"
        )
    start, transpose = 0, False
    if isinstance(observation_space, spaces.Discrete):
        start = int(observation_space.start)
        observation = ObservationSpec("discrete", (), INT64, int(observation_space.n))
    elif isinstance(observation_space, spaces.MultiBinary):
        observation = ObservationSpec("vector", (math.prod(shape),), np.dtype(np.int8))
    elif isinstance(observation_space, spaces.Box):
        observation, transpose = _box(observation_space, shape, channels_last)
    else:
        raise ConfigError(
            f"env.id: {env_id!r} has {type(observation_space).__name__} observations; only Box, "
            "Discrete and MultiBinary are supported (the wrapper FlattenObservation may help)"
        )
    return SpaceAdapter(
        observation,
        ActionSpec("discrete", int(action_space.n)),
        transpose,
        observation_start=start,
        action_start=int(action_space.start),
        raw_shape=shape,
        raw_dtype=np.dtype(observation_space.dtype).name,
    )


def _box(
    space: spaces.Box, shape: tuple[int, ...], channels_last: ChannelsLast
) -> tuple[ObservationSpec, bool]:
    """A vector or an image, and whether its channels come last."""
    dtype = np.dtype(space.dtype)
    # One byte stays one byte; everything else is float32, as the networks compute in it anyway.
    if dtype == np.bool_:
        dtype = np.dtype(np.int8)  # not uint8, which stands for pixels from 0 to 255
    elif dtype not in (np.uint8, np.int8):
        dtype = np.dtype(np.float32)
    scale = 1 / max(float(space.high.max()), 1.0) if dtype == np.uint8 else 1.0
    if dtype == np.uint8 and len(shape) == 2:  # pixels without a dimension for their channel
        return ObservationSpec("image", (1, *shape), dtype, scale=scale), False
    if len(shape) == 3:
        last = shape[2] <= shape[0] if channels_last == "auto" else channels_last
        image = (shape[2], *shape[:2]) if last else shape
        return ObservationSpec("image", image, dtype, scale=scale), last
    return ObservationSpec("vector", (math.prod(shape),), dtype, scale=scale), False
