"""Continuous actions in the loop: what must not spread from one agent to the others."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch

from evorl.config import parse_config
from evorl.envs import make_episodes
from evorl.pipeline import TrainingContext, play
from evorl.training.build import Parts, env_spec, make_learning
from tests.pipeline.snapshots import alone


def loop(stack, agents, **sections):
    """Agents on Pendulum, with stages that collect and learn."""
    config = parse_config(
        {
            "compile": False,
            "env": {"id": "Pendulum-v1", "backend": "sync"} | sections.get("env", {}),
            "algorithm": {"name": "sac", "batch_size": 8} | sections.get("algorithm", {}),
            "network": {"hidden": [8]} | sections.get("network", {}),
            "population": {"size": agents},
        }
    )
    parts = Parts(config, alone(), env_spec(config), stack)
    context = TrainingContext(agents)
    context.ends = 10**6
    return parts, *make_learning(config, alone(), parts), context


def iterate(count, collect, learn, context):
    for _ in range(count):
        collect(context)
        learn(context)
        context.iteration += 1


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_an_agent_whose_actions_are_not_finite_dies_alone(name):
    with ExitStack() as stack:
        algorithm = {"name": name, "learning_starts": 2}
        parts, collect, learn, context = loop(stack, 4, algorithm=algorithm, env={"num_envs": 1})
        (group,) = parts.population.groups
        group.theta[1, group.layout.slices["actor"]] = torch.nan
        with pytest.warns(UserWarning, match="agent 1 is dead: its actions are no longer finite"):
            iterate(20, collect, learn, context)
        assert parts.population.alive.tolist() == [True, False, True, True]
        sizes = parts.sampler.buffer.sizes
        stored = parts.sampler.buffer.gather(torch.arange(int(sizes[0])))
        assert all(field.isfinite().all() for field in stored.values())
        # the rounds of random actions are the agent's, too
        assert sizes[0] < 4 * 20


def test_nobody_learns_from_raw_observations_where_they_are_to_be_normalised():
    env = {"num_envs": 32, "normalize": {"observations": True}}
    with ExitStack() as stack:
        parts, collect, learn, context = loop(stack, 2, env=env, algorithm={"learning_starts": 64})
        population = parts.population
        while not context.updates:
            collect(context)
            assert not population.unobserved
            learn(context)
            context.iteration += 1
        samples = [group.normalizer["obs_samples"] for group in population.groups]
        # the first step, and the next two; the others wait
        assert {int(each) for each in torch.cat(samples).flatten()} == {32 * 3}
        assert np.isfinite(context.loss).all()


def test_an_episode_depends_on_its_agent_and_seed_alone():
    """Not on the slots, on those who play beside it, or on the order: to the last bit."""
    seeds, returns = list(range(40, 59)), {}
    with ExitStack() as stack:
        parts, *_ = loop(stack, 3, network={"hidden": [48, 20]})
        for slots in (1, 2, 7, 16, 57):
            episodes = make_episodes(parts.spec, slots)
            stack.callback(episodes.close)
            returns[slots] = play(parts.population, episodes, seeds, 40).returns
        some = play(parts.population, episodes, seeds[5:8][::-1], 40).returns
    assert np.unique(returns[1]).size == returns[1].size
    for found in returns.values():
        np.testing.assert_array_equal(found, returns[1])
    np.testing.assert_array_equal(some[:, ::-1], returns[1][:, 5:8])
