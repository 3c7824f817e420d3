"""Environments whose observation (number, steps) tells everything that must happen next.

`number` is drawn at every reset from the seeded generator, and fixes the episode's length and how
it ends. Observations are returned as the environment's own buffer, which the next reset overwrites.
"""

import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

NUMBERS = 100_000
steps_taken = 0  # of all Tiny environments of this process


def length(number):
    return 3 + number % 5


def ends(number, steps):
    """(terminated, truncated) after so many steps: apart, and both at once."""
    over = steps >= length(number)
    kind = number // 5 % 3
    return over & (kind != 1), over & (kind != 0)


def reward(steps, action):
    return steps + action / 10


class Tiny(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(0, NUMBERS, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, fail_at: int | None = None):
        self.buffer = np.zeros(2)
        self.fail_at = fail_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.buffer[:] = self.np_random.integers(NUMBERS), 0
        return self.buffer, {}

    def step(self, action):
        global steps_taken
        steps_taken += 1
        self.buffer[1] += 1
        number, steps = self.buffer.astype(int)
        if steps == self.fail_at:
            raise ValueError("the simulator broke")
        terminated, truncated = ends(number, steps)
        info = {"trace": np.zeros(int(steps))}  # a shape that changes
        return self.buffer, reward(steps, action), bool(terminated), bool(truncated), info


class Broken(Exception):
    """Neither pickled nor unpickled, as many a simulator's exceptions."""

    def __init__(self, what, code):
        super().__init__(f"{what} ({code})")
        self.lock = threading.Lock()


def breaks(number, steps):
    """Whether Fragile raises in this step: the last one of every third episode."""
    return (number % 3 == 0) & (steps == length(number))


class Fragile(Tiny):
    """Raises in some steps, and in one of `resets` resets; then closing it raises, too."""

    def __init__(self, resets=0):
        super().__init__()
        self.resets, self.broken = resets, False

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        self.broken = self.resets > 0 and obs[0] % self.resets == 1
        if self.broken:
            raise Broken("no reset", int(obs[0]))
        return obs, info

    def step(self, action):
        found = super().step(action)
        self.broken = breaks(*self.buffer.astype(int))
        if self.broken:
            raise Broken("no step", int(self.buffer[0]))
        return found

    def close(self):
        if self.broken:
            raise Broken("no close", 0)


class Hopeless(Tiny):
    """Works once, for whoever tries it out with seed 0, and in the first step of any episode."""

    def __init__(self, first=False):
        super().__init__(fail_at=2)
        self.first = first

    def reset(self, *, seed=None, options=None):
        if seed not in (0, *([] if self.first else range(1, 100))):
            raise Broken("no reset", 1)
        return super().reset(seed=seed)


class TinyVector(VectorEnv[Any, Any, Any]):
    """The same, vectorised with one generator; an episode starts on the step after an end."""

    info: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, num_envs, max_episode_steps=None, mode=AutoresetMode.NEXT_STEP):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = Tiny.observation_space
        self.single_action_space = Tiny.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.buffer = np.zeros((num_envs, 2))
        self.over = np.zeros(num_envs, bool)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._restart(np.ones(self.num_envs, bool))
        self.over[:] = False
        return self.buffer, self.info

    def step(self, actions):
        late = self.over
        self.buffer[:, 1] += 1
        self._restart(late)
        number, steps = self.buffer.T.astype(int)
        terminated, truncated = ends(number, steps)
        self.over = terminated | truncated
        rewards = np.where(late, 0, reward(steps, actions))
        return self.buffer, rewards, terminated, truncated, {}

    def _restart(self, rows):
        self.buffer[rows, 0] = self.np_random.integers(NUMBERS, size=rows.sum())
        self.buffer[rows, 1] = 0


class AimVector(TinyVector):
    """Aim, vectorised."""

    def __init__(self, num_envs, **kwargs):
        super().__init__(num_envs, **kwargs)
        self.single_action_space = spaces.Box(-3, 5, (1,), np.float32)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def step(self, actions):
        assert self.action_space.contains(actions), actions
        late = self.over
        obs, _, *rest = super().step(np.zeros(self.num_envs))
        return obs, np.where(late, 0, actions[:, 0]), *rest


class MaskedVector(TinyVector):
    """With a mask that nobody reads."""

    info = {"action_mask": np.ones((1, 2))}  # noqa: RUF012


