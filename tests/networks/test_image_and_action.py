"""Networks that read an image and, beside it, an action: a critic against plain PyTorch."""

import numpy as np
import pytest
import torch
from torch import nn

from evorl.algorithms.base import Algorithm, Loss, Trained
from evorl.algorithms.hyperparameters import OffPolicy
from evorl.envs.spaces import ActionSpec
from evorl.evolution.surgery import add_units, channel_units, remove_units
from evorl.experience.transitions import Samples
from evorl.genome import Architecture, Genome
from evorl.networks import cnn
from evorl.networks.layout import network_part
from evorl.networks.spec import NetworkSpec
from evorl.population.population import Population
from tests.networks.test_cnn import PARTS, WAYS, LoneNetwork, assert_padding_is_zero, randn
from tests.population.checks import check
from tests.reference import places

torch.set_num_threads(1)


class Critic(OffPolicy, Algorithm):
    """Learns the reward of what was done, from an image and an action of two numbers."""

    def networks(self, observation, action):
        spec = observation.giving(1, extra=2)
        return {"critic": Trained(spec, max_grad_norm="max_grad_norm", tau="tau")}

    def loss(self, networks, targets, batch, hp):
        error = networks["critic"](batch.obs, batch.action).squeeze(-1) - batch.reward
        return Loss((error**2 * batch.weight).sum(-1), error.detach())


IMAGE = NetworkSpec(0, 1, image=(2, 8, 7), scale=1 / 255, extra=2)
ACTION = ActionSpec("continuous", None, (2,), np.dtype(np.float32))
MAPS = {"kernels": (3, 2), "strides": (2, 1)}
CRITICS = [
    Architecture((9, 9), "tanh", True, gated=(False, True), channels=(5, 6), **MAPS),
    Architecture((20, 7), "tanh", True, channels=(8, 5), **MAPS),
    Architecture((12,), "tanh", True, channels=(7, 8), **MAPS),
]


def critics(architectures=CRITICS):
    """Of other widths and numbers of channels, in one matrix; gates are open."""
    algorithm = Critic()
    values = algorithm.hyperparameters | {"batch_size": 6, "lr": 3e-3}
    genomes = [Genome(i, {"critic": own}, values) for i, own in enumerate(architectures)]
    networks = algorithm.networks(IMAGE, ACTION)
    population = Population(genomes, networks, algorithm, dtype=torch.float64)
    states = [population.state(i) for i in range(len(genomes))]
    for state in states:
        for name in state.online:
            if name.endswith("gate"):
                state.online[name].fill_(0.3)
    population.rebuild(genomes, states)
    assert len(population.groups) == 1
    return population


def lone_critic(architecture, parameters):
    module = LoneNetwork(IMAGE, architecture)
    module.load(network_part(parameters, "critic"))
    return module


def seen_and_done(agents, count=5):
    generator = torch.Generator().manual_seed(2)
    images = torch.randint(
        0, 256, (agents, count, *IMAGE.image), dtype=torch.uint8, generator=generator
    )
    return images, randn(agents, count, 2, seed=3)


@pytest.mark.parametrize("way", WAYS)
def test_a_network_reads_an_image_and_an_action(way, monkeypatch):
    """Outputs, the gradient by weights (in closed form and by autograd) and that by the action."""
    monkeypatch.setattr(cnn, "choose", lambda *_: way)
    population = critics()
    (group,), (order,) = population.groups, population.members
    images, actions = seen_and_done(group.size)
    bound, close = group.online["critic"], {"rtol": 0, "atol": 1e-12}
    actions.requires_grad_()
    values = bound(images, actions)
    (by_action,) = torch.autograd.grad(values.sum(), actions)
    with torch.no_grad():
        outputs, saved = bound.stacked.forward(bound.weights, images, actions)
        found = bound.backward(saved, torch.ones_like(outputs))
    rows = group.layout.join({"critic": found})
    for row, i in enumerate(order):
        module = lone_critic(CRITICS[i], population.state(int(i)).online)
        own = actions[row].detach().requires_grad_()
        expected = module(images[row], own)
        expected.sum().backward()
        torch.testing.assert_close(values[row], expected, **close)
        torch.testing.assert_close(by_action[row], own.grad, **close)
        gradient = module.read(lambda p: p.grad)
        packed = group.layout.pack({f"critic.{n}": value for n, value in gradient.items()})
        torch.testing.assert_close(rows[row], packed, **close)


