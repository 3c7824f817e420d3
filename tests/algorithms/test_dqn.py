"""DQN's gradient against plain modules and its own loss, its policy and its exploration."""

import numpy as np
import pytest
import torch
from torch.nn.functional import huber_loss, mse_loss

from evorl.algorithms.base import Algorithm, Hyperparameters
from evorl.algorithms.dqn import DQN
from evorl.algorithms.hyperparameters import OffPolicy
from evorl.envs.spaces import ActionSpec
from evorl.errors import ConfigError
from evorl.experience.transitions import Batch
from evorl.genome import Architecture
from evorl.networks.layout import network_part, signature
from evorl.networks.spec import NetworkSpec
from evorl.population.grouping import Kind
from evorl.population.update import compute_gradient
from tests.reference import LoneNetwork, genome, population_of

torch.set_num_threads(1)

SPEC = NetworkSpec(5, 4)
BATCH = 12

# Widths, depths and gates mixed in one matrix, 32 wide and three layers deep.
SHAPES = [((9, 9, 20), (False, True, False)), ((32, 17), ()), ((8,), ())]


def group_of(algorithm, activation="tanh", layer_norm=False, dueling=True):
    """Agents of these shapes in one group, gates open, their target networks other ones."""
    architectures = [
        Architecture(hidden, activation, layer_norm, dueling, gated) for hidden, gated in SHAPES
    ]
    genomes = [genome(i, own) for i, own in enumerate(architectures)]
    kind = Kind((signature(architectures[0])._replace(widths=(32,) * 3),), BATCH, (True,))
    options = {"kinds": [kind] * len(genomes), "dtype": torch.float64}
    population = population_of(genomes, SPEC, algorithm, **options)
    other = population_of(genomes, SPEC, algorithm, seed=1, **options)
    states = []
    for i in range(len(genomes)):
        online, target = population.state(i).online, other.state(i).online
        for name in online:
            if name.endswith("gate"):
                online[name], target[name] = online[name] + 0.4, target[name] - 0.3
        states.append(population.state(i)._replace(online=online, target=target))
    population.rebuild(genomes, states, [kind] * len(genomes))
    (group,) = population.groups
    return group


def random_batch():
    """Errors above and below 1, and some windows that end."""
    generator, agents = torch.Generator().manual_seed(0), len(SHAPES)

    def randn(*shape):
        return torch.randn(agents, BATCH, *shape, generator=generator, dtype=torch.float64)

    def rand():
        return torch.rand(agents, BATCH, generator=generator, dtype=torch.float64)

    return Batch(
        obs=randn(SPEC.inputs),
        action=torch.randint(0, SPEC.outputs, (agents, BATCH), generator=generator),
        reward=2 * randn(),
        next_obs=randn(SPEC.inputs),
        discount=rand().round(),
        weight=rand() / BATCH,
        noise=randn(0),
    )


def alone(group, i):
    """(online, target) of one agent, as plain modules."""
    found = []
    state = group.state(i)
    for part in (state.online, state.target):
        module = LoneNetwork(SPEC, group.genomes[i].architectures["q"])
        module.load(network_part(part, "q"))
        found.append(module)
    return found


def td_errors(algorithm, group, batch):
    return compute_gradient(group, algorithm, batch).priority


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("loss_kind", ["huber", "mse"])
def test_the_gradient_is_that_of_plain_modules(double, loss_kind):
    algorithm = DQN(double=double, loss_kind=loss_kind)
    group, batch = group_of(algorithm), random_batch()
    found = compute_gradient(group, algorithm, batch)
    losses = algorithm.loss_of(found.priority, batch.weight)
    kind = huber_loss if loss_kind == "huber" else mse_loss
    every = torch.arange(BATCH)
    for i in range(group.size):
        online, target = alone(group, i)
        following = target(batch.next_obs[i])
        chooser = online(batch.next_obs[i]) if double else following
        future = following[every, chooser.argmax(1)].detach()
        goal = batch.reward[i] + batch.discount[i] * future
        chosen = online(batch.obs[i])[every, batch.action[i]]
        loss = (kind(chosen, goal, reduction="none") * batch.weight[i]).sum()
        loss.backward()
        gradient = {f"q.{n}": value for n, value in online.read(lambda p: p.grad).items()}
        torch.testing.assert_close(found.priority[i], chosen - goal, rtol=0, atol=1e-12)
        torch.testing.assert_close(
            found.gradient[i], group.layout.pack(gradient), rtol=0, atol=1e-12
        )
        torch.testing.assert_close(losses[i], loss, rtol=0, atol=1e-12)
    errors = found.priority.abs()
    assert (errors > 1).any()
    assert (errors < 1).any()


