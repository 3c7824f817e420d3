"""evorl train --dry-run: what a run would be and take, and nothing of it stays."""

import json

import pytest
import torch

from evorl.cli.dry_run import describe_duration
from evorl.training import dry_run

from .answers import CARTPOLE, ROOT, TINY, assert_one_error, everything_in

torch.set_num_threads(1)

SHORT = [*TINY, "env.kwargs={max_episode_steps: 25}", "compile=false"]
PARAMETERS = 4 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2  # of CartPole's Q network


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(dry_run, "SECONDS", 0.01)


def test_it_says_what_the_run_would_be(evorl, tmp_path):
    options = [*SHORT, "population.agents=[{hidden: [8]}]", "replay.capacity=1000"]
    code, out, err = evorl("train", CARTPOLE, *options, "--dry-run", "--json")
    assert (code, err) == (0, "")
    plan = json.loads(out)
    assert (plan["env"], plan["algorithm"], plan["num_envs"]) == ("CartPole-v1", "dqn", 2)
    assert sum(group["agents"] for group in plan["groups"]) == plan["agents"] == 2
    assert {name for group in plan["groups"] for name in group["networks"]} == {
        "8 relu",
        "64-64 relu",
    }
    assert max(group["parameters"] for group in plan["groups"]) == PARAMETERS
    assert plan["generations"] == 2  # 400 steps, 2 agents, 2 environments, 50 steps each
    assert plan["training"] == pytest.approx(400 / plan["steps_per_second"])
    # two of 1,000 items: observations twice, an action, a reward, and whether it went on
    assert plan["replays"] == 2 * 1000 * (2 * 16 + 3 * 8)
    assert plan["memory"] > plan["replays"]
    assert plan["rounds"] >= dry_run.FEWEST
    assert everything_in(tmp_path) == {}


def test_it_is_a_table_to_read(evorl, tmp_path):
    options = ["population.size=2", "env.num_envs=2", "algorithm.rollout_steps=32", "compile=false"]
    code, out, err = evorl("train", ROOT / "configs/ppo/cartpole.yaml", *options, "--dry-run")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    starts = [
        "environment:  CartPole-v1, 2 of it for each agent",
        "agents:       2 in 1 group, ppo",
    ]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=False)] == [
        True
    ] * 2
    assert "of which 0 MiB are replays" in out
    assert [line.split(":")[0] for line in lines[-4:]] == [
        "memory",
        "speed",
        "training",
        "evaluation",
    ]
    assert everything_in(tmp_path) == {}


def test_what_is_wrong_is_one_line(evorl, tmp_path):
    options = ["env.id=LunarLander-v3", "env.backend=native"]
    assert_one_error(*evorl("train", CARTPOLE, *options, "--dry-run"))
    assert everything_in(tmp_path) == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1 s"),
        (59.4, "59 s"),
        (61, "1 min 1 s"),
        (600, "10 min"),
        (7500, "2 h 5 min"),
        (40_000, "11 h"),
        (100_000, "1 d 3 h"),
    ],
)
def test_durations(seconds, text):
    assert describe_duration(seconds) == text
