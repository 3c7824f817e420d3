"""Advantages of rollouts against a plain loop over episodes, from what the observations tell.

Those of unrolls, too: by V-trace, of steps that the same policy took.

Episodes of `tiny` are three to seven steps long, rollouts seven, and generations end in the middle
of the third one.
"""

from contextlib import ExitStack

import numpy as np
import pytest
import torch

from evorl.algorithms import vtrace
from evorl.config import parse_config
from evorl.pipeline.budget import generation_ends
from evorl.pipeline.task import Task
from evorl.pipeline.training_context import TrainingContext
from evorl.training.build import Parts, env_spec, make_learning
from tests.envs.tiny import breaks, ends, length, reward
from tests.pipeline.snapshots import alone

torch.set_num_threads(1)

AGENTS = ({"gamma": 0.9, "gae_lambda": 0.95}, {"gamma": 0.5, "gae_lambda": 0.3})
NAMES = ("obs", "action", "reward", "next_obs", "terminated", "ended", "valid")
STEPS, ENVS, GENERATION, GENERATIONS = 7, 3, 18, 4


def value(number, steps):
    """What agents are made to think of an observation."""
    return number % 10 / 5 - 0.7 + steps / 4


def value_of(obs):
    return value(obs[..., 0], obs[..., 1])


def keep_rollouts(rollout, found):
    """Note what is collected, and what was found of it."""
    kept = rollout.attach

    def attach(**fields):
        own = {name: rollout.field(name).numpy().copy() for name in NAMES}
        shape = own["reward"].shape
        found.append(own | {name: v.reshape(shape).numpy() for name, v in fields.items()})
        kept(**fields)

    rollout.attach = attach


def keep_unrolls(rollout, found):
    """The same of unrolls [agents, environments, steps, ...]."""
    kept = rollout.unrolls
    gamma, lam = (torch.tensor([[own[name]] for own in AGENTS]) for name in ("gamma", "gae_lambda"))

    def unrolls(log_prob):
        fields = kept(log_prob)
        by_time = {name: own.movedim(2, 0) for name, own in fields.items()}
        values = (value_of(by_time[name]) for name in ("obs", "next_obs"))
        given = (by_time["reward"], *values, by_time["terminated"], by_time["ended"])
        one = torch.ones(1)
        traced = vtrace(torch.zeros_like(given[0]), *given, gamma, lam, one, one)
        by_time |= {"advantage": traced.advantages, "returns": traced.targets}
        assert not by_time["valid"][rollout.length :].any()
        assert (by_time["log_prob"][: rollout.length] < 0).all()
        found.append({n: own[: rollout.length].movedim(1, 0).numpy() for n, own in by_time.items()})
        return fields

    rollout.unrolls = unrolls


def rollouts(env_id, backend, name):
    """All rollouts of a run: their fields and advantages, [agents, steps, environments, ...]."""
    config = parse_config(
        {
            "compile": False,
            "env": {"id": env_id, "backend": backend, "num_envs": ENVS, "max_failures": 1000},
            "algorithm": {"name": name, "rollout_steps": STEPS, "lr": 1e-9},
            "network": {"hidden": [4], "activation": "tanh"},
            "population": {"size": len(AGENTS), "agents": list(AGENTS)},
        }
    )
    found = []
    with ExitStack() as stack:
        parts = Parts(config, alone(), env_spec(config), stack)
        collect, learn = make_learning(config, alone(), parts)
        parts.population.value = value_of
        {"a2c": keep_rollouts, "impala": keep_unrolls}[name](learn.rollout, found)

        def cut(context):
            collect.end_generation()
            context.generation, context.ends = context.generation + 1, context.ends + GENERATION
            context.finished = context.generation == GENERATIONS

        context = TrainingContext(len(AGENTS))
        context.ends = GENERATION
        Task(context).use(collect).use(learn).use(cut, every=generation_ends).run()
        assert parts.population.alive.all()
    return found


def episodes(obs, env_id):
    """The steps of each episode of one environment, by what it showed [steps, 2]."""
    own = []
    for t, (number, steps) in enumerate(obs):
        if steps == 0 or t == 0:
            own.append([])
        over = steps >= length(number)  # here it only resets
        broken = env_id == "Fragile-v0" and breaks(number, steps + 1)
        if not over and not broken:
            own[-1].append(t)
    return own


def advantages_of(rollout, agent, env, env_id):
    """Of every step of one environment, by definition; NaN where there is none."""
    obs, action = (rollout[name][agent, :, env] for name in ("obs", "action"))
    numbers, steps = obs.astype(int).T
    gamma, lam = AGENTS[agent]["gamma"], AGENTS[agent]["gae_lambda"]
    terminated, _ = ends(numbers, steps + 1)
    later = np.where(terminated, 0, value(numbers, steps + 1))
    error = reward(steps + 1, action) + gamma * later - value(numbers, steps)
    found = np.full(len(obs), np.nan)
    for episode in episodes(obs.astype(int), env_id):
        for place, t in enumerate(episode):
            rest = error[episode[place:]]
            found[t] = (rest * (gamma * lam) ** np.arange(len(rest))).sum()
    return found


RUNS = [("Tiny-v0", "sync"), ("TinyNative-v0", "native"), ("Fragile-v0", "sync")]


@pytest.mark.filterwarnings("ignore:.*raised, and a new environment")
@pytest.mark.parametrize("name", ["a2c", "impala"])
@pytest.mark.parametrize(("env_id", "backend"), RUNS)
def test_advantages_are_those_of_a_loop_over_episodes(env_id, backend, name):
    found = rollouts(env_id, backend, name)
    lengths = [own["reward"].shape[1] for own in found]
    assert lengths == [STEPS, STEPS, GENERATION - 2 * STEPS] * GENERATIONS
    ended = crossed = 0
    for place, rollout in enumerate(found):
        if place % 3 == 0:  # a generation begins with new episodes
            assert (rollout["obs"][:, 0, :, 1] == 0).all()
        for agent in range(len(AGENTS)):
            for env in range(ENVS):
                expected = advantages_of(rollout, agent, env, env_id)
                valid = rollout["valid"][agent, :, env]
                np.testing.assert_array_equal(valid, np.isfinite(expected))
                own = rollout["advantage"][agent, :, env]
                np.testing.assert_allclose(own[valid], expected[valid], rtol=0, atol=1e-4)
                obs = rollout["obs"][agent, :, env]
                now = value(obs[:, 0], obs[:, 1])
                returns = rollout["returns"][agent, :, env]
                np.testing.assert_allclose((returns - own)[valid], now[valid], atol=1e-4)
                ended += rollout["ended"][agent, :, env].sum()
                crossed += not rollout["ended"][agent, -1, env]
    assert min(ended, crossed) > 20
    if env_id != "Tiny-v0":
        assert not all(own["valid"].all() for own in found)
