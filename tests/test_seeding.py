"""Numbers that must never change by accident, and seeds that must never meet."""

import itertools

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from evorl.envs import EnvSpec, make_vector_env
from evorl.seeding import generator, held_out, integers

HELD_OUT_FROM = 2**30


def test_golden_values():
    """Whoever changes these changes the result of every run there ever was."""
    assert generator(1, "explore", 0, 0).random(3).tolist() == [
        0.9769269704098763,
        0.6502740787052401,
        0.9711052590122367,
    ]
    assert generator(2**32 - 1, "bootstrap").integers(1000, size=3).tolist() == [424, 885, 375]
    assert integers(1, "environment", 0, 2, count=3) == [220689503, 684592900, 236282356]
    assert integers(0, "x", count=2) == [377354701, 434695378]
    assert held_out(1, 3) == [1446301728, 1283970831, 1874061649]


def test_every_key_matters_and_nothing_else_does():
    keys = list(itertools.product((1, 2), ("explore", "sample"), (0, 1), (0, 1)))
    draws = [tuple(generator(*key).random(4)) for key in keys]
    assert len(set(draws)) == len(keys)
    np.random.seed(0)
    generator(9, "other").random(100)
    assert [tuple(generator(*key).random(4)) for key in keys] == draws


def test_a_longer_list_of_integers_starts_like_a_shorter_one():
    assert integers(3, "environment", 1, 1, count=9)[:4] == integers(
        3, "environment", 1, 1, count=4
    )


def test_held_out_seeds_meet_no_other_seed():
    for seed in (0, 1, 2**32 - 1):
        reserved = held_out(seed, 10_000)
        assert min(reserved) >= HELD_OUT_FROM
        assert max(reserved) < 2**31  # some environments refuse more
        for purpose, *keys in [("environment", 3, 1), ("evaluation", 7), ("held-out",)]:
            used = integers(seed, purpose, *keys, count=10_000)
            assert 0 <= min(used) <= max(used) < HELD_OUT_FROM


class SeedTeller(VectorEnv):
    """A native vector environment that notes what it was seeded with."""

    given: list[int] = []  # noqa: RUF012

    def __init__(self, num_envs, **kwargs):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = spaces.Box(0, 1, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        self.given.append(seed)
        return np.zeros((self.num_envs, 2), np.float32), {}


def test_native_environments_stay_below_the_held_out_seeds():
    gymnasium.register("SeedTeller-v0", SeedTeller, vector_entry_point=SeedTeller)
    SeedTeller.given.clear()
    env = make_vector_env(EnvSpec("SeedTeller-v0", backend="native"), 4, 2)
    try:
        for generation in range(5):
            env.reset(integers(1, "environment", generation, count=8))
    finally:
        env.close()
        del gymnasium.registry["SeedTeller-v0"]
    assert len(SeedTeller.given) == 21  # one to see what the environment is like
    assert max(SeedTeller.given) < HELD_OUT_FROM
