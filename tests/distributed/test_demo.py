"""The demo as the README tells a user to run it, on a small budget."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .launching import CONFIGS, ROOT

DEMO = ROOT / "demos" / "demo_online_distributed.py"
SMALL = (
    *("budget.env_steps=14400", "evaluation.every=150"),  # some episodes end
    *("evaluation.confirm_episodes=1", "evaluation.final_episodes=2", "evaluation.max_steps=50"),
    *("evaluation.final_max_steps=50", "algorithm.learning_starts=100"),
)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_demo(tmp_path, ranks):
    """With three ranks the last one evaluates."""
    command, further = [sys.executable], []
    if ranks > 1:
        command = [str(Path(sys.executable).parent / "accelerate"), "launch"]
        command += ["--config_file", str(CONFIGS / "cpu.yaml"), "--main_process_port", "0"]
        command += ["--num_processes", str(ranks)]
    if ranks == 3:
        further = ["mesh.evaluators=1", "evaluation.source=episodes", "evaluation.episodes=1"]
    done = subprocess.run(
        [*command, str(DEMO), *SMALL, *further],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    generations = [line.split()[1] for line in lines if line.startswith("generation")]
    expected = [str(generation) for generation in range(4 if further else 3)]
    assert generations == expected
    assert sum(line.split()[0].isdigit() for line in lines) == len(expected) * 4  # a row for each
    assert lines[-2].startswith("held-out score over 2 episodes: ")
    assert lines[-1] == "run: runs/lunar_lander_distributed"
    found = {path.name for path in (tmp_path / "runs" / "lunar_lander_distributed").iterdir()}
    assert found >= {"config.yaml", "metrics.jsonl", "lineage.jsonl", "best", "checkpoints"}


def test_the_demo_is_short():
    assert len(DEMO.read_text().splitlines()) < 100
