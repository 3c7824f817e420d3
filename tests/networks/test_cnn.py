"""Convolutions in three ways against autograd, and image agents against agents trained alone."""

import copy
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from evorl.algorithms.dqn import DQN
from evorl.experience.transitions import Samples
from evorl.genome import Architecture
from evorl.networks import cnn
from evorl.networks.layout import network_part
from evorl.networks.spec import NetworkSpec
from tests.reference import genome, outside, places, population_of

torch.set_num_threads(1)

WAYS = get_args(cnn.Way)
ACTIVATIONS = {"relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "tanh": nn.Tanh, "silu": nn.SiLU}
PARTS = ("online", "target", "m", "v")
ROUNDS, UPDATES = 5, 10


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# one convolution


def assert_is_autograd(way, stride, needed, weight, bias, x):
    weight, bias, x = (value.requires_grad_() for value in (weight, bias, x))
    alone = [
        nn.functional.conv2d(images, w, b, stride)
        for images, w, b in zip(x, weight, bias, strict=True)
    ]
    expected = torch.stack(alone)
    upstream = randn(*expected.shape, seed=1)
    gradients = torch.autograd.grad((expected * upstream).sum(), (weight, bias, x))
    layer = cnn.ConvLayer(way, stride, needed)
    with torch.no_grad():
        y, kept = cnn.convolve(layer, weight, bias, x)
        found = cnn.convolve_backward(layer, weight, x, kept, upstream)
    close = {"rtol": 0, "atol": 1e-11}
    torch.testing.assert_close(y, expected, **close)
    torch.testing.assert_close(found.weight, gradients[0], **close)
    torch.testing.assert_close(found.bias, gradients[1], **close)
    if needed:
        torch.testing.assert_close(found.inputs, gradients[2], **close)
    else:
        assert found.inputs is None


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("way", WAYS)
def test_convolution_is_autograd(way, kernel, stride):
    """Also where the stride leaves a rest of the image unread."""
    for needed, (height, width) in ((True, (9, 6)), (False, (7, 10)), (True, (4, 4))):
        weight, bias = randn(3, 5, 2, kernel, kernel), randn(3, 5)
        assert_is_autograd(way, stride, needed, weight, bias, randn(3, 4, 2, height, width))


@settings(max_examples=60, deadline=None)
@given(st.data())
@pytest.mark.parametrize("way", WAYS)
def test_convolution_is_autograd_for_any_shape(way, data):
    small = st.integers(1, 3)
    agents, batch, inputs, outputs = (data.draw(small) for _ in range(4))
    kernel, stride = data.draw(st.integers(1, 4)), data.draw(small)
    height, width = (data.draw(st.integers(kernel, kernel + 6)) for _ in range(2))
    assert_is_autograd(
        way,
        stride,
        data.draw(st.booleans()),
        randn(agents, outputs, inputs, kernel, kernel),
        randn(agents, outputs),
        randn(agents, batch, inputs, height, width),
    )


@pytest.mark.parametrize("way", WAYS)
def test_convolution_takes_any_strides(way):
    """One layer's result is the next one's input, and that is a transposed view."""
    x = randn(4, 3, 2, 8, 7).transpose(0, 1)
    assert not x.is_contiguous()
    assert_is_autograd(way, 2, True, randn(3, 5, 2, 3, 3), randn(3, 5), x)


def test_the_choice_covers_all_ways():
    """Small layers leave the loop; the first one's images are unfolded."""
    assert cnn.choose((16, 4, 3, 3), 8, 8, True, "cpu") == "unfold"
    assert cnn.choose((16, 16, 3, 3), 6, 6, False, "cpu") == "grouped"
    assert cnn.choose((32, 4, 8, 8), 20, 20, True, "cpu") == "loop"
    assert cnn.choose((32, 4, 8, 8), 20, 20, True, "cuda") == "grouped"


# populations


def image_agents(kernels, strides):
    """Four groups; in three of them channels, widths or depths differ."""

    def shape(channels, hidden, activation="relu", *rest):
        return Architecture(hidden, activation, *rest, channels, kernels, strides)

    plain, gated = (False, False, ()), (True, True, (False, False, True))
    return [
        genome(0, shape((5, 16), (30,), "relu", *plain), lr=2e-3, batch_size=11),
        genome(1, shape((8, 9), (17, 32), "relu", *plain), gamma=0.9, max_grad_norm=0.05),
        genome(2, shape((7, 13), (20, 31, 18), "relu", *plain), tau=0.2, batch_size=3),
        genome(3, shape((3, 12), (16,), "tanh", *plain), learn_step=2, max_grad_norm=0),
        genome(4, shape((4, 16), (9, 12), "tanh", *plain), gamma=0.5),
        genome(5, shape((6, 5), (16,), "gelu", True, True, ()), lr=5e-4, batch_size=16),
        genome(6, shape((5, 8), (10, 12, 12), "gelu", *gated), tau=0.05, learn_step=5),
        genome(7, shape((1, 2), (5,), "silu", *plain), lr=3e-3),
    ]


class Case:
    """A spec, its agents, and how they learn."""

    def __init__(self, image, kernels, strides, double=True, loss_kind="huber", steps=1):
        self.spec = NetworkSpec(0, 3, image=image, scale=1 / 255)
        self.genomes = image_agents(kernels, strides)
        self.algorithm = DQN(double=double, loss_kind=loss_kind)
        self.steps = steps

    @property
    def updates(self):
        return np.array([UPDATES // g.hyperparameters["learn_step"] for g in self.genomes])

    def population(self):
        """Gates are open, so that gated layers matter from the first update."""
        options = {"seed": 3, "dtype": torch.float64}
        population = population_of(self.genomes, self.spec, self.algorithm, **options)
        states = [population.state(i) for i in range(population.size)]
        for state in states:
            for name in state.online:
                if name.endswith("gate"):
                    state.online[name].fill_(0.3)
                    state.target[name].fill_(0.3)
        population.rebuild(self.genomes, states)
        return population


CASES = {
    "4x10x10": Case((4, 10, 10), (3, 3), (1, 1)),
    "4x10x10 stride 2": Case((4, 10, 10), (4, 2), (2, 1), double=False, steps=3),
    "3x12x9 stride 2": Case((3, 12, 9), (3, 2), (2, 2), loss_kind="mse"),
}


class LoneNetwork(nn.Module):
    """One agent's network, from ordinary modules."""

    def __init__(self, spec, architecture):
        super().__init__()
        self.architecture = architecture
        self.activation = ACTIVATIONS[architecture.activation]()
        planes = pairwise((spec.image[0], *architecture.channels))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, kernel, stride)
            for (a, b), kernel, stride in zip(
                planes, architecture.kernels, architecture.strides, strict=True
            )
        )
        features = self.features(torch.zeros(1, *spec.image, dtype=torch.uint8)).shape[1]
        pairs = list(pairwise((spec.extra + features, *architecture.hidden)))
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.norms = nn.ModuleList(
            nn.LayerNorm(b) if architecture.layer_norm else nn.Identity() for _, b in pairs
        )
        self.gates = nn.ParameterDict(
            {str(k): torch.zeros(1) for k, gated in enumerate(architecture.gated) if gated}
        )
        self.head = nn.Linear(architecture.hidden[-1], spec.outputs + architecture.dueling)
        self.double()

    def features(self, x):
        x = x.to(self.convolutions[0].weight.dtype) / 255
        for conv in self.convolutions:
            x = self.activation(conv(x))
        return x.flatten(1)

    def forward(self, x, extra=None):
        x = self.features(x)
        if extra is not None:
            x = torch.cat((extra, x), 1)
        for k, (linear, norm) in enumerate(zip(self.linears, self.norms, strict=True)):
            y = self.activation(norm(linear(x)))
            x = x + self.gates[str(k)] * y if self.architecture.gated[k] else y
        out = self.head(x)
        if not self.architecture.dueling:
            return out
        return out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True)

    def segments(self):
        """Segment name → (parameter, whether the segment is its transpose)."""
        found = {}
        for k, conv in enumerate(self.convolutions):
            found[f"conv{k}.weight"] = conv.weight, False
            found[f"conv{k}.bias"] = conv.bias, False
        for k, linear in enumerate(self.linears):
            found[f"hidden{k}.weight"] = linear.weight, True
            found[f"hidden{k}.bias"] = linear.bias, False
            if self.architecture.layer_norm:
                found[f"hidden{k}.scale"] = self.norms[k].weight, False
                found[f"hidden{k}.shift"] = self.norms[k].bias, False
            if self.architecture.gated[k]:
                found[f"hidden{k}.gate"] = self.gates[str(k)], False
        found["head.weight"] = self.head.weight, False
        found["head.bias"] = self.head.bias, False
        return found

    @torch.no_grad()
    def load(self, parameters):
        segments = self.segments()
        assert set(segments) == set(parameters)
        for name, (parameter, transposed) in segments.items():
            parameter.copy_(parameters[name].T if transposed else parameters[name])

    def read(self, of=lambda parameter: parameter.detach()):
        return {name: of(p).T if t else of(p) for name, (p, t) in self.segments().items()}


