"""CartPole of which one takes its time to begin an episode, on one rank: EVORL_TEST_SLOW=2:0.1."""

import os
import time

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class SlowCartPole(CartPoleEnv):
    """RANK:SECONDS for every seeded episode of the first environment."""

    chosen = None

    def reset(self, *, seed=None, options=None):
        if seed:  # 0 only tries it out
            SlowCartPole.chosen = SlowCartPole.chosen or self
            rank, _, seconds = os.environ.get("EVORL_TEST_SLOW", "").partition(":")
            if self is SlowCartPole.chosen and rank == os.environ.get("RANK"):
                time.sleep(float(seconds))
        return super().reset(seed=seed, options=options)


gymnasium.register("SlowCartPole-v1", SlowCartPole, max_episode_steps=500)
