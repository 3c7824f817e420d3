"""Normalised observations: stacked networks, plain modules, and agents from their files."""

import numpy as np
import pytest
import torch

from evorl.algorithms.base import Trained
from evorl.algorithms.ddpg import DDPG
from evorl.algorithms.dqn import DQN
from evorl.envs.spaces import ActionSpec
from evorl.genome import Architecture, Genome
from evorl.networks.layout import Layout, network_part, row_shapes, signature
from evorl.networks.module import to_module
from evorl.networks.normalizer import CLIP, EPS, normalized
from evorl.networks.spec import NORMALIZER, NetworkSpec, NormalizerSpec
from evorl.population.population import Population
from evorl.runs.agent import Interface, SavedAgent, load_agent, save_agent
from evorl.shipping.export import compare, read_model, write_model

torch.set_num_threads(1)

SIZE = 5
ACTIONS = {"dqn": ActionSpec("discrete", 3), "ddpg": ActionSpec("continuous", None, (2,))}
ALGORITHMS = {"dqn": DQN(), "ddpg": DDPG()}


def population_of(name, dtype=torch.float32):
    """Agents of several widths and depths with statistics of what they saw."""
    algorithm = ALGORITHMS[name]
    networks = algorithm.networks(NetworkSpec(SIZE, 0, normalize=True), ACTIONS[name])
    networks[NORMALIZER] = Trained(NormalizerSpec(SIZE, rewards=True))
    shapes = [Architecture((9,)), Architecture((16, 12), "tanh"), Architecture((8, 8, 8))]
    values = algorithm.hyperparameters
    genomes = [
        Genome(i, {n: own for n in networks if n != NORMALIZER}, values)
        for i, own in enumerate(shapes)
    ]
    population = Population(genomes, networks, algorithm, dtype=dtype)
    random = np.random.default_rng(0)
    obs = random.normal(5, 3, (len(shapes), 40, SIZE)).astype(np.float32)
    obs[:, :, 0] = 2  # no spread at all
    population.observe(obs)
    return population, obs


def test_numbers_by_mean_and_spread():
    x = torch.tensor([3.0, 1e9, -1e9, 4.0], dtype=torch.float64)
    mean, var = torch.tensor([1.0, 0, 0, 4], dtype=torch.float64), torch.tensor([4.0, 1, 1, 0])
    expected = torch.tensor([1.0, CLIP, -CLIP, 0], dtype=torch.float64)
    torch.testing.assert_close(normalized(x, mean, var), expected, rtol=1e-8, atol=0)
    assert EPS == 1e-8


def test_statistics_lie_behind_the_networks():
    specs = {
        "q": NetworkSpec(SIZE, 3, normalize=True),
        NORMALIZER: NormalizerSpec(SIZE, rewards=True),
    }
    own = {"q": Architecture((10,))}
    layout = Layout(specs, {"q": signature(own["q"])})
    assert layout.slices[NORMALIZER] == slice(layout.length - 6 * 16, layout.length)
    names = [name for name in row_shapes(specs, own) if name.startswith(NORMALIZER)]
    assert names == [
        f"{NORMALIZER}.{what}_{part}"
        for what in ("obs", "return")
        for part in ("mean", "var", "samples")
    ]
    gradient = {
        "q": {name: torch.ones(2, *shape) for name, shape in layout.networks["q"].shapes.items()}
    }
    joined = layout.join(gradient)
    assert joined.shape == (2, layout.length)
    assert not joined[:, layout.slices[NORMALIZER]].any()
    only = {"q": specs["q"], NORMALIZER: NormalizerSpec(rewards=True)}
    assert len([n for n in row_shapes(only, own) if n.startswith(NORMALIZER)]) == 3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_module_equals_matrix(name):
    population, obs = population_of(name, torch.float64)
    for i in range(population.size):
        online = population.state(i).online
        statistics = network_part(online, NORMALIZER)
        for own, group in zip(population.members, population.groups, strict=True):
            if i not in own:
                continue
            for network in group.networks:
                spec = population.specs[network]
                module = to_module(
                    spec,
                    population.genomes[i].architectures[network],
                    network_part(online, network),
                    statistics,
                )
                assert not set(dict(module.named_parameters())) & {"obs_mean", "obs_var"}
                x = torch.from_numpy(obs[i]).double()
                extra = [torch.rand(len(x), spec.extra).double()] * (spec.extra > 0)
                row = int(np.flatnonzero(own == i)[0])
                inputs = [torch.stack([each] * group.size) for each in (x, *extra)]
                expected = group.online[network](*inputs)[row]
                torch.testing.assert_close(module(x, *extra), expected, rtol=0, atol=1e-12)
                plain = to_module(
                    NetworkSpec(spec.inputs, spec.outputs, extra=spec.extra),
                    population.genomes[i].architectures[network],
                    network_part(online, network),
                )
                by_hand = (x - statistics["obs_mean"]) / torch.sqrt(statistics["obs_var"] + EPS)
                given = plain(by_hand.clamp(-CLIP, CLIP), *extra)
                torch.testing.assert_close(given, expected, rtol=0, atol=1e-12)


def saved(population, agent):
    return SavedAgent(
        population.genomes[agent],
        population.specs,
        population.state(agent).online,
        population.algorithm.model_dump(mode="json"),
        Interface((SIZE,)),
        {},
    )


def test_an_agent_from_its_files_reads_raw_observations(tmp_path):
    population, obs = population_of("dqn")
    actions = population.greedy(obs)
    for i in range(population.size):
        save_agent(tmp_path / str(i), saved(population, i))
        agent = load_agent(tmp_path / str(i))
        assert agent.saved.specs == population.specs
        np.testing.assert_array_equal(agent.act(obs[i]), actions[i])
    assert len({tuple(row) for row in actions}) > 1


def test_an_exported_program_has_the_statistics(tmp_path):
    population, _ = population_of("dqn")
    save_agent(tmp_path, saved(population, 1))
    agent = load_agent(tmp_path)
    write_model(agent, "pt2", tmp_path)
    assert compare(agent, read_model("pt2", tmp_path), "the model") < 1e-6
