"""evorl init."""

import json

import gymnasium
import jsonschema
import pytest
import torch
import yaml

from evorl.cli.init import name_of
from evorl.config import load_config
from evorl.runs.directory import RunDirectory

from .answers import TINY, assert_one_error, everything_in

torch.set_num_threads(1)

FILES = {
    "CartPole-v1": "cart_pole.yaml",
    "Acrobot-v1": "acrobot.yaml",
    "LunarLander-v3": "lunar_lander.yaml",
    "FrozenLake-v1": "frozen_lake.yaml",
    "Pendulum-v1": "pendulum.yaml",
}
ACTIONS = """
import gymnasium
import numpy as np
from gymnasium import spaces

class Choices(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, masked=False):
        self.masked = masked
        self.action_space = spaces.Discrete(3) if masked else spaces.MultiDiscrete([3, 2])

    def told(self):
        return {"action_mask": np.array([1, 0, 1])} if self.masked else {}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), self.told()

    def step(self, action):
        assert self.action_space.contains(action) and not (self.masked and action == 1)
        self.time += 1
        return np.zeros(2, np.float32), 1.0, self.time == 5, False, self.told()

gymnasium.register("Several-v0", Choices)
gymnasium.register("Masked-v0", Choices, kwargs={"masked": True})
"""
IMAGES = """
import gymnasium
import numpy as np

class Pixels(gymnasium.Env):
    def __init__(self, side=10):
        self.observation_space = gymnasium.spaces.Box(0, 255, (side, side, 4), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observation_space.low, {}

    def step(self, action):
        self.time += 1
        return self.observation_space.low, 1.0, self.time == 5, False, {}

gymnasium.register("Small/Pixels-v0", Pixels)
gymnasium.register("Medium/Pixels-v0", Pixels, kwargs={"side": 40})
gymnasium.register("Large/Pixels-v0", Pixels, kwargs={"side": 84})
gymnasium.register("Dot/Pixels-v0", Pixels, kwargs={"side": 4})
gymnasium.register("Tiny/Pixels-v0", Pixels, kwargs={"side": 5})
"""


@pytest.mark.parametrize("env_id", FILES)
def test_the_file_loads_and_trains(evorl, tmp_path, env_id):
    code, out, err = evorl("init", env_id)
    assert (code, err) == (0, "")
    said = out.splitlines()
    assert said[0].startswith(f"{FILES[env_id]}: {env_id}, ")
    assert said[1:] == [f"train: evorl train {FILES[env_id]}"]
    config = load_config(FILES[env_id])
    assert config.env.id == env_id
    assert config.budget.env_steps >= 10 * 4 * 8 * config.evaluation.every  # ten generations
    limit = gymnasium.spec(env_id).max_episode_steps
    assert config.evaluation.every >= 2 * limit  # nothing is cut short
    code, out, err = evorl("train", FILES[env_id], *TINY, "--quiet")
    assert code == 0, err
    assert "has no effect" not in err
    assert RunDirectory.open(tmp_path / "runs" / config.name).finished


