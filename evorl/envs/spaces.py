"""Which observations and actions evorl takes, and the one form the rest of it sees them in.

Images come out channels first, every other box as a flat vector, and Discrete numbers start at 0.
Actions of a box are vectors of numbers from -1 to 1, MultiDiscrete ones vectors of whole numbers.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from evorl.errors import ConfigError

Array = NDArray[Any]
INT64: np.dtype[Any] = np.dtype(np.int64)
FLOAT32: np.dtype[Any] = np.dtype(np.float32)
UNBOUNDED = 1e30  # bounds from here on are none: the largest float32 often stands for infinity
ChannelsLast = bool | Literal["auto"]


@dataclass(frozen=True)
class ObservationSpec:
    """What one observation looks like to networks and replay."""

    kind: Literal["vector", "image", "discrete"]
    shape: tuple[int, ...]  # vector (D,), image (C, H, W), discrete ()
    dtype: np.dtype[Any]  # what the replay stores
    n: int | None = None  # how many values a discrete observation takes
    scale: float = 1.0  # brings bytes to the range from 0 to 1, on use
    mask: int = 0  # the last numbers of a vector: which actions are allowed, 1 or 0


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
        """How many values each part of a discrete action takes; empty for a Box."""
        return (self.n,) if self.n is not None else self.parts


@dataclass(frozen=True)
class SpaceAdapter:
    """Translates between an environment's own arrays and evorl's."""

    observation: ObservationSpec
    action: ActionSpec
    transpose: bool = False  # images arrive as H, W, C
    observation_start: int = 0
    action_start: int | tuple[int, ...] = 0  # the first choice; of MultiDiscrete, for each part
    raw_shape: tuple[int, ...] = ()  # of one observation, as the environment gives it
    raw_dtype: str = "float32"
    raw_action_shape: tuple[int, ...] = ()  # of one action, as the environment takes it
    raw_action_dtype: str = "int64"

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
        """Actions [M, …] in evorl's form, as the environment takes them."""
        if self.action.kind == "continuous":
            low, high, middle, half = self._bounds
            # not np.clip or nan_to_num, whose wrappers take longer than so few numbers
            inside = np.minimum(np.maximum(actions.astype(np.float64), -1.0), 1.0)
            # not a number, which an agent that diverged gives, stands for the middle
            inside = np.where(np.isnan(inside), 0.0, inside)
            own: Array = np.minimum(np.maximum(middle + half * inside, low), high)
        else:
            own = actions + np.array(self.action_start) if np.any(self.action_start) else actions
        if own.shape[1:] != self.raw_action_shape:
            own = own.reshape(len(own), *self.raw_action_shape)
        return own.astype(self.raw_action_dtype, copy=False)

    @cached_property
    def _bounds(self) -> tuple[Array, Array, Array, Array]:
        """Of a box: lowest and highest, the middle, and how far they are from it."""
        low, high = np.array(self.action.low), np.array(self.action.high)
        return low, high, (low + high) / 2, (high - low) / 2


def adapt(
    env_id: str,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    channels_last: ChannelsLast = "auto",
    mask: int = 0,
) -> SpaceAdapter:
    """The adapter for one environment's spaces; ConfigError for one that evorl cannot take.

    `channels_last` says whether images are (H, W, C); "auto" takes the smaller of the first and
    the last dimension for the channels, the last if they are equal. `mask` numbers at the end of an
    observation say which actions are allowed.
    """
    action, action_start = _action(env_id, action_space)
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
            "Discrete, MultiBinary, and Dict and Tuple of what can be flattened are supported "
            "(the wrapper FlattenObservation may help)"
        )
    return SpaceAdapter(
        replace(observation, mask=mask),
        action,
        transpose,
        observation_start=start,
        action_start=action_start,
        raw_shape=shape,
        raw_dtype=np.dtype(observation_space.dtype).name,
        raw_action_shape=tuple(int(size) for size in action_space.shape or ()),
        raw_action_dtype=np.dtype(action_space.dtype).name,
    )


def _action(env_id: str, space: spaces.Space[Any]) -> tuple[ActionSpec, int | tuple[int, ...]]:
    """What an action is to networks, and where the environment starts to count."""
    parts: tuple[int, ...]
    starts: tuple[int, ...]
    if isinstance(space, spaces.Box):
        return _box_action(env_id, space), 0
    if isinstance(space, spaces.Discrete):
        parts, starts = (int(space.n),), (int(space.start),)
    elif isinstance(space, spaces.MultiDiscrete):
        parts, starts = (
            tuple(int(number) for number in numbers.flat) for numbers in (space.nvec, space.start)
        )
    elif isinstance(space, spaces.MultiBinary):
        count = math.prod(space.shape)
        parts, starts = (2,) * count, (0,) * count
    else:
        raise ConfigError(
            f"env.id: {env_id!r} has {type(space).__name__} actions; only Discrete, MultiDiscrete, "
            "MultiBinary and Box actions are supported; write a wrapper that makes one of these"
        )
    if not parts:
        raise ConfigError(f"env.id: {env_id!r} has actions of shape {space.shape}: none at all")
    if len(parts) == 1:
        return ActionSpec("discrete", parts[0]), starts[0]
    return ActionSpec("multidiscrete", shape=(len(parts),), parts=parts), starts


def _box_action(env_id: str, space: spaces.Box) -> ActionSpec:
    """The flat vector of a box with bounds."""
    dtype, low, high = np.dtype(space.dtype), space.low.ravel(), space.high.ravel()
    if not low.size:
        raise ConfigError(f"env.id: {env_id!r} has actions of shape {space.shape}: none at all")
    if not np.issubdtype(dtype, np.floating):
        raise ConfigError(
            f"env.id: {env_id!r} has Box actions of whole numbers ({dtype.name}); make them "
            "Discrete or MultiDiscrete, or floating-point, in a wrapper of your own"
        )
    for number, (lowest, highest) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        if not (lowest > -UNBOUNDED and highest < UNBOUNDED):
            raise ConfigError(
                f"env.id: {env_id!r} has Box actions without bounds (number {number} goes from "
                f"{lowest:g} to {highest:g}); give them bounds in a wrapper of your own, whose "
                "action_space is the box that actions are to be scaled to"
            )
    ends = tuple(low.tolist()), tuple(high.tolist())
    return ActionSpec("continuous", None, (low.size,), FLOAT32, *ends)


def _box(
    space: spaces.Box, shape: tuple[int, ...], channels_last: ChannelsLast
) -> tuple[ObservationSpec, bool]:
    """A vector or an image, and whether its channels come last."""
    dtype = np.dtype(space.dtype)
    # One byte stays one byte; everything else is float32, as the networks compute in it anyway.
    if dtype == np.bool_:
        dtype = np.dtype(np.int8)  # not uint8, which stands for pixels from 0 to 255
    elif dtype not in (np.uint8, np.int8):
        dtype = FLOAT32
    scale = 1 / max(float(space.high.max()), 1.0) if dtype == np.uint8 else 1.0
    if dtype == np.uint8 and len(shape) == 2:  # pixels without a dimension for their channel
        return ObservationSpec("image", (1, *shape), dtype, scale=scale), False
    if len(shape) == 3:
        last = shape[2] <= shape[0] if channels_last == "auto" else channels_last
        image = (shape[2], *shape[:2]) if last else shape
        return ObservationSpec("image", image, dtype, scale=scale), last
    return ObservationSpec("vector", (math.prod(shape),), dtype, scale=scale), False