class ByAutograd(DQN):
    """The same loss, but as one of its own: it is differentiated."""

    def loss(self, networks, targets, batch, hp):
        return super().loss(networks, targets, batch, hp)


class Renamed(DQN):
    """Nothing of its own that counts."""

    extra: int = 3


class Own(OffPolicy, Algorithm):
    """A loss and no closed form."""

    def loss(self, networks, targets, batch, hp):
        raise NotImplementedError


class Closed(Own):
    """A closed form for the loss above."""

    def gradients(self, networks, targets, batch, hp):
        raise NotImplementedError


def test_a_closed_form_belongs_to_its_loss():
    forms = {DQN: True, Renamed: True, ByAutograd: False, Own: False, Closed: True}
    assert {kind: kind.has_closed_form() for kind in forms} == forms
    assert not Algorithm.has_closed_form()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("loss_kind", ["huber", "mse"])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_closed_form_is_the_loss_differentiated(
    activation, layer_norm, dueling, loss_kind, double
):
    """Whole rows, padding included."""
    options = {"double": double, "loss_kind": loss_kind}
    group, batch = group_of(DQN(), activation, layer_norm, dueling), random_batch()
    close = {"rtol": 0, "atol": 1e-12}
    closed = compute_gradient(group, DQN(**options), batch)
    gradient = closed.gradient.clone()  # the next one is written into the same memory
    by_autograd = compute_gradient(group, ByAutograd(**options), batch)
    torch.testing.assert_close(gradient, by_autograd.gradient, **close)
    torch.testing.assert_close(closed.priority, by_autograd.priority, **close)
    losses = DQN(**options).loss_of(closed.priority, batch.weight)
    torch.testing.assert_close(losses, by_autograd.loss, **close)
    own = torch.stack([group.layout.mask(g.architectures) for g in group.genomes])
    assert not gradient[~own].any()
    assert gradient[own].count_nonzero() > 0.5 * own.sum()


@pytest.mark.parametrize("kind", [DQN, ByAutograd])
def test_double_and_single_differ(kind):
    single, double = kind(double=False), kind(double=True)
    group, batch = group_of(single), random_batch()
    errors = [td_errors(algorithm, group, batch) for algorithm in (single, double)]
    # single takes the largest value, so its goal is never below double's
    assert (errors[0] <= errors[1] + 1e-12).all()
    assert (errors[0] < errors[1] - 1e-3).any()


@pytest.mark.parametrize("kind", [DQN, ByAutograd])
def test_no_discount_no_future(kind):
    group, batch = group_of(kind()), random_batch()
    batch = batch._replace(discount=torch.zeros_like(batch.discount))
    first = td_errors(kind(), group, batch)
    group.matrices.target.mul_(1e3)
    assert torch.equal(first, td_errors(kind(), group, batch))


