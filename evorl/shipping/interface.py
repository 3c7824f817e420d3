"""What an agent and its environment say to each other, as the environment says it.

The rest of evorl sees observations in one form (see envs/spaces.py). Whoever runs an agent without
evorl has them as they come: channels last, counted from 1, in other types.
"""

from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from evorl.envs import EnvSpec
from evorl.envs.make import make_env
from evorl.envs.pool import Pool
from evorl.envs.spaces import SpaceAdapter, adapt
from evorl.networks.layout import Problem
from evorl.training.build import make_problem

WIDEST = 1e6  # bounds further apart than this are there for form's sake

Array = NDArray[Any]


class Interface(NamedTuple):
    """The environment's own observations, and what evorl makes of them."""

    space: Space[Any]  # of one observation, as the environment gives it
    adapter: SpaceAdapter
    problem: Problem

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one observation."""
        return tuple(int(size) for size in self.space.shape or ())

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the environment's observations."""
        return np.dtype(self.space.dtype)

    @property
    def actions(self) -> range:
        """The actions as the environment counts them."""
        start = self.adapter.action_start
        return range(start, start + (self.adapter.action.n or 0))


def interface_of(spec: EnvSpec) -> Interface:
    """From making the environment; ConfigError if that cannot be done."""
    if spec.backend == "envpool":
        pool = Pool(spec, 1)
        space, adapter = pool.raw_observations, pool.spaces
        pool.close()
    else:
        env = make_env(spec)
        try:
            space = env.observation_space
            adapter = adapt(spec.id, space, env.action_space, spec.channels_last)
        finally:
            env.close()
    return Interface(space, adapter, make_problem(adapter.observation, adapter.action.n or 0))


def random_observations(space: Space[Any], count: int, random: np.random.Generator) -> Array:
    """Observations [count, …]: uniform between bounds that are near each other, normal elsewhere.

    `space.sample` would draw CartPole's velocities up to 1e38.
    """
    if isinstance(space, spaces.Discrete):
        return np.asarray(space.start + random.integers(space.n, size=count, dtype=np.int64))
    shape = (count, *(space.shape or ()))
    if isinstance(space, spaces.MultiBinary):
        return random.integers(2, size=shape, dtype=np.int8)
    assert isinstance(space, spaces.Box)
    dtype = np.dtype(space.dtype)
    if dtype == np.bool_:
        return random.integers(2, size=shape).astype(bool)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    near = (np.abs(low) < WIDEST) & (np.abs(high) < WIDEST)
    within = random.uniform(np.where(near, low, 0), np.where(near, high, 1), shape)
    values = np.where(near, within, np.clip(random.normal(size=shape), low, high))
    return (np.rint(values) if np.issubdtype(dtype, np.integer) else values).astype(dtype)