class LoneAgent:
    """One agent trained alone with autograd and torch.optim.Adam."""

    def __init__(self, case, genome, state):
        self.hp, self.algorithm = genome.hyperparameters, case.algorithm
        self.online = LoneNetwork(case.spec, genome.architectures["q"])
        self.online.load(network_part(state.online, "q"))
        self.target = copy.deepcopy(self.online)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=self.hp["lr"])

    def learn(self, obs, action, rewards, next_obs, bootstrap, importance):
        gamma = self.hp["gamma"]
        with torch.no_grad():
            future = self.target(next_obs)
            chooser = self.online(next_obs) if self.algorithm.double else future
            future = future.gather(1, chooser.argmax(1, keepdim=True)).squeeze(1)
            goal = (rewards * gamma ** torch.arange(rewards.shape[1]).double()).sum(1)
            goal += torch.where(bootstrap > 0, gamma ** bootstrap.double(), 0.0) * future
        value = self.online(obs).gather(1, action[:, None]).squeeze(1)
        kind = nn.SmoothL1Loss if self.algorithm.loss_kind == "huber" else nn.MSELoss
        self.optimizer.zero_grad()
        (importance * kind(reduction="none")(value, goal)).mean().backward()
        if self.hp["max_grad_norm"] > 0:
            nn.utils.clip_grad_norm_(self.online.parameters(), self.hp["max_grad_norm"])
        self.optimizer.step()
        with torch.no_grad():
            pairs = zip(self.target.parameters(), self.online.parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, self.hp["tau"])

    def parts(self):
        """As an AgentState has them."""
        moments = self.optimizer.state
        found = {
            "online": self.online.read(),
            "target": self.target.read(),
            "m": self.online.read(lambda p: moments[p]["exp_avg"]),
            "v": self.online.read(lambda p: moments[p]["exp_avg_sq"]),
        }
        return {
            part: {f"q.{name}": value for name, value in own.items()} for part, own in found.items()
        }


