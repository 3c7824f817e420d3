"""Whole runs in environments that raise: repeatable, resumable, scored, and ended by a limit."""

import json
import re
import warnings

import gymnasium
import numpy as np
import pytest
import torch

from evorl.config import load_config, parse_config
from evorl.errors import EnvError
from evorl.reporting.console import Console
from evorl.runs.agent import read_agent
from evorl.seeding import held_out
from evorl.training.build import env_spec
from evorl.training.score import held_out_score
from evorl.training.trainer import train
from tests.envs import tiny, wrong  # noqa: F401 (wrong registers an environment)

torch.set_num_threads(1)

BASE = {
    "env": {"id": f"{tiny.__name__}:Fragile-v0", "num_envs": 2, "backend": "sync"},
    "algorithm": {"learning_starts": 16, "batch_size": 8, "n_step": 3},
    "network": {"hidden": [8]},
    "replay": {"capacity": 400, "share": "agent"},
    "evaluation": {"every": 40, "episodes": 3, "confirm_episodes": 4, "final_episodes": 12},
    "evolution": {"selection": {"min_gap": 0}},
    "budget": {"env_steps": 960},
    "compile": False,
}  # three generations of at most 320 steps


def config_of(folder, *overrides, limit=10_000):
    given = [f"run.folder={folder}", f"env.max_failures={limit}", *overrides]
    return parse_config(BASE | {"name": "run"}, given)


def run(config, console=None, resume=None):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        path = train(config, console=console, resume=resume).directory
    return path, [str(warning.message) for warning in warned]


def metrics(path):
    found = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in found]


TIMES = ("seconds", "steps_per_second", "shares")


def result(path):
    summary = json.loads((path / "summary.json").read_text())
    kept = {name: value for name, value in summary.items() if name not in TIMES}
    return kept, metrics(path), (path / "best" / "weights.safetensors").read_bytes()


def is_told(count):
    """All of the first ten, then 20, 30, …, 100, 200, …"""
    return count <= 10 or set(str(count)[1:]) == {"0"}


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return run(config_of(tmp_path_factory.mktemp("usual"), "env.kwargs={resets: 30}"))


def test_every_failure_is_warned_of_and_counted(usual):
    path, warned = usual
    summary, lines, _ = result(path)
    told = [line for line in warned if "took its place" in line]
    counts = [line["failures"] for line in lines]
    found = [int(re.search(r"\((\d+) of 10000 allowed by", line)[1]) for line in told]
    alone = summary["failures"] - counts[-1]  # those of the score are counted from 1
    assert found == [n for total in (counts[-1], alone) for n in range(1, total + 1) if is_told(n)]
    assert 0 < counts[0] < counts[1] < counts[2] < summary["failures"]  # held-out ones come last
    final = summary["failures"] - counts[-1]
    assert (
        f"held-out score: {final} failures of environments; an episode that broke off counts"
        " with what it had returned until then"
    ) in warned


def test_the_same_run_gives_the_same_bytes(usual, tmp_path):
    again, _ = run(config_of(tmp_path, "env.kwargs={resets: 30}"))
    assert result(again) == result(usual[0])


class Interrupts(Console):
    """Ends the run while it writes down its second generation."""

    def __init__(self):
        super().__init__(quiet=True)
        self.shown = 0

    def show(self, text):
        self.shown += 1
        if self.shown == 2:
            raise KeyboardInterrupt


def test_a_resumed_run_ends_with_the_same_bytes(usual, tmp_path):
    config = config_of(tmp_path, "env.kwargs={resets: 30}")
    with pytest.raises(KeyboardInterrupt):
        run(config, Interrupts())
    path, _ = run(config, resume="auto")
    assert result(path) == result(usual[0])


