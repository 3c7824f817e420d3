"""The file of docs/your_algorithm.md: its four parts from YAML, from training to the report."""

import json
import sys
from collections import defaultdict

import numpy as np
import pytest
import torch
from torch import nn

from evorl.config import resolve
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NetworkSpec
from evorl.runs.agent import load_agent
from tests.cli.answers import assert_one_error
from tests.distributed.runs import Run, deterministic, generation_of, wait_for
from tests.reference import LoneAgent, fold_one, learn_alone, population_of, random_samples
from tests.training.own_parts import write_parts

pytestmark = pytest.mark.slow
SMALL = [
    "env={id: CartPole-v1, num_envs: 2, backend: sync}",
    "algorithm.learning_starts=20",
    "algorithm.batch_size=16",
    "network.hidden=[16, 16]",
    "replay={share: agent, capacity: 300}",
    "evaluation.every=60",
    "evaluation.episodes=3",
    "evaluation.confirm_episodes=3",
    "evaluation.final_episodes=2",
    "evaluation.max_steps=100",
    "evolution.selection.min_gap=0",
    "evolution.selection.champion=0",
    "evolution.mutation.my_module:warmer=1",
    "budget.env_steps=5040",  # seven generations
    "compile=false",
]


def done(folder, *words, **options):
    """A command that ends well; what it said."""
    code, said = Run(folder, *words, **options).wait()
    assert code == 0, said
    return said


@pytest.fixture(scope="module")
def soft(tmp_path_factory):
    """A run on two ranks that was killed and resumed, and one that nobody stopped."""
    whole, killed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("killed")
    run = Run(killed, "train", write_parts(killed), *SMALL, ranks=2)
    directory = killed / "runs" / "soft"
    wait_for(lambda: generation_of(directory) >= 3 or run.launcher.poll() is not None)
    run.kill()
    run.launcher.wait()
    assert not (directory / "summary.json").exists(), run.said()
    done(killed, "resume", "runs/soft", ranks=2)
    done(whole, "train", write_parts(whole), *SMALL)
    return directory, whole / "runs" / "soft"


def test_killed_and_resumed_on_two_ranks_is_as_if_on_one(soft):
    (files, (name, checkpoint)), (others, (newest, other)) = map(deterministic, soft)
    assert files == others  # lineage and best agent
    assert name == newest
    for file in checkpoint.keys() - {"manifest.json"}:  # which says how many ranks there were
        assert checkpoint[file] == other[file], file


def test_all_four_parts_were_used(soft):
    directory, _ = soft
    lines = [json.loads(line) for line in (directory / "lineage.jsonl").open()]
    genomes = {line["genome"]["id"]: line["genome"] for line in lines if line["event"] == "birth"}
    warmth = {id: genome["hyperparameters"]["temperature"] for id, genome in genomes.items()}
    children = [genome for genome in genomes.values() if genome["parent"] is not None]
    assert len(children) > 6
    made = defaultdict(list)
    for child in children:
        made[child["mutation"]].append(warmth[child["id"]] / warmth[child["parent"]])
    assert all(1.5 <= factor <= 3 for factor in made["my_module:warmer"])
    assert len(made["my_module:warmer"]) > 1
    assert any(factor != 1 for factor in made["hyperparameters"])  # it evolves like our own
    metrics = [json.loads(line) for line in (directory / "metrics.jsonl").open()]
    for line in metrics:
        assert line["exploration"] == line["hyperparameters"]["temperature"]
        # the lower quartile of three whole numbers, and not their mean
        assert all(2 * fitness == int(2 * fitness) for fitness in line["fitness"])
        best = line["ids"][np.argmax(line["fitness"])]
        assert {c["parent"] for c in children if c["born"] == line["generation"] + 1} <= {best}


@pytest.fixture
def my_module(monkeypatch):
    """Which folder's module is imported; afterwards none."""
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    yield monkeypatch.syspath_prepend
    sys.modules.pop("my_module", None)


