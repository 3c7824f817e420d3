"""From a configuration to parts: how busy a run's agents can become."""

import pytest

from evorl.config import parse_config
from evorl.training.agents import expected_updates

SPACE = "evolution.spaces.learn_step={kind: integer, low: 2, high: 8}"
SIZES = "evolution.spaces.batch_size={kind: power_of_two, low: 16, high: 64}"


@pytest.mark.parametrize(
    ("overrides", "updates"),
    [
        (["algorithm.learn_step=4"], 250),
        (["algorithm.learn_step=4", "population.agents=[{learn_step: 2}]"], 500),
        (["algorithm.updates=3", SPACE], 3000),
        (["algorithm.learn_step=4", SPACE], 500),
        # of 2 * 64 items: 20 epochs are the most by default, in 2 minibatches each
        (["algorithm.name=ppo"], 312),
        (["algorithm.name=ppo", "evolution.method=none"], 156),
        (["algorithm.name=ppo", SIZES], 1250),
    ],
)
def test_the_busiest_agent_that_evolution_can_make(overrides, updates):
    config = {"env": {"id": "x", "num_envs": 2}, "budget": {"env_steps": 4000}}
    config["population"] = {"size": 4}
    if "algorithm.name=ppo" in overrides:
        overrides = [*overrides, "algorithm.rollout_steps=64", "evaluation.every=64"]
    assert expected_updates(parse_config(config, overrides)) == updates
