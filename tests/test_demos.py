"""What we show to newcomers runs."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from evorl.config import load_config
from evorl.training.trainer import train

from .distributed.runs import Run

torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent
SHIPPED = [
    path
    for path in ROOT.glob("configs/*/*.yaml")
    if path.parent.name not in ("accelerate", "clusters")
]
LEARNING = {
    "replay": ["algorithm.learning_starts=20", "algorithm.batch_size=16"],
    "rollout": ["algorithm.rollout_steps=8"],
    "unrolls": ["algorithm.rollout_steps=8"],
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
    returns = module.main(iterations=150, warm_up=20, updates=1)
    assert returns.shape == (len(module.HIDDEN), module.EPISODES)
    assert np.isfinite(returns).all()
    assert (returns >= 1).all()  # CartPole pays 1 a step
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(module.HIDDEN)
    assert f"mean return {returns[0].mean():6.1f}" in lines[0]


def test_demo_continuous(capsys):
    returns = demo("demo_continuous").main(iterations=40, warm_up=20)
    assert returns.shape == (4, 20)
    assert ((returns < 0) & np.isfinite(returns)).all()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"agent {i}" for i in range(4)]


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_demo_task(capsys, mode):
    demo("demo_task").main(mode, iterations=21)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("weights of iteration 18: mean returns [")
    assert [line.split()[0] for line in lines[1:]] == [
        *("iteration", "stage", "evaluate", "collect", "train")
    ]


def test_demo_task_says_what_it_takes():
    path = ROOT / "demos" / "demo_task.py"
    assert len(path.read_text().splitlines()) < 80
    done = subprocess.run([sys.executable, path, "twice"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "python demos/demo_task.py parallel" in done.stderr


ACTORS = {"a3c": 5, "impala": 5, "apex_dqn": 20, "apex_ddpg": 3}  # episodes until updates are made


@pytest.mark.parametrize(("name", "ranks"), [*((name, 1) for name in ACTORS), ("a3c", 3)])
def test_demos_of_actors(tmp_path, name, ranks):
    """By itself each starts its processes; a launcher has started them."""
    path, most = ROOT / "demos" / f"demo_{name}.py", ACTORS[name]
    code, said = Run(tmp_path, 1, most, script=path, ranks=ranks).wait()
    assert code == 0, said
    found = re.search(
        r"^not solved after (\d+) episodes of an actor, (\d+) frames, \d+ mess", said, re.M
    )
    assert most <= int(found[1]) <= most + 20, said
    assert int(found[2]) > (100 if name.startswith("apex") else 50)


@pytest.mark.parametrize("name", ACTORS)
def test_demos_of_actors_take_little_and_only_from_evorl(name):
    text = (ROOT / "demos" / f"demo_{name}.py").read_text()
    assert len(text.splitlines()) < 100
    imports = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom | ast.Import)
    ]
    assert {own.name for node in imports for own in node.names} == {"sys", "numpy", "evorl"}


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