@pytest.mark.parametrize("kind", [DQN, ByAutograd])
@pytest.mark.parametrize("loss_kind", ["huber", "mse"])
def test_samples_without_weight_have_no_gradient_and_no_loss(kind, loss_kind):
    algorithm = kind(loss_kind=loss_kind)
    group, batch = group_of(algorithm), random_batch()
    first = Batch(*(field[:, :5] for field in batch))
    expected = compute_gradient(group, algorithm, first)
    gradient = expected.gradient.clone()
    weight = batch.weight.clone()
    weight[:, 5:] = 0
    reward = batch.reward.index_fill(1, torch.arange(5, BATCH), 9e9)
    found = compute_gradient(group, algorithm, batch._replace(weight=weight, reward=reward))
    torch.testing.assert_close(found.gradient, gradient, rtol=0, atol=1e-12)
    own = algorithm.loss_of(expected.priority, first.weight)
    torch.testing.assert_close(algorithm.loss_of(found.priority, weight), own)


def test_loss_by_hand():
    errors = torch.tensor([[0.5, -3.0, 1.0]])
    weight = torch.tensor([[1.0, 2.0, 0.5]])
    assert DQN().loss_of(errors, weight).item() == pytest.approx(0.125 + 2 * 2.5 + 0.5 * 0.5)
    assert DQN(loss_kind="mse").loss_of(errors, weight).item() == pytest.approx(0.25 + 18 + 0.5)


class Table:
    """Networks whose outputs are given, and which actions are allowed."""

    def __init__(self, values, allowed=None):
        self.values, self.allowed = values, allowed

    def __getitem__(self, name):
        assert name == "q"
        return self

    def __call__(self, obs):
        return self.values

    def mask(self, obs):
        return self.allowed


def test_act_is_greedy_where_not_exploring():
    draw = np.random.default_rng(0)
    values = torch.from_numpy(draw.normal(size=(3, 50, 4)))
    noise = DQN().noise(draw, (3, 50), ActionSpec("discrete", 4))
    told = {name: torch.from_numpy(part) for name, part in noise.items()}
    rates = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    hp = Hyperparameters((), torch.zeros(0, 3))
    actions = DQN().act(Table(values), torch.zeros(3, 50, 5), hp, told, rates)
    greedy = DQN().greedy(Table(values), torch.zeros(3, 50, 5))
    assert actions.dtype == greedy.dtype == torch.int64
    explored = 0
    for i, n in np.ndindex(3, 50):
        explore = noise["chance"][i, n] < rates[i]
        best = int(np.argmax(values[i, n].numpy()))
        assert greedy[i, n] == best
        assert actions[i, n] == (noise["action"][i, n] if explore else best)
        explored += explore
    assert 50 < explored < 80


def test_epsilon_is_linear_then_flat():
    hp = {
        "epsilon_start": np.array([1.0, 0.5, 0.2]),
        "epsilon_end": np.array([0.1, 0.5, 0.4]),
        "epsilon_steps": np.array([1000.0, 10.0, 200.0]),
    }

    def at(*steps):
        return DQN().exploration(hp, np.array(steps)).tolist()

    assert at(0, 0, 0) == [1.0, 0.5, 0.2]
    assert at(500, 5, 100) == pytest.approx([0.55, 0.5, 0.3])
    assert at(250, 1, 150) == pytest.approx([0.775, 0.5, 0.35])
    assert at(1000, 10, 200) == pytest.approx([0.1, 0.5, 0.4])
    assert at(1001, 10**9, 10**9) == at(1000, 10, 200)


def test_one_network_of_q_values_with_a_soft_or_a_periodic_target():
    (soft,) = DQN().networks(SPEC, ActionSpec("discrete", 7)).values()
    assert soft.spec == NetworkSpec(5, 7, dueling=True)
    assert (soft.lr, soft.max_grad_norm, soft.tau, soft.period) == (
        "lr",
        "max_grad_norm",
        "tau",
        None,
    )
    (periodic,) = DQN(target_update="periodic").networks(SPEC, ActionSpec("discrete", 7)).values()
    assert (periodic.tau, periodic.period) == (None, "target_period")


def test_actions_that_cannot_be_counted_are_refused():
    continuous = ActionSpec("continuous", None, (2,), np.dtype(np.float32))
    with pytest.raises(ConfigError, match=r"dqn takes Discrete actions.* are continuous"):
        DQN().networks(SPEC, continuous)