@pytest.mark.parametrize(
    ("name", "algorithm", "what"),
    [
        ("Several", "ppo", "vectors of 2 numbers, 3 × 2 actions"),
        ("Masked", "dqn", "vectors of 2 numbers and action masks, 3 actions"),
    ],
)
def test_the_algorithm_fits_the_actions(evorl, tmp_path, name, algorithm, what):
    (tmp_path / "choices.py").write_text(ACTIONS)
    code, out, err = evorl("init", f"choices:{name}-v0", "-o", "run.yaml")
    assert (code, err) == (0, "")
    assert what in out
    assert load_config("run.yaml").algorithm.name == algorithm
    small = [one for one in TINY if algorithm == "dqn" or "learning_starts" not in one]
    small += ["algorithm.rollout_steps=25"] * (algorithm == "ppo")
    code, out, err = evorl("train", "run.yaml", *small, "env.max_failures=0", "--quiet")
    assert code == 0, err
    assert "has no effect" not in err


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("Small", [3, 3]),
        ("Medium", [4, 3]),
        ("Large", [8, 4, 3]),
        ("Tiny", [3, 3]),
        ("Dot", [1, 1]),
    ],
)
def test_images_get_convolutions_that_fit(evorl, tmp_path, name, kernels):
    (tmp_path / "pixels.py").write_text(IMAGES)
    code, out, err = evorl("init", f"pixels:{name}/Pixels-v0", "-o", "run.yaml")
    assert (code, err) == (0, "")
    assert "images of 4 × " in out
    config = load_config("run.yaml")
    assert config.network.kernels == kernels
    small = ["population.size=1", "replay.capacity=100", "network.hidden=[8]", "env.backend=sync"]
    small += ["algorithm.learning_starts=96", "budget.env_steps=100"]  # updates are slow
    code, _, err = evorl("train", "run.yaml", *TINY, *small, "-q")
    assert code == 0, err


def test_the_file_says_what_it_is_for(evorl, tmp_path):
    evorl("init", "CartPole-v1")
    text = (tmp_path / "cart_pole.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=evorl.schema.json\n")
    assert "vectors of 4 numbers, 2 actions, up to 500 steps an episode." in text
    assert "# stop_at: 475 " in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_schema_that_it_names_is_beside_it(evorl, tmp_path):
    (tmp_path / "mine").mkdir()
    evorl("init", "CartPole-v1", "-o", "mine/run.yaml")
    schema = json.loads((tmp_path / "mine" / "evorl.schema.json").read_text())
    text = (tmp_path / "mine" / "run.yaml").read_text()
    jsonschema.validate(yaml.safe_load(text), schema)
    assert schema == json.loads(evorl("schema")[1])
    assert not (tmp_path / "evorl.schema.json").exists()


def test_another_schema_stays_and_is_told_of(evorl, tmp_path):
    (tmp_path / "evorl.schema.json").write_text("{}")
    code, out, err = evorl("init", "CartPole-v1")
    assert (code, err) == (0, "")
    assert (tmp_path / "evorl.schema.json").read_text() == "{}"
    assert "evorl schema > evorl.schema.json writes it anew" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["CartPoel-v1"], "did you mean CartPole-v1"),
        (["CartPole-v7"], "did you mean CartPole-v1"),
        (["Taxi-v4"], "with discrete observations; masks need vectors"),
        (["nowhere:Maze-v0"], "there is no module 'nowhere'; it must be in"),
        ([""], "no environment ''"),
        (["CartPole-v1\n"], "no environment"),
        (["CartPole-v1", "-o", "mine.yaml"], "mine.yaml: exists already; remove it, or"),
        (["CartPole-v1", "-o", "folder"], "folder: exists already"),
        (["CartPole-v1", "-o", "nothing/a.yaml"], "cannot be written: No such file"),
        (["CartPole-v1", "-o", "mine.yaml/a.yaml"], "cannot be written: Not a directory"),
    ],
)
def test_what_is_refused(evorl, tmp_path, arguments, says):
    (tmp_path / "mine.yaml").write_text("mine")
    (tmp_path / "folder").mkdir()
    before = everything_in(tmp_path)
    code, out, err = evorl("init", *arguments)
    assert_one_error(code, out, err)
    assert says in err
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("CartPole-v1", "cart_pole"),
        ("ALE/Pong-v5", "pong"),
        ("my.envs:Maze2D-v0", "maze2d"),
        ("my.envs:NaNReward-v0", "nan_reward"),
        ("my.envs:GridXY-v0", "grid_xy"),
        ("MinAtar/SpaceInvaders-v1", "space_invaders"),
        ("FrozenLake8x8-v1", "frozen_lake8x8"),
        ("-v0", "run"),
    ],
)
def test_names(env_id, name):
    assert name_of(env_id) == name
