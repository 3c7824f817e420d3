"""The demo as the README tells a user to run it, on a small budget."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .launching import CONFIGS, ROOT

DEMO = ROOT / "demos" / "demo_online_distributed.py"
SMALL = (
    *("budget.env_steps=1920", "evaluation.every=20", "evaluation.episodes=1"),
    *("evaluation.confirm_episodes=1", "evaluation.final_episodes=2", "evaluation.max_steps=50"),
    *("evaluation.final_max_steps=50", "algorithm.learning_starts=100"),
)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_demo(tmp_path, ranks):
    command = [sys.executable]
    if ranks > 1:
        command = [str(Path(sys.executable).parent / "accelerate"), "launch"]
        command += ["--config_file", str(CONFIGS / "cpu.yaml"), "--main_process_port", "0"]
    done = subprocess.run(
        [*command, str(DEMO), *SMALL],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    generations = [line.split()[1] for line in lines if line.startswith("generation")]
    assert generations == ["0", "1", "2"]
    assert sum(line.split()[0].isdigit() for line in lines) == 3 * 4  # a row for each agent
    assert lines[-2].startswith("held-out score over 2 episodes: ")
    assert lines[-1] == "run: runs/lunar_lander_distributed"
    found = {path.name for path in (tmp_path / "runs" / "lunar_lander_distributed").iterdir()}
    assert found >= {"config.yaml", "metrics.jsonl", "lineage.jsonl", "best", "checkpoints"}


def test_the_demo_is_short():
    assert len(DEMO.read_text().splitlines()) < 100
