"""What we show to newcomers runs."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from evorl.config import load_config
from evorl.training.trainer import train

torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent
SHIPPED = [path for path in ROOT.glob("configs/*/*.yaml") if path.parent.name != "accelerate"]
LEARNING = {
    "replay": ["algorithm.learning_starts=20", "algorithm.batch_size=16"],
    "rollout": ["algorithm.rollout_steps=8"],
}
TINY = [
    "env.num_envs=2",
    "population.size=2",
    "evaluation.every=50",
    "evaluation.episodes=1",
    "evaluation.final_episodes=2",
    "evaluation.max_steps=60",
    "evaluation.final_max_steps=60",
    "budget.env_steps=400",
]


def demo(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "demos" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_demo_online(capsys):
    module = demo("demo_online")
    returns = module.main(rounds=150, warm_up=20, updates=1)
    assert returns.shape == (len(module.HIDDEN), module.EPISODES)
    assert np.isfinite(returns).all()
    assert (returns >= 1).all()  # CartPole pays 1 a step
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(module.HIDDEN)
    assert f"mean return {returns[0].mean():6.1f}" in lines[0]


def test_demo_continuous(capsys):
    returns = demo("demo_continuous").main(rounds=40, warm_up=20)
    assert returns.shape == (4, 20)
    assert ((returns < 0) & np.isfinite(returns)).all()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"agent {i}" for i in range(4)]


@pytest.mark.parametrize("path", sorted(SHIPPED), ids=lambda path: path.parent.name + path.stem)
def test_shipped_config(path, tmp_path):
    own = LEARNING[load_config(path).algorithm.experience]
    config = load_config(path, [*TINY, *own, f"run.folder={tmp_path}"])
    result = train(config)
    assert result.directory == tmp_path / config.name
    assert result.score.episodes == 2
    assert np.isfinite(result.score.mean.value)
    files = {file.name for file in result.directory.iterdir()}
    assert files == {
        "config.yaml",
        "metrics.jsonl",
        "lineage.jsonl",
        "summary.json",
        "best",
        "checkpoints",
    }
