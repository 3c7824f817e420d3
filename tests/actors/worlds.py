"""CartPole that raises: at times, or whenever it begins in a process that is no learner's."""

import os
from contextlib import suppress
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class BrokenInActors(CartPoleEnv):
    """Fine in the process that was the first to begin an episode in this folder."""

    def reset(self, *, seed=None, options=None):
        with suppress(FileExistsError), Path("learner").open("x") as first:
            first.write(str(os.getpid()))
        if Path("learner").read_text() != str(os.getpid()):
            raise RuntimeError("no pole")
        return super().reset(seed=seed, options=options)


class Fragile(CartPoleEnv):
    """Raises in the middle of some episodes, by their seed."""

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed, options=options)
        self.left = int(self.np_random.integers(5, 60))
        return found

    def step(self, action):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("the pole broke")
        return super().step(action)


gymnasium.register("BrokenInActors-v0", BrokenInActors, max_episode_steps=500)
gymnasium.register("Fragile-v0", Fragile, max_episode_steps=500)
