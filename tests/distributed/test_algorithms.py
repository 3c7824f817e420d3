"""Every algorithm: the same bytes again, on two ranks, and after kills; replicas stay together.

Some with halving: agents go for good, and others move to their rank with what they remember.
"""

import json
import random
import warnings

import pytest
import torch

from evorl.config import load_config
from evorl.training.trainer import train as train_here

from .runs import Run, deterministic, newest, same_but_mesh, some_time

pytestmark = pytest.mark.slow
RANDOM = random.Random()  # really at random: what fails here is worth finding
KILLS = 2
COMMON = """
name: run
seed: 3
network: {hidden: [16, 16]}
population: {size: 4}
evaluation: {every: 40, episodes: 2, confirm_episodes: 2, final_episodes: 2, max_steps: 40,
  final_max_steps: 40}
evolution: {selection: {fraction: 0.5, min_gap: 0}, mutation: {architecture: 0.5, parameters: 0}}
budget: {env_steps: 1280}
compile: false
"""  # four generations of 320 steps
OFF = "env: {id: Pendulum-v1, num_envs: 2, backend: sync}\nreplay: {share: agent, capacity: 300}\n"
PRIORITISED = OFF.replace("share: agent", "share: agent, kind: prioritized")
NORMALISED = OFF.replace("sync}", "sync, normalize: {observations: true}}")
SCALED = "env: {id: Pendulum-v1, num_envs: 2, normalize: {observations: true, rewards: true}}\n"
LEARN = "learning_starts: 20, batch_size: 16, learn_step: 4, n_step: 2"
ON = "env: {id: %s, num_envs: 2, backend: sync}\n"
ALGORITHMS = {
    "ddpg": OFF + f"algorithm: {{name: ddpg, {LEARN}}}",
    "td3": PRIORITISED + f"algorithm: {{name: td3, {LEARN}}}",
    "sac": NORMALISED + f"algorithm: {{name: sac, {LEARN}}}",
    "a2c": ON % "CartPole-v1" + "algorithm: {name: a2c}",
    "ppo": ON % "CartPole-v1" + "algorithm: {name: ppo, rollout_steps: 16, epochs: 3}",
    "impala": SCALED
    + "algorithm: {name: impala, rollout_steps: 8, updates: 3, replay_unrolls: 12, lr: 0.01}",
    "ppo-box": SCALED
    + "algorithm: {name: ppo, rollout_steps: 16, lr: 0.01, batch_size: 10, target_kl: 0.01}",
}
HALVED = ("td3", "ppo-box", "impala")  # from six agents to four, after two generations


@pytest.fixture(scope="module", params=ALGORITHMS)
def whole(request, tmp_path_factory):
    """An algorithm, and a run of it in one process that nobody stops."""
    name = request.param
    return name, train(tmp_path_factory.mktemp(name), name)


def configured(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "small.yaml"
    common = COMMON
    if name in HALVED:
        common = COMMON.replace("size: 4", "size: 6").replace("1280", "1920")
        halving = "evolution: {halving: {survivors: 4, within: 0.3}, "
        common = common.replace("evolution: {", halving)
    path.write_text(common + ALGORITHMS[name])
    return path


def train(folder, name, *overrides, ranks=1):
    """A whole run; the run's directory."""
    code, said = Run(folder, "train", configured(folder, name), *overrides, ranks=ranks).wait()
    assert code == 0, said
    return folder / "runs" / "run"


def rows(directory, name):
    return [json.loads(line) for line in (directory / f"{name}.jsonl").read_text().splitlines()]


def test_the_same_seed_gives_the_same_bytes(whole, tmp_path, monkeypatch):
    """In this process, too; agents learn, and evolve."""
    name, expected = whole
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    with warnings.catch_warnings(action="ignore"):  # of generations that are short
        again = train_here(load_config(configured(tmp_path, name))).directory
    assert deterministic(tmp_path / again) == deterministic(expected)
    found = rows(expected, "metrics")
    assert len(found) == 4
    assert found[-1]["updates"] > 0
    assert [len(row["ids"]) for row in found] == ([6, 6, 4, 4] if name in HALVED else [4] * 4)
    kinds = {line["genome"]["mutation"] for line in rows(expected, "lineage") if "genome" in line}
    assert "hyperparameters" in kinds
    assert any(kind.endswith((" units", " layer")) for kind in kinds)


def test_two_ranks_are_one_process(whole, tmp_path):
    name, expected = whole
    two = train(tmp_path, name, ranks=2)
    same_but_mesh(expected, two)
    assert deterministic(expected)[0] == deterministic(two)[0]


@pytest.mark.parametrize("ranks", [1, 2], ids=["one", "two"])
def test_killed_at_random_moments(whole, tmp_path, ranks):
    name, expected = whole
    kills, tries = 0, 0
    while kills < KILLS:  # a run that ends before its share of kills is followed by another
        folder, tries = tmp_path / str(tries), tries + 1
        directory = folder / "runs" / "run"
        run = Run(folder, "train", configured(folder, name), ranks=ranks)
        while kills < KILLS and some_time(RANDOM, run, directory):
            run.kill()
            run.launcher.wait()
            kills += 1
            begun = (directory / "config.yaml").exists()
            words = ("resume", "runs/run") if begun else ("train", configured(folder, name))
            run = Run(folder, *words, ranks=ranks)
        code, said = run.wait()
        assert code == 0 or "the run is finished" in said, said  # the last kill came too late
        same_but_mesh(expected, directory)
        assert deterministic(directory)[0] == deterministic(expected)[0]


@pytest.mark.parametrize("name", ["td3", "ppo-box", "impala"])
def test_replicas_stay_together(tmp_path, name):
    """Each generation ends with a comparison of their weights and moments."""
    run = train(tmp_path, name, "mesh.data=2", ranks=2)
    manifest = json.loads(newest(run)[1]["manifest.json"])
    assert manifest["state"]["mesh"] == {"population": 1, "data": 2}
    assert rows(run, "metrics")[-1]["env_steps"] == 1920  # of both