def random_critic_round(requests, random):
    count = sum(int(np.prod(request.shape)) for request in requests)
    weight = np.zeros(count)
    for _, _, where in places(requests):
        weight[where] = 1 / len(where)
    images = torch.from_numpy(random.integers(0, 256, (count, *IMAGE.image), dtype=np.uint8))
    return Samples(
        obs=images,
        action=torch.from_numpy(random.normal(size=(count, 2))),
        rewards=torch.from_numpy(random.normal(size=(count, 1))),
        next_obs=images,
        bootstrap=torch.zeros(count, dtype=torch.uint8),
        weight=torch.from_numpy(weight),
        slots=torch.zeros(count, dtype=torch.int64),
        noise=torch.zeros(count, 0),
    )


def test_critics_of_images_equal_plain_pytorch_and_padding_stays_zero():
    population, random = critics(), np.random.default_rng(0)
    modules = [lone_critic(own, population.state(i).online) for i, own in enumerate(CRITICS)]
    optimizers = [torch.optim.Adam(module.parameters(), lr=3e-3) for module in modules]
    for _ in range(3):
        requests = population.requests(np.full(len(CRITICS), 5))
        samples = random_critic_round(requests, random)
        population.learn(samples, requests)
        for i, _, where in places(requests):
            optimizers[i].zero_grad()
            values = modules[i](samples.obs[where], samples.action[where]).squeeze(1)
            ((values - samples.rewards[where, 0]) ** 2).mean().backward()
            nn.utils.clip_grad_norm_(modules[i].parameters(), 10.0)
            optimizers[i].step()
    assert_padding_is_zero(population)
    for i, module in enumerate(modules):
        own = network_part(population.state(i).online, "critic")
        for name, value in module.read().items():
            torch.testing.assert_close(own[name], value, rtol=0, atol=1e-9)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("count", [1, 6])
def test_channels_added_beside_an_action_keep_the_function(layer, count):
    population, random = critics(), np.random.default_rng(1)
    requests = population.requests(np.full(len(CRITICS), 5))
    population.learn(random_critic_round(requests, random), requests)
    images, actions = seen_and_done(1)
    genomes, states = list(population.genomes), [population.state(i) for i in range(3)]
    for i, own in enumerate(CRITICS):
        units = channel_units(IMAGE, own, layer)
        changed = add_units(own, states[i].network("critic"), units, count, random)
        assert changed.architecture.channels[layer] == own.channels[layer] + count
        new = states[i].with_network("critic", changed.state)
        before, after = (
            lone_critic(architecture, state.online)(images[0], actions[0])
            for architecture, state in ((own, states[i]), (changed.architecture, new))
        )
        torch.testing.assert_close(after, before, rtol=0, atol=1e-12)
        smaller = remove_units(
            changed.architecture, changed.state, units._replace(size=units.size + count), count
        )
        again = states[i].with_network("critic", smaller.state)
        for part in PARTS:
            for name, value in getattr(states[i], part).items():
                assert torch.equal(getattr(again, part)[name], value), (part, name)
        genomes[i] = Genome(10 + i, {"critic": changed.architecture}, genomes[i].hyperparameters)
        states[i] = new
    population.rebuild(genomes, states)
    check(population, states)
    requests = population.requests(np.full(len(CRITICS), 5))
    population.learn(random_critic_round(requests, random), requests)
    assert population.alive.all()
    assert_padding_is_zero(population)
