"""Unrolls in the loop: without replay as rollouts are, with it each agent's own."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch

from evorl.config import parse_config
from evorl.pipeline.budget import generation_ends
from evorl.pipeline.task import Task
from evorl.pipeline.training_context import TrainingContext
from evorl.training.build import Parts, env_spec, make_learning
from tests.pipeline.snapshots import alone

torch.set_num_threads(1)

GENERATION = 29  # three rollouts of eight steps, and one of five
COMMON = {"rollout_steps": 8, "lr": 1e-3, "entropy_coef": 0.01, "gae_lambda": 0.9}
AGENTS = [{"gamma": 0.9}, {"gamma": 0.99, "lr": 3e-3}, {"hidden": [24]}]


def trained(algorithm, generations=3, **env):
    """A population after some generations, and what it learned from."""
    config = parse_config(
        {
            "compile": False,
            "env": {"id": "CartPole-v1", "num_envs": 2, "backend": "sync"} | env,
            "algorithm": COMMON | algorithm,
            "network": {"hidden": [16], "activation": "tanh"},
            "population": {"size": 3, "agents": AGENTS},
        }
    )
    with ExitStack() as stack:
        parts = Parts(config, alone(), env_spec(config), stack)
        collect, learn = make_learning(config, alone(), parts)
        context, drawn = TrainingContext(3), []
        context.ends = GENERATION
        draw = learn.loader.draw

        def noted(requests):
            drawn.append((requests, draw(requests)))
            return drawn[-1][1]

        def cut(context):
            collect.end_generation()
            parts.sampler.inherit(np.arange(3))
            context.generation, context.ends = context.generation + 1, context.ends + GENERATION
            context.finished = context.generation == generations

        learn.loader.draw = noted
        Task(context).use(collect).use(learn).use(cut, every=generation_ends).run()
        return parts.population, context, drawn


@pytest.mark.parametrize("normalize", [False, True])
def test_without_lag_and_replay_it_is_a2c(normalize):
    """In the same environments, with the same draws, and at a generation's end, too."""
    env = {"normalize": {"observations": normalize, "rewards": normalize}}
    expected, before, _ = trained({"name": "a2c"}, **env)
    found, context, _ = trained({"name": "impala", "rho_max": 2.0}, **env)
    assert context.updates == before.updates == 3 * (12 - normalize)
    assert context.episodes == before.episodes > 5
    for agent in range(3):
        own, other = found.state(agent), expected.state(agent)
        for name, value in other.online.items():
            torch.testing.assert_close(own.online[name], value, rtol=1e-4, atol=1e-5)


def test_each_agent_replays_what_it_has_seen_itself():
    replay = {"name": "impala", "updates": 2, "replay_unrolls": 6, "replay_ratio": 1.5}
    population, context, drawn = trained(replay)
    assert context.updates == 3 * 2 * 12
    assert population.alive.all()
    newest = [[], [], []]  # first observations of unrolls, in the order in which they came
    for requests, samples in drawn:
        start = 0
        for request in requests:
            updates, rows, width = request.shape
            assert width == 2 + 3
            obs = samples.obs[start : start + updates * rows * width]
            obs = obs.view(updates, rows, width, 8, 4)
            start += updates * rows * width
            for row, agent in enumerate(request.agents):
                firsts = [[tuple(own[0].tolist()) for own in one] for one in obs[:, row]]
                newest[agent] = (newest[agent] + firsts[0][:2])[-6:]  # of generations before, too
                assert firsts[0][:2] == firsts[1][:2]
                assert {own for one in firsts for own in one} <= set(newest[agent])


def test_the_same_seed_learns_the_same_bits():
    replay = {"name": "impala", "updates": 2, "replay_unrolls": 6}
    first, second = (trained(replay)[0] for _ in range(2))
    for one, other in zip(first.groups, second.groups, strict=True):
        assert torch.equal(one.theta, other.theta)
