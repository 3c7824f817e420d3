"""env.normalize: what it adds to the agents of a run, and where it is refused."""

import numpy as np
import pytest

from evorl import load_agent
from evorl.algorithms.dqn import DQN
from evorl.config import parse_config
from evorl.envs.spaces import ActionSpec, ObservationSpec
from evorl.errors import ConfigError
from evorl.networks.spec import NORMALIZER, NetworkSpec, NormalizerSpec
from evorl.shipping.play import select_agent
from evorl.training.agents import make_networks
from evorl.training.trainer import train
from tests.training.test_saving import again, content, run

ACTION = ActionSpec("discrete", 2)
VECTOR = ObservationSpec("vector", (4,), np.dtype(np.float32))


class Named(DQN):
    """With a network of the statistics' name."""

    name: str = "tests.training.test_normalize:Named"

    def networks(self, observation, action):
        return {NORMALIZER: super().networks(observation, action)["q"]}


def specs(*overrides, observation=VECTOR):
    config = parse_config({"env": {"id": "CartPole-v1"}}, list(overrides))
    networks = make_networks(config, observation, ACTION)
    return {name: own.spec for name, own in networks.items()}


def test_off_by_default():
    assert specs() == {"q": NetworkSpec(4, 2, dueling=True)}


@pytest.mark.parametrize(("observations", "rewards"), [(True, True), (True, False), (False, True)])
def test_statistics_of_what_is_asked_for(observations, rewards):
    found = specs(
        f"env.normalize.observations={str(observations).lower()}",
        f"env.normalize.rewards={str(rewards).lower()}",
    )
    assert found == {
        "q": NetworkSpec(4, 2, dueling=True, normalize=observations),
        NORMALIZER: NormalizerSpec(4 if observations else 0, rewards),
    }


@pytest.mark.parametrize(
    "observation",
    [
        ObservationSpec("image", (1, 8, 8), np.dtype(np.uint8), scale=1 / 255),
        ObservationSpec("discrete", (), np.dtype(np.int64), 16),
    ],
)
def test_only_vectors(observation):
    specs("env.normalize.rewards=true", observation=observation)
    with pytest.raises(ConfigError) as caught:
        specs("env.normalize.observations=true", observation=observation)
    assert str(caught.value) == (
        "env.normalize.observations: must be false, as the environment's observations are"
        f" {observation.kind}; only vectors are normalised"
    )


def test_a_network_of_that_name():
    name = "algorithm.name=tests.training.test_normalize:Named"
    assert list(specs(name)) == [NORMALIZER]
    with pytest.raises(ConfigError, match=r"network 'normalizer' has the name of env.normalize's"):
        specs(name, "env.normalize.rewards=true")


@pytest.mark.parametrize(
    "learning", [{"learning_starts": 16}, {"name": "ppo", "rollout_steps": 20}]
)
def test_a_run_gathers_them_and_saves_them_with_its_agents(tmp_path, learning):
    both = {"observations": True, "rewards": True}
    config = parse_config(
        {
            "env": {"id": "CartPole-v1", "num_envs": 2, "normalize": both},
            "network": {"hidden": [8]},
            "population": {"size": 2},
            "evolution": {"method": "none"},
            "algorithm": {"batch_size": 8, **learning},
            "evaluation": {"every": 50, "episodes": 2, "confirm_episodes": 2, "final_episodes": 2},
            "budget": {"env_steps": 400},
            "run": {"folder": str(tmp_path)},
        }
    )
    path = train(config).directory
    agent = load_agent(path / "best").saved
    assert agent.parameters[f"{NORMALIZER}.obs_var"].std() > 0
    assert agent.parameters[f"{NORMALIZER}.return_var"] > 1  # a reward of 1 in every step
    for id in (None, 0, 1):  # of the best, and from the newest checkpoint
        found = select_agent(path, id).agent
        assert found.specs == agent.specs
        if id is not None:
            assert found.parameters[f"{NORMALIZER}.obs_samples"].item() >= 190  # two generations
            assert found.parameters[f"{NORMALIZER}.return_samples"].item() >= 190


def test_resumed_they_are_the_same_to_the_bit(tmp_path):
    options = ["env.normalize.observations=true", "env.normalize.rewards=true"]
    expected = content(run(tmp_path / "whole", *options))
    directory = run(tmp_path / "cut", *options, "budget.env_steps=200")
    found = content(again(directory, "budget.env_steps=400"))
    assert found["population.safetensors"] == expected["population.safetensors"]
