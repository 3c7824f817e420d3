"""Whole runs, tiny ones: repeatable to the byte, counted by closed forms, and never in the way."""

import json
import os
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from evorl.algorithms.dqn import DQN
from evorl.config import load_config, parse_config
from evorl.errors import ConfigError, EvorlError, RunError
from evorl.reporting.console import Console
from evorl.runs.agent import Agent, read_agent
from evorl.seeding import generator, held_out
from evorl.training.score import estimate
from evorl.training.trainer import train

torch.set_num_threads(1)

BASE = {
    "env": {"id": "CartPole-v1", "num_envs": 2},
    "algorithm": {"learning_starts": 16, "batch_size": 8, "epsilon_steps": 100},
    "network": {"hidden": [8]},
    "replay": {"capacity": 300},
    "population": {"size": 2},
    "evaluation": {
        "every": 50,
        "episodes": 2,
        "confirm_episodes": 3,
        "final_episodes": 4,
        "max_steps": 40,
        "final_max_steps": 40,
    },
    "evolution": {"method": "none"},  # test_evolution_runs.py has the others
    "budget": {"env_steps": 400},
}
TIMES = ("seconds", "steps_per_second", "shares")


class Pixels(gymnasium.Env):
    """A bright row of a small image tells which action pays."""

    observation_space = spaces.Box(0, 255, (6, 5, 2), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def step(self, action):
        self.time += 1
        reward = float(action == self.row)
        return self._observe(), reward, self.time >= 6, False, {}

    def _observe(self):
        self.row = int(self.np_random.integers(3))
        image = np.zeros((6, 5, 2), np.uint8)
        image[2 * self.row] = 255
        return image


class NotANumber(gymnasium.Env):
    """A simulator that breaks quietly."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float("nan"), True, False, {}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """A run takes all cores for images, and the machine that tests may be busy."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def environments():
    gymnasium.register("Pixels-v0", entry_point=Pixels)
    gymnasium.register("NotANumber-v0", entry_point=NotANumber)
    yield
    for name in ("Pixels-v0", "NotANumber-v0"):
        del gymnasium.registry[name]


def tiny(folder, *overrides):
    return parse_config(BASE, [f"run.folder={folder}", *overrides])


def run(folder, *overrides):
    return train(tiny(folder, *overrides)).directory


def metrics(path, timed=True):
    lines = (path / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    if not timed:
        for line in found:
            for name in TIMES:
                del line[name]
    return found


def summary(path, timed=True):
    found = json.loads((path / "summary.json").read_text(), parse_constant=pytest.fail)
    if not timed:
        for name in TIMES:
            found.pop(name, None)
    return found


def weights(path):
    return (path / "best" / "weights.safetensors").read_bytes()


def assert_same_run(left, right):
    assert weights(left) == weights(right)
    assert metrics(left, timed=False) == metrics(right, timed=False)
    assert summary(left, timed=False) == summary(right, timed=False)
    facts = [(path / "best" / "agent.json").read_bytes() for path in (left, right)]
    assert facts[0] == facts[1]


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """One ordinary run, looked at by several tests."""
    return run(tmp_path_factory.mktemp("usual"))


def test_what_a_run_leaves_behind(usual):
    assert {path.name for path in usual.iterdir()} == {
        "config.yaml",
        "metrics.jsonl",
        "lineage.jsonl",
        "summary.json",
        "best",
        "checkpoints",
    }
    assert {path.name for path in (usual / "best").iterdir()} == {
        "weights.safetensors",
        "agent.json",
    }


def test_the_configuration_comes_back_with_its_backend_resolved(usual):
    config = tiny(usual.parent)
    back = load_config(usual / "config.yaml")
    assert config.env.backend == "auto"
    assert back.env.backend == "sync"  # two environments are too few for the native one
    env = config.env.model_copy(update={"backend": "sync"})
    assert config.compile == "auto"
    assert back == config.model_copy(update={"env": env, "compile": False})


def test_lines_of_metrics(usual):
    found = metrics(usual)
    assert [line["generation"] for line in found] == [0, 1]
    assert [line["env_steps"] for line in found] == [200, 400]
    for line in found:
        for name in ("fitness", "loss", "exploration", "alive"):
            assert len(line[name]) == 2, name
        assert {name: len(own) for name, own in line["hidden"].items()} == {"q": 2}
        assert set(line["hyperparameters"]) == set(DQN.hyperparameter_fields())
        assert all(len(values) == 2 for values in line["hyperparameters"].values())
        assert line["updates"] > 0
        assert line["seconds"] > 0
        assert line["steps_per_second"] > 0
        assert sum(line["shares"].values()) == pytest.approx(1, abs=1e-3)
    # each agent's last round acted after 98 of its own 100 steps, of 100 over which it falls
    assert found[0]["exploration"] == pytest.approx([1 - 0.95 * 0.98] * 2)
    assert found[1]["exploration"] == pytest.approx([0.05] * 2)


def test_summary_is_the_best_agents_held_out_score(usual):
    found = summary(usual)
    agent = read_agent(usual / "best")
    line = metrics(usual)[agent.facts["generation"]]
    assert found["best"]["fitness"] == max(line["fitness"]) == agent.facts["fitness"]
    assert found["best"]["confirmed"] == metrics(usual)[-1]["best"]
    assert found["best"]["place"] == agent.genome.id  # nobody was replaced
    assert found["best"]["hyperparameters"] == agent.genome.hyperparameters
    architectures = agent.genome.to_json()["architectures"]
    assert found["best"]["architectures"] == json.loads(json.dumps(architectures))

    player, returns = Agent(agent), []
    for seed in held_out(1, 4):
        env = gymnasium.make("CartPole-v1")
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over and total < 40:  # max_steps; CartPole pays 1 a step
            obs, reward, terminated, truncated, _ = env.step(player.act(obs))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    expected = estimate(np.array(returns), generator(1, "bootstrap"))
    assert found["score"] == {
        "mean": expected.mean._asdict(),
        "iqm": expected.iqm._asdict(),
        "episodes": 4,
    }
    assert found["final_steps"] == sum(returns)
    assert found["env_steps"] == 400
    assert found["updates"] == metrics(usual)[-1]["updates"]
    assert found["evaluation_steps"] == metrics(usual)[-1]["evaluation_steps"]
    assert (found["name"], found["env"], found["seed"]) == ("run", "CartPole-v1", 1)


def test_a_rerun_from_the_written_configuration_is_the_same_run(usual, tmp_path):
    config = load_config(usual / "config.yaml", [f"run.folder={tmp_path}"])
    assert_same_run(usual, train(config).directory)


def test_nor_does_the_process_matter(usual, tmp_path):
    processes = []
    for number in range(2):
        command = [sys.executable, "-m", "evorl", "train", str(usual / "config.yaml")]
        command += [f"run.folder={tmp_path / str(number)}", "--quiet"]
        environment = os.environ | {"PYTHONHASHSEED": str(number)}
        processes.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    for process in processes:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
    assert_same_run(usual, tmp_path / "0" / "run")
    assert_same_run(usual, tmp_path / "1" / "run")


def test_another_seed_is_another_run(usual, tmp_path):
    other = run(tmp_path, "seed=2")
    assert weights(other) != weights(usual)
    assert metrics(other)[0]["loss"] != metrics(usual)[0]["loss"]


def test_the_global_generators_do_not_matter(usual, tmp_path):
    np.random.seed(123)
    torch.manual_seed(123)
    assert_same_run(usual, run(tmp_path))


def test_another_agent_changes_nobody_elses_run(tmp_path):
    two, three = (
        metrics(run(tmp_path / str(size), f"population.size={size}", "replay.share=agent", budget))
        for size, budget in ((2, "budget.env_steps=400"), (3, "budget.env_steps=600"))
    )
    for ours, theirs in zip(two, three, strict=True):
        for name in ("fitness", "loss", "exploration"):
            assert ours[name] == theirs[name][:2], name


@pytest.mark.parametrize("starts", [0, 30, 10**6])
def test_updates_follow_each_agents_learn_step(tmp_path, starts):
    steps = [1, 3, 16]
    path = run(
        tmp_path,
        "population.size=3",
        "budget.env_steps=600",
        f"algorithm.learning_starts={starts}",
        *(f"population.agents.{i}.learn_step={step}" for i, step in enumerate(steps)),
    )
    found = [line["updates"] for line in metrics(path)]
    own = [max(count - starts, 0) for count in (100, 200)]
    assert found == [sum(count // step for step in steps) for count in own]
    assert summary(path)["updates"] == found[-1]


@pytest.mark.parametrize(
    ("budget", "lines"), [(1, [4]), (200, [200]), (201, [200, 204]), (410, [200, 400, 412])]
)
def test_the_budget_is_reached_and_the_last_generation_scored(tmp_path, budget, lines):
    path = run(tmp_path, f"budget.env_steps={budget}")
    assert [line["env_steps"] for line in metrics(path)] == lines
    assert summary(path)["env_steps"] == lines[-1]


def test_native_environments_come_as_near_to_the_budget_as_resets_allow(tmp_path):
    """Steps in which an environment only resets don't count; the last generation may have some."""
    path = run(tmp_path, "env.backend=native", "env.num_envs=8", "budget.env_steps=1000")
    steps = metrics(path)[-1]["env_steps"]
    assert 960 <= steps < 1016
    assert_same_run(
        path,
        run(tmp_path / "again", *("env.backend=native", "env.num_envs=8"), "budget.env_steps=1000"),
    )


def test_an_existing_run_is_never_overwritten(usual):
    before = {path: path.read_bytes() for path in usual.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=r"run exists already: .* set run\.if_exists=number"):
        run(usual.parent)
    numbered = run(usual.parent, "run.if_exists=number")
    assert numbered == usual.parent / "run-2"
    assert_same_run(usual, numbered)
    assert before == {path: path.read_bytes() for path in usual.rglob("*") if path.is_file()}


MIXED = [
    "population.size=4",
    "population.agents=[{hidden: [16, 16], activation: tanh}, {lr: 0.01, batch_size: 16},"
    " {learn_step: 4, layer_norm: true}, {dueling: true, gamma: 0.9, tau: 0.5}]",
]


@pytest.mark.parametrize(
    "options",
    [
        MIXED,
        ["replay.kind=prioritized"],
        [*MIXED, "replay.kind=prioritized", "replay.share=agent", "algorithm.n_step=3"],
        ["replay.share=agent"],
        ["algorithm.n_step=3"],
        ["algorithm.target_update=periodic", "algorithm.target_period=7"],
        ["algorithm.double=false", "algorithm.loss_kind=mse", "algorithm.max_grad_norm=0"],
        ["env.id=FrozenLake-v1", "env.kwargs={is_slippery: false}"],
        ["env.id=Pixels-v0", "network.channels=[4]", "network.kernels=[3]", "network.strides=[1]"],
        ["env.wrappers=[{name: TimeLimit, kwargs: {max_episode_steps: 20}}]"],
        ["population.size=1"],
    ],
    ids=lambda options: " ".join(options)[:60],
)
def test_kinds_of_runs_end_and_repeat(tmp_path, options):
    path = run(tmp_path / "a", *options)
    last = metrics(path)[-1]
    assert last["env_steps"] >= 400
    assert all(last["alive"])
    assert None not in last["fitness"] + last["loss"]
    assert np.isfinite(summary(path)["score"]["mean"]["value"])
    assert_same_run(path, run(tmp_path / "b", *options))


def test_agents_have_their_own_values(tmp_path):
    line = metrics(run(tmp_path, *MIXED))[0]
    assert line["hidden"] == {"q": [[16, 16], [8], [8], [8]]}
    own = line["hyperparameters"]
    assert own["lr"] == [1e-3, 1e-2, 1e-3, 1e-3]
    assert own["batch_size"] == [8, 16, 8, 8]
    assert own["learn_step"] == [1, 1, 4, 1]
    assert own["gamma"] == [0.99, 0.99, 0.99, 0.9]
    assert line["updates"] == 84 * 3 + 84 // 4  # 100 own steps, of which 16 before the start


def test_an_easy_environment_is_learned(tmp_path):
    """Pixels pays 6 to who looks, and 2 to who doesn't."""
    path = run(
        tmp_path,
        "env.id=Pixels-v0",
        "network={hidden: [16], channels: [4], kernels: [3], strides: [1]}",
        "algorithm={lr: 0.01, gamma: 0.0, learning_starts: 50, batch_size: 32, learn_step: 2,"
        " epsilon_steps: 300}",
        "replay.capacity=2000",
        "budget.env_steps=1200",
        "evaluation.every=300",
    )
    assert summary(path)["score"]["mean"]["value"] == 6


@pytest.mark.parametrize(
    "options",
    [
        ["env.id=Nothing-v0"],
        ["env.id=Pendulum-v1"],  # its actions are a Box
        ["env.id=nowhere:Env-v0"],
        ["env.kwargs={colour: red}"],
        ["env.wrappers=[{name: NoSuchWrapper}]"],
        ["env.id=FrozenLake-v1", "env.backend=native"],
        ["env.id=Pixels-v0", "network.kernels=[9, 9]"],
    ],
    ids=lambda options: " ".join(options),
)
def test_what_cannot_be_run_writes_nothing(tmp_path, options):
    with pytest.raises(ConfigError) as caught:
        run(tmp_path / "runs", *options)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_replay_larger_than_the_memory_is_the_users_to_mend(tmp_path):
    with pytest.raises(EvorlError):
        run(tmp_path / "runs", "replay.capacity=1000000000000")


def test_short_generations_are_warned_of(tmp_path, capsys):
    run(tmp_path / "a")
    said = capsys.readouterr()
    assert (said.out + said.err).splitlines() == [
        "warning: evaluation.every=50 is less than an episode of up to 500 steps, and running"
        " episodes are cut there; 1000 or more is better"
    ]
    run(tmp_path / "b", "env.kwargs={max_episode_steps: 25}")
    said = capsys.readouterr()
    assert said.out + said.err == ""


def test_what_is_said(tmp_path, capsys):
    train(tiny(tmp_path, "env.kwargs={max_episode_steps: 25}"), console=Console())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("environments: sync (a step takes ")
    assert lines[1] == (
        "agents:       2 in 1 group, eager updates, 2 environments each of CartPole-v1"
    )
    assert lines[2] == f"run:          {tmp_path / 'run'}"
    assert [line.split()[:4] for line in lines[3:]] == [
        ["generation", "0", "200", "steps"],
        ["rank", "agent", "parent", "mutation"],
        ["1", "0", "—", "initial"],
        ["2", "1", "—", "initial"],
        ["generation", "1", "400", "steps"],
        ["rank", "agent", "parent", "mutation"],
        ["1", "0", "—", "initial"],
        ["2", "1", "—", "initial"],
    ]


DEEP = "{lr: 1.0, max_grad_norm: 0, tau: 1.0, hidden: [64, 64, 64, 64, 64, 64, 64, 64]}"


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_an_agent_that_diverges_dies_alone(tmp_path, kind):
    options = ["algorithm.loss_kind=mse", "replay.share=agent", f"replay.kind={kind}"]
    with pytest.warns(UserWarning, match="agent 1 is dead") as warned:
        path = run(tmp_path, *options, f"population.agents=[{{}}, {DEEP}]")
    assert len([w for w in warned if "is dead" in str(w.message)]) == 1
    for line in metrics(path):
        assert line["alive"] == [True, False]
        assert line["fitness"][0] > 0
        assert line["fitness"][1] is None
        assert line["loss"][0] is not None
    assert summary(path)["best"]["place"] == 0


def test_the_others_do_not_notice(tmp_path):
    options = ["algorithm.loss_kind=mse", "replay.share=agent", "population.size=3"]
    options += ["budget.env_steps=600", "network.hidden=[64, 64]"]  # as wide: their bits stay
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spoiled = metrics(run(tmp_path / "a", *options, f"population.agents=[{{}}, {{}}, {DEEP}]"))
    healthy = metrics(run(tmp_path / "b", *options))
    assert len(spoiled) >= len(healthy)  # the dead don't spend the budget
    for ours, theirs in zip(spoiled, healthy, strict=False):
        assert ours["alive"] == [True, True, False]
        for name in ("fitness", "loss"):
            assert ours[name][:2] == theirs[name][:2]


def test_when_all_are_dead_the_run_ends_with_one_line(tmp_path):
    with pytest.warns(UserWarning, match="is dead"), pytest.raises(RunError) as caught:
        run(tmp_path, "algorithm.loss_kind=mse", f"population.agents=[{DEEP}, {DEEP}]")
    assert str(caught.value).startswith("all agents are dead")
    assert "\n" not in str(caught.value)
    path = tmp_path / "run"
    assert metrics(path)[-1]["fitness"] == [None, None]
    assert not (path / "best").exists()
    assert not (path / "summary.json").exists()


def test_rewards_that_are_not_numbers_are_the_users_to_mend(tmp_path):
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, "env.id=NotANumber-v0")
    assert str(caught.value) == (
        "env.id: 'NotANumber-v0' gave the reward nan in step 1 of an episode; it must be one number"
        " up to ±1e18"
    )
    assert not any(tmp_path.iterdir())