class Custom(gymnasium.Env[Any, Any]):
    """Any spaces at all; observations are samples, actions are checked."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), float(np.sum(action)), False, False, {}


class Aim(Tiny):
    """Tiny, but the action is a force from -3 to 5, and the reward what it is."""

    action_space = spaces.Box(-3, 5, (1,), np.float32)

    def step(self, action):
        assert self.action_space.contains(action), action
        obs, _, *rest = super().step(0)
        return obs, action[0], *rest  # an array of no dimensions, as many an environment gives


def allowed(number, steps, parts=(4,)):
    """Which choices Maze allows, for each part of an action: never all, and at least one."""
    return tuple(
        np.array([(number >> (choice + part + steps)) % 2 == 0 for choice in range(size - 1)] + [1])
        * (np.arange(size) != (number + steps) % (size - 1))
        for part, size in enumerate(parts)
    )


class Maze(Tiny):
    """Tiny, but an action that is not allowed raises; 1 for each step, 10 more for the right one.

    `form`: array, tuple (of the parts), none_at_end, zeros_at_end, zeros, once, long.
    """

    def __init__(self, action_space=None, form="array", observation_space=None):
        super().__init__()
        self.action_space = action_space or spaces.Discrete(4)
        self.observation_space = observation_space or Tiny.observation_space
        self.form = form
        space = self.action_space
        self.parts = tuple(np.ravel(getattr(space, "nvec", getattr(space, "n", 2))).tolist())
        self.first = np.ravel(getattr(space, "start", 0))
        if isinstance(space, spaces.MultiBinary):
            self.parts, self.first = (2,) * space.shape[0], 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.shown(), self.told(False)

    def step(self, action):
        number, steps = self.buffer.astype(int)
        chosen = np.ravel(action) - self.first
        parts = allowed(number, steps, self.parts)
        assert all(part[choice] for part, choice in zip(parts, chosen, strict=True)), action
        right = chosen.tolist() == [part.nonzero()[0][0] for part in parts]
        _, _, terminated, truncated, _ = super().step(0)
        return self.shown(), 1.0 + 10 * right, terminated, truncated, self.told(terminated)

    def shown(self):
        shape, dtype = self.observation_space.shape, self.observation_space.dtype
        return np.resize(self.buffer, shape).astype(dtype) if shape else int(self.buffer[1])

    def told(self, terminated):
        number, steps = self.buffer.astype(int)
        parts = allowed(number, steps, self.parts)
        mask = parts if self.form == "tuple" else np.concatenate(parts).astype(np.int8)
        if self.form == "zeros" and steps == 2:
            mask = np.zeros_like(mask)
        if (self.form == "once" and steps) or (self.form == "none_at_end" and terminated):
            return {}
        if self.form == "zeros_at_end" and terminated:
            mask = 0 * mask
        return {"action_mask": [*mask, 1] if self.form == "long" else mask}


class Doubled(gymnasium.RewardWrapper):
    """A wrapper of one's own."""

    def __init__(self, env, times=2):
        super().__init__(env)
        self.times = times

    def reward(self, reward):
        return self.times * reward


def _needs_missing(**kwargs):
    import a_package_that_is_missing  # noqa: F401


def _register():
    gymnasium.register("Tiny-v0", entry_point=Tiny)
    gymnasium.register("Fragile-v0", entry_point=Fragile)
    gymnasium.register("Hopeless-v0", entry_point=Hopeless)
    gymnasium.register("TinyCustom-v0", entry_point=Custom)
    gymnasium.register("Aim-v0", entry_point=Aim)
    gymnasium.register("Maze-v0", entry_point=Maze)
    two = {"action_space": spaces.MultiDiscrete([4, 3], start=[0, 5]), "form": "tuple"}
    gymnasium.register("MazeOfTwo-v0", entry_point=Maze, kwargs=two)
    gymnasium.register("TinyMissing-v0", entry_point=_needs_missing)
    gymnasium.register("TinyNativeMissing-v0", Tiny, vector_entry_point=_needs_missing)
    gymnasium.register("AimNative-v0", entry_point=Aim, vector_entry_point=AimVector)
    gymnasium.register("MaskedNative-v0", entry_point=Tiny, vector_entry_point=MaskedVector)
    for name, mode in [
        ("TinyNative-v0", AutoresetMode.NEXT_STEP),
        ("TinyNativeDisabled-v0", AutoresetMode.DISABLED),
    ]:
        gymnasium.register(
            name,
            entry_point=Tiny,
            vector_entry_point=lambda num_envs, mode=mode, **kw: TinyVector(
                num_envs, mode=mode, **kw
            ),
        )


_register()