def test_it_is_scored_exported_and_reported(soft, my_module):
    directory, _ = soft
    folder = directory.parent.parent
    my_module(folder)
    assert "score over 3 fresh episodes" in done(folder, "evaluate", directory, "--episodes", "3")
    for kind in ("safetensors", "pt2"):
        done(folder, "export", directory, "--format", kind)
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    live = load_agent(directory / "best").act(obs)
    assert set(live.tolist()) <= {0, 1}
    assert load_agent(directory / "export-safetensors").act(obs).tolist() == live.tolist()
    model = torch.export.load(directory / "export-pt2" / "model.pt2").module()
    assert model(torch.from_numpy(obs))["action"].tolist() == live.tolist()
    done(folder, "report", directory)
    page = (directory / "report.html").read_text()
    assert "my_module:warmer" in page
    assert "temperature" in page
    assert "temperature: " in done(folder, "schedule", directory)


WRONG = [
    ("algorithm.temperatur=1", "algorithm.temperatur: unknown key; did you mean temperature?"),
    ("algorithm.temperature=0", "algorithm.temperature: must be greater than 0, got 0"),
    ("algorithm.huber=3", "algorithm.huber: expected true or false, got 3"),
    ("evolution.spaces.temperature.high=20", "must be at most 10, got 20"),
    ("algorithm.name=no_module:SoftDQN", "there is no module 'no_module'; it must be in the"),
    ("algorithm.name=my_module:SoftDQM", "has no 'SoftDQM'; did you mean SoftDQN?"),
    ("evolution.mutation.my_module:warm=1", "has no 'warm'; did you mean warmer?"),
    ("evaluation.fitness=my_module:SoftDQN", "must be a function, got <class 'my_module.SoftDQN'>"),
    ("evolution.selection.count=0", "evolution.selection.count: must be at least 1, got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("override", "message"), WRONG)
def test_mistakes_are_one_line(evorl, tmp_path, my_module, override, message):
    answer = evorl("train", write_parts(tmp_path), override)
    assert_one_error(*answer)
    assert message in answer[-1]
    assert not (tmp_path / "runs").exists()


PLAIN = """
import evorl

class Plain(evorl.Algorithm):
    gamma: float = evorl.hyperparameter(0.9, "Discount.", ge=0, le=1)
    rate: float = evorl.hyperparameter(0.01, "Of learning.", gt=0, le=1)
    batch_size: int = evorl.hyperparameter(8, "Of a batch.", ge=1)
    learn_step: int = evorl.hyperparameter(2, "Steps.", ge=1)

    def networks(self, observation, action):
        return {"v": evorl.Trained(observation.giving(action.n), lr="rate")}

    def loss(self, networks, targets, batch, hp):
        chosen = networks["v"](batch.obs).gather(2, batch.action[..., None])[..., 0]
        return evorl.Loss(((chosen - batch.reward) ** 2 * batch.weight).sum(1))

    def greedy(self, networks, obs):
        return networks["v"](obs).argmax(-1)

class Whole(Plain):
    n_step: int = 1
    updates: int = 1
    learning_starts: int = 10

class Misspelt(Whole):
    def networks(self, observation, action):
        return {"v": evorl.Trained(observation.giving(action.n), lr="rat")}

class Shared(Whole):
    def loss(self, *arguments):
        return evorl.Loss(super().loss(*arguments).loss.mean())

class Silent(evorl.OffPolicy):
    pass

class Rolled(Plain):
    experience = "rollout"

class Unrolled(Plain):
    experience = "unrolls"

def broken(returns): return returns[99]

def spoiled(genome, state, random):
    genome.hyperparameters["rate"] = 5
    return genome, state
"""
REFUSED = {
    "Plain": "has experience 'replay', but no n_step, updates, learning_starts; make it a subclass"
    " of evorl.OffPolicy, too, which declares them",
    "Rolled": "has experience 'rollout', but no rollout_steps, gae_lambda; make it a subclass of"
    " evorl.OnPolicy, too, which declares them",
    "Unrolled": "has experience 'unrolls', but no rollout_steps, replay_unrolls; make it a subclass"
    " of evorl.IMPALA, too, which declares them",
    "Misspelt": "network 'v' is trained by 'rat', which is no hyperparameter; did you mean rate?",
    "Shared": "loss must be one number per agent, [P], as its samples' weights add them up; got 0"
    " dimensions",
    "Silent": "only declares options; make it a subclass of evorl.Algorithm",
}


def train_plain(evorl, folder, name, *overrides):
    (folder / "my_module.py").write_text(PLAIN)
    (folder / "plain.yaml").write_text(
        f"env: {{id: CartPole-v1, backend: sync}}\n"
        f"algorithm: {{name: my_module:{name}}}\n"
        "evaluation: {every: 60, max_steps: 20, final_episodes: 2}\n"
        "budget: {env_steps: 4000}\n"
        "compile: false\n"
    )
    return evorl("train", "plain.yaml", "-q", *overrides)


@pytest.mark.parametrize("name", REFUSED)
def test_an_algorithm_that_lacks_something(evorl, tmp_path, my_module, name):
    code, out, err = train_plain(evorl, tmp_path, name)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].endswith(REFUSED[name])
    assert "Traceback" not in err
    assert (tmp_path / "runs").exists() == (name == "Shared")  # that is known after a while only


LINE = 1 + PLAIN.splitlines().index("def broken(returns): return returns[99]")
BROKEN = {
    "evaluation.fitness=my_module:broken": "evaluation.fitness: 'my_module:broken' raised"
    f" IndexError: index 99 is out of bounds for axis 0 with size 10 (my_module.py, line {LINE})",
    "evolution.mutation.my_module:spoiled=1e6": "evolution.mutation: 'my_module:spoiled' returned"
    " hyperparameters.rate: must be at most 1, got 5",
}


@pytest.mark.parametrize("override", BROKEN)
def test_a_part_that_breaks_while_it_runs(evorl, tmp_path, my_module, override):
    certain = ["evolution.selection.min_gap=0", "evolution.mutation.hyperparameters=0"]
    code, out, err = train_plain(evorl, tmp_path, "Whole", override, *certain)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == f"error: {BROKEN[override]}"
    assert "Traceback" not in err


def test_neither_clipping_nor_a_target_network_is_needed(evorl, tmp_path, my_module):
    """Nor anything random: agents then act greedily."""
    code, out, err = train_plain(evorl, tmp_path, "Whole")
    assert code == 0, err
    assert "held-out score" in out


class LoneSoftAgent(LoneAgent):
    """One soft Q-learner trained alone, by plain PyTorch."""

    def learn(self, obs, action, rewards, next_obs, bootstrap, importance):
        temperature = self.hp["temperature"]
        windows = zip(rewards.tolist(), bootstrap.tolist(), strict=True)
        folded = [fold_one(window, steps, self.hp["gamma"]) for window, steps in windows]
        reward, discount = torch.tensor(folded, dtype=obs.dtype).T
        with torch.no_grad():
            soft = temperature * torch.log(torch.exp(self.target(next_obs) / temperature).sum(1))
        value = self.online(obs).gather(1, action[:, None]).squeeze(1)
        loss = (
            importance * nn.SmoothL1Loss(reduction="none")(value, reward + discount * soft)
        ).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), self.hp["max_grad_norm"])
        self.optimizer.step()
        self.updates += 1
        self._move_target()
        return loss.item()


