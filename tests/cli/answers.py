"""What commands answer, and what they leave behind."""

import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CARTPOLE = ROOT / "configs" / "dqn" / "cartpole.yaml"
TINY = [
    "env.num_envs=2",
    "population.size=2",
    "algorithm.learning_starts=16",
    "algorithm.batch_size=16",
    "evaluation.every=50",
    "evaluation.episodes=2",
    "evaluation.confirm_episodes=2",
    "evaluation.final_episodes=2",
    "evaluation.max_steps=30",
    "evaluation.final_max_steps=30",
    "budget.env_steps=400",
]


def assert_one_error(code, out, err):
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1


def everything_in(folder):
    """All files of a folder with their bytes, hidden ones too."""
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.02)