def random_samples(case, requests, random):
    """A round of random images; what lies in the padding of a batch is as random."""
    count = sum(int(np.prod(request.shape)) for request in requests)
    weight = np.zeros(count)
    for _, _, where in places(requests):
        weight[where] = random.uniform(0.5, 1, len(where)) / len(where)
    length = random.integers(1, case.steps + 1, count)
    rewards = random.normal(size=(count, case.steps))
    rewards[np.arange(case.steps) >= length[:, None]] = 0
    images = random.integers(0, 256, (2, count, *case.spec.image), dtype=np.uint8)
    return Samples(
        obs=torch.from_numpy(images[0]),
        action=torch.from_numpy(random.integers(0, case.spec.outputs, count)),
        rewards=torch.from_numpy(rewards),
        next_obs=torch.from_numpy(images[1]),
        bootstrap=torch.from_numpy(np.where(random.random(count) < 0.2, 0, length).astype("u1")),
        weight=torch.from_numpy(weight),
        slots=torch.zeros(count, dtype=torch.int64),
        noise=torch.zeros(count, 0),
    )


def rounds(case, population):
    """(requests, samples) of every round: the same for every population of this case."""
    random = np.random.default_rng(11)
    for _ in range(ROUNDS):
        requests = population.requests(case.updates)
        yield requests, random_samples(case, requests, random)


@pytest.fixture(scope="module")
def trained_alone():
    """For each case, made once: every agent's parts after it was trained alone."""
    found = {}

    def get(name):
        if name not in found:
            case = CASES[name]
            population = case.population()
            agents = [LoneAgent(case, g, population.state(i)) for i, g in enumerate(case.genomes)]
            for requests, samples in rounds(case, population):
                for agent, _, where in places(requests):
                    obs, action, rewards, next_obs, bootstrap, weight, *_ = (
                        field[where] for field in samples
                    )
                    importance = weight * len(where)
                    agents[agent].learn(obs, action, rewards, next_obs, bootstrap, importance)
            found[name] = [agent.parts() for agent in agents]
        return found[name]

    return get


def assert_padding_is_zero(population):
    for group in population.groups:
        for matrix, values in outside(group).items():
            assert values.numel() > 0
            assert not values.any(), (group.layout.signatures, matrix)


@pytest.mark.parametrize("way", [*WAYS, "default"])
@pytest.mark.parametrize("name", CASES)
def test_mixed_images_equal_agents_trained_alone(name, way, trained_alone, monkeypatch):
    case = CASES[name]
    if way != "default":
        monkeypatch.setattr(cnn, "choose", lambda *_: way)
    population = case.population()
    assert [group.size for group in population.groups] == [3, 2, 2, 1]
    ways = {layer.way for group in population.groups for layer in group.networks["q"].cnn.layers}
    assert ways == ({"unfold", "grouped"} if way == "default" else {way})
    born = [population.state(i).online for i in range(population.size)]
    for requests, samples in rounds(case, population):
        population.learn(samples, requests)
    assert population.alive.all()
    assert_padding_is_zero(population)
    for i, expected in enumerate(trained_alone(name)):
        state = population.state(i)
        assert state.updates == ROUNDS * case.updates[i]
        for part in PARTS:
            got = getattr(state, part)
            assert set(got) == set(expected[part])
            for segment, value in got.items():
                error = (value - expected[part][segment]).abs().max().item()
                assert error < 1e-9, (i, part, segment, error)
        for segment, value in state.online.items():  # it did learn, everywhere
            assert (value - born[i][segment]).abs().max() > 1e-4, (i, segment)


def test_a_reference_with_another_stride_would_be_noticed():
    """The two cases on the same images must not agree, or the comparison above says nothing."""
    first, second = (CASES[name].population() for name in list(CASES)[:2])
    images = torch.randint(0, 256, (3, 2, 4, 10, 10), dtype=torch.uint8)
    values = [population.groups[0].online["q"](images) for population in (first, second)]
    assert (values[0] - values[1]).abs().max() > 1e-2