def test_a_number_that_is_none_now_and_then_kills_nobody(tmp_path):
    options = ("env.id=Misbehaves-v0", 'env.kwargs={kind: "reward nan"}')
    path, warned = run(config_of(tmp_path, *options))
    summary, lines, _ = result(path)
    assert summary["failures"] > 0
    assert all(line["alive"] == [True] * 4 and None not in line["fitness"] for line in lines)
    assert np.isfinite(summary["score"]["mean"]["value"])
    assert not [line for line in warned if "dead" in line]
    assert next(line for line in warned if "took its place" in line) == (
        "'Misbehaves-v0' failed, and a new environment took its place (1 of 10000 allowed by"
        " env.max_failures): it gave the reward nan in step 3 of an episode; it must be one number"
        " up to ±1e18"
    )
    with pytest.raises(EnvError) as caught:
        run(config_of(tmp_path / "again", *options, limit=2))
    assert str(caught.value) == (
        "env.max_failures: 'Misbehaves-v0' failed too often (3, 2 allowed; fix it or allow more):"
        " it gave the reward nan in step 3 of an episode; it must be one number up to ±1e18"
    )


class Listens(Console):
    """Keeps what is said."""

    def __init__(self):
        super().__init__(quiet=True)
        self.said, self.warned = [], []

    def say(self, *parts):
        self.said += map(str, parts)

    def warn(self, message, *_, **__):
        self.warned.append(str(message))


class Endless(tiny.Tiny):
    """Without any limit."""

    def step(self, action):
        obs, _, _, _, info = super().step(action)
        return obs, 1.0, False, False, info


def test_without_a_limit_evaluation_has_its_own_and_says_its_share(tmp_path):
    gymnasium.register("Endless-v0", Endless)
    sizes = ("evaluation.episodes=1", "evaluation.confirm_episodes=1", "budget.env_steps=320")
    config = config_of(tmp_path, "env.id=Endless-v0", *sizes, "evaluation.final_episodes=2")
    console = Listens()
    path, _ = run(config, console)
    summary, lines, _ = result(path)
    assert lines[0]["fitness"] == [1000.0] * 4
    assert summary["score"]["mean"]["value"] == 1000
    assert (summary["env_steps"], summary["evaluation_steps"]) == (320, 5000)
    assert (
        "episodes:     Endless-v0 has no limit of steps; evaluation cuts them after 1,000"
        " (evaluation.max_steps, final_max_steps)"
    ) in console.said
    assert (
        "evaluation took 96 % of all 7,320 environment steps: 'Endless-v0' has no limit of steps;"
        " give it one (max_episode_steps), or lower evaluation.max_steps, final_max_steps and"
        " episodes"
    ) in console.warned


def test_the_limit_ends_a_run(tmp_path):
    with pytest.raises(EnvError, match=r"too often \(6, 5 allowed; .*: .*tiny.Broken: no step"):
        run(config_of(tmp_path, limit=5))


def test_the_held_out_score_takes_what_was_returned_before(usual, tmp_path):
    config = load_config(usual[0] / "config.yaml", ["env.kwargs={}"])
    numbers = []
    for seed in held_out(config.seed, 12):
        obs, _ = tiny.Fragile().reset(seed=seed)
        numbers.append(int(obs[0]))
    broken = [bool(tiny.breaks(number, tiny.length(number))) for number in numbers]
    lengths = [tiny.length(number) - broke for number, broke in zip(numbers, broken, strict=True)]
    agent = read_agent(usual[0] / "best")
    with pytest.warns(UserWarning, match=f"{sum(broken)} failures of environments"):
        score = held_out_score(agent, env_spec(config), config, Console(quiet=True))
    assert score.failures == sum(broken) > 0
    assert score.steps == sum(map(tiny.length, numbers))
    low = sum(length * (length + 1) / 2 for length in lengths) / 12
    assert low <= score.mean.value <= low + 0.1 * max(lengths)
    limited = load_config(usual[0] / "config.yaml", ["env.kwargs={}", "env.max_failures=0"])
    with pytest.raises(EnvError, match=r"too often \(1, 0 allowed"):
        held_out_score(agent, env_spec(limited), limited, Console(quiet=True))
