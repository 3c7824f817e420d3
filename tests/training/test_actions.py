"""Runs of every algorithm on its kinds of actions: none leaves its box or takes a masked one.

The environments raise if one does, and one failure ends a run.
"""

import pytest
import torch

from evorl.config import parse_config
from evorl.training.trainer import train
from tests.envs import tiny

torch.set_num_threads(1)

SMALL = {
    "dqn": {"learning_starts": 20, "batch_size": 16, "epsilon_steps": 100},
    "sac": {"learning_starts": 20, "batch_size": 16},
    "td3": {"learning_starts": 20, "batch_size": 16, "action_noise": 0.5},
    "ddpg": {"learning_starts": 20, "batch_size": 16, "action_noise": 0.5},
    "ppo": {"rollout_steps": 16, "batch_size": 16, "epochs": 2},
    "a2c": {"rollout_steps": 8},
    "impala": {"rollout_steps": 8, "replay_unrolls": 8},
}
RUNS = [
    *((name, "Maze-v0") for name in ("dqn", "ppo", "a2c", "impala")),
    *((name, "MazeOfTwo-v0") for name in ("ppo", "a2c", "impala")),
    *((name, "Aim-v0") for name in ("sac", "td3", "ddpg", "ppo", "a2c", "impala")),
]


@pytest.mark.parametrize(("algorithm", "env_id"), RUNS)
def test_only_what_the_environment_takes(algorithm, env_id, tmp_path):
    config = {
        "compile": False,
        "env": {"id": f"{tiny.__name__}:{env_id}", "backend": "sync", "max_failures": 0},
        "algorithm": {"name": algorithm, **SMALL[algorithm]},
        "network": {"hidden": [16]},
        "population": {"size": 2},
        "evaluation": {"every": 64, "episodes": 3, "confirm_episodes": 2, "final_episodes": 4},
        "evolution": {"method": "evolution"},
        "budget": {"env_steps": 1000},
        "run": {"folder": str(tmp_path)},
    }
    result = train(parse_config(config))
    assert -3 * 8 <= result.score.mean.value <= 11 * 8
