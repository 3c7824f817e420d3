"""Agents outside of training: any algorithm, any number of networks, any form of observation."""

import copy
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch

from evorl.cli.ship import FORMATS
from evorl.envs import EnvSpec
from evorl.errors import ConfigError
from evorl.reporting.console import Console
from evorl.runs.agent import Agent, load_agent, save_agent
from evorl.shipping.export import export_agent, read_model
from evorl.training.score import play_alone
from tests.networks.test_export import several
from tests.shipping.worlds import (
    ACTION_START,
    FORMS,
    INTERFACES,
    World,
    architectures,
    in_our_form,
    matrix_values,
    population_of,
    raw_observations,
    saved,
)

torch.set_num_threads(1)

# A user's algorithm: of two candidates the one that the critic likes better.
MODULE = """
from evorl.algorithms.base import Algorithm

class Careful(Algorithm):
    temperature: float = 1.0

    def greedy(self, networks, obs):
        first = networks["actor"](obs)
        second = self.temperature * first * networks.parameter("log_alpha").unsqueeze(1)
        better = networks["critic"](obs, second) > networks["critic"](obs, first)
        return better.squeeze(2).long()
"""


@pytest.fixture
def careful(tmp_path, monkeypatch):
    """A saved agent of the user's algorithm, whose module can be imported."""
    (tmp_path / "my_algorithm.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_algorithm", raising=False)
    return several(algorithm={"name": "my_algorithm:Careful", "temperature": -0.5})


def by_hand(agent, obs):
    """What Careful does, on plain modules."""
    actor, critic = agent.networks["actor"], agent.networks["critic"]
    with torch.no_grad():
        first = actor(obs)
        second = -0.5 * first * agent.saved.parameters["log_alpha.value"]
        return (critic(obs, second) > critic(obs, first))[:, 0].long()


@pytest.mark.parametrize("form", FORMS)
def test_an_agent_takes_the_environment_s_observations_and_gives_its_actions(form):
    population = population_of(form, list(architectures(form))[:3])
    raw = raw_observations(form, 50)
    values = matrix_values(population, in_our_form(form, raw))
    for i in range(population.size):
        agent = Agent(saved(population, i, form))
        actions = agent.act(raw)
        np.testing.assert_array_equal(actions, ACTION_START + values[i].argmax(1))
        np.testing.assert_array_equal(agent(torch.from_numpy(raw)), actions)
        assert [agent.act(one) for one in raw[:5]] == actions[:5].tolist()
        assert World(form).action_space.contains(agent.act(raw[0]))
        outputs = agent.decide(torch.from_numpy(raw))[1]
        np.testing.assert_allclose(outputs["q"].detach(), values[i], rtol=0, atol=1e-5)


def test_observations_of_another_shape_are_refused():
    agent = Agent(saved(population_of("vector")))
    for shape in ((), (4,), (2, 4), (2, 3, 5)):
        with pytest.raises(ValueError, match=r"must have shape \(5,\) or \(B, \.\.\.\), got"):
            agent.act(np.zeros(shape, np.float32))
    assert agent.act(np.zeros((0, 5), np.float32)).shape == (0,)


def test_lists_and_read_only_arrays_are_observations_too(recwarn):
    agent = Agent(saved(population_of("vector")))
    obs = raw_observations("vector", 1)[0]
    action = agent.act(obs)
    obs.flags.writeable = False
    assert agent.act(obs.tolist()) == agent.act(obs) == agent.act(obs[::1]) == action
    assert not recwarn.list


def test_an_agent_is_an_ordinary_module():
    agent = Agent(saved(population_of("pixels"), form="pixels"))
    raw = torch.from_numpy(raw_observations("pixels", 50))
    assert {name.split(".")[0] for name in agent.state_dict()} == {"network_q"}
    assert torch.equal(copy.deepcopy(agent).double()(raw), agent(raw))
    other = Agent(saved(population_of("pixels"), 0, "pixels"))
    other.load_state_dict({n: torch.zeros_like(v) for n, v in agent.state_dict().items()})
    assert set(other.act(raw_observations("pixels", 5))) == {ACTION_START}
    assert not agent.training


def test_a_loaded_agent_plays(tmp_path):
    save_agent(tmp_path / "best", saved(population_of("vector")))
    agent = load_agent(str(tmp_path / "best"))
    env = gymnasium.make("World-v0", form="vector")
    obs, _ = env.reset(seed=1)
    over = False
    while not over:
        obs, _, terminated, truncated, _ = env.step(agent.act(obs))
        over = terminated or truncated


# any algorithm


def test_a_user_s_algorithm_with_two_networks_and_a_parameter(careful):
    agent = Agent(careful)
    obs = torch.randn(200, 5, generator=torch.Generator().manual_seed(1))
    expected = by_hand(agent, obs)
    assert 0 < expected.float().mean() < 1
    assert torch.equal(agent(obs), expected)
    outputs = agent.decide(obs)[1]
    assert {name: tuple(value.shape) for name, value in outputs.items()} == {
        "actor": (200, 2),
        "critic": (200, 1),
    }


def test_a_user_s_algorithm_is_scored(careful):
    """By the matrices, as in training, and by the agent alone: the same episodes."""
    own = careful._replace(interface=INTERFACES["vector"])
    agent, env, expected = Agent(own), World("vector"), []
    for seed in range(8):
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            obs, reward, over, _, _ = env.step(agent.act(obs))
            total += reward
        expected.append(total)
    assert len(set(expected)) > 2
    spec = EnvSpec("World-v0", "sync", {"form": "vector"})
    played, failures = play_alone(own, spec, range(8), 100, Console(quiet=True))
    np.testing.assert_allclose(played.returns[0], expected, rtol=1e-6)
    assert failures == 0


@pytest.mark.parametrize("format", FORMATS)
def test_a_user_s_algorithm_is_exported(careful, tmp_path, format):
    _, difference = export_agent(Agent(careful), format, tmp_path / "out")
    assert difference < 1e-5
    model = read_model(format, tmp_path / "out")
    obs = np.random.default_rng(2).normal(size=(300, 5)).astype(np.float32)
    expected = by_hand(Agent(careful), torch.from_numpy(obs)).numpy()
    assert (model(obs)["action"] == expected).mean() > 0.99


def test_loading_imports_nothing_and_acting_says_what_is_missing(tmp_path):
    save_agent(tmp_path, several(algorithm={"name": "no_such_module:Mine"}))
    agent = load_agent(tmp_path)
    assert agent.networks["actor"](torch.zeros(3, 5)).shape == (3, 2)
    with pytest.raises(ConfigError, match="module 'no_such_module'") as caught:
        agent.act(np.zeros(5))
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ConfigError, match="no_such_module"):
        export_agent(agent, "pt2", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_loading_an_agent_of_a_user_s_algorithm_does_not_run_it(tmp_path):
    (tmp_path / "loud.py").write_text("raise SystemExit('ran')")
    save_agent(tmp_path / "best", several(algorithm={"name": "loud:Loud"}))
    code = "from evorl.runs.agent import load_agent; load_agent('best')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        ({"name": "dqm"}, "dqm"),
        ({"name": "dqn", "wings": 2}, "wings"),
        ({"name": "dqn", "double": "yes"}, "double"),
        ({"name": "json:Nothing"}, "Nothing"),
        ({"name": ":"}, ""),
        ({"name": "json:"}, ""),
    ],
)
def test_an_algorithm_that_cannot_be_made_is_one_line(algorithm, says):
    with pytest.raises(ConfigError) as caught:
        Agent(several(algorithm=algorithm)).act(np.zeros(5))
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