def test_it_learns_what_plain_pytorch_learns(tmp_path, my_module):
    """Agents of several architectures and temperatures side by side, each as if alone."""
    write_parts(tmp_path)
    my_module(tmp_path)
    algorithm, spec = resolve("algorithm", "my_module:SoftDQN")(), NetworkSpec(5, 3)
    shapes = [Architecture((16, 12)), Architecture((40,), "tanh", True, True), Architecture((9, 9))]
    genomes = [
        Genome(
            i, {"q": shape}, algorithm.hyperparameters | {"temperature": 0.3 * (i + 1), "tau": 0.1}
        )
        for i, shape in enumerate(shapes)
    ]
    population = population_of(genomes, spec, algorithm, seed=1, dtype=torch.float64)
    options = {"double": False, "loss_kind": "huber", "periodic": False}
    alone = [
        LoneSoftAgent(spec, own, population.state(i), **options) for i, own in enumerate(genomes)
    ]
    random = np.random.default_rng(0)
    for _ in range(30):
        requests = population.requests(np.full(3, 2))
        samples = random_samples(requests, spec, random, steps=3)
        population.learn(samples, requests)
        learn_alone(alone, samples, requests)
    for i, agent in enumerate(alone):
        for part, own in agent.parts().items():
            for name, value in getattr(population.state(i), part).items():
                torch.testing.assert_close(value, own[name], rtol=0, atol=1e-9)
