"""DQN's signal against autograd on the plain loss, its policy and its exploration schedule."""

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from evorl.algorithms.base import Batch
from evorl.algorithms.dqn import DQN, epsilon
from evorl.genome import Architecture
from evorl.networks.layout import Layout, signature
from evorl.networks.masks import make_masks
from evorl.networks.spec import NetworkSpec
from evorl.networks.stacked import Network
from evorl.networks.views import layer_views

torch.set_num_threads(1)

SIZE, BATCH, ACTIONS = 3, 12, 4


def setup():
    """(network, online, target, batch) of three agents in float64."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    architecture = Architecture((8,), "tanh", dueling=True)
    layout = Layout(NetworkSpec(5, ACTIONS), signature(architecture))
    live = make_masks([architecture] * SIZE, (8,), (SIZE,), torch.float64)
    batch = Batch(
        obs=randn(SIZE, BATCH, 5),
        action=torch.randint(0, ACTIONS, (SIZE, BATCH), generator=generator),
        reward=2 * randn(SIZE, BATCH),
        next_obs=randn(SIZE, BATCH, 5),
        discount=torch.rand((SIZE, BATCH), generator=generator, dtype=torch.float64).round(),
        weight=torch.rand((SIZE, BATCH), generator=generator, dtype=torch.float64) / BATCH,
    )
    online, target = (
        layer_views(layout.views(randn(SIZE, layout.length)), live),
        layer_views(layout.views(randn(SIZE, layout.length)), live),
    )
    return Network(layout, (False,)), online, target, batch


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("loss_kind", ["huber", "mse"])
def test_signal_is_the_gradient_of_the_plain_loss(double, loss_kind):
    network, online, target, batch = setup()
    algorithm = DQN(double, loss_kind)
    signal = algorithm.signal(network, online, target, batch)
    kind = (
        torch.nn.functional.smooth_l1_loss
        if loss_kind == "huber"
        else (torch.nn.functional.mse_loss)
    )
    losses = algorithm.loss(signal.td_error, batch.weight)
    for i in range(SIZE):
        values = network.forward(online, batch.obs)[0][i].T.requires_grad_()  # [B, A]
        next_target = network.forward(target, batch.next_obs)[0][i].T
        next_online = network.forward(online, batch.next_obs)[0][i].T
        chooser = next_online if double else next_target
        future = next_target[torch.arange(BATCH), chooser.argmax(1)]
        goal = batch.reward[i] + batch.discount[i] * future
        chosen = values[torch.arange(BATCH), batch.action[i]]
        loss = (kind(chosen, goal, reduction="none") * batch.weight[i]).sum()
        (gradient,) = torch.autograd.grad(loss, values)
        torch.testing.assert_close(signal.td_error[i], chosen - goal, rtol=0, atol=1e-12)
        torch.testing.assert_close(signal.gradient[i].T, gradient, rtol=0, atol=1e-12)
        torch.testing.assert_close(losses[i], loss, rtol=0, atol=1e-12)
    errors = signal.td_error.abs()
    assert (errors > 1).any()
    assert (errors < 1).any()


def test_signal_of_one_pass_equals_its_own_saved_pass():
    """With double Q-learning both observations share a pass; the backward pass sees only one."""
    network, online, target, batch = setup()
    signal = DQN(True).signal(network, online, target, batch)
    _, saved = network.forward(online, batch.obs)
    torch.testing.assert_close(
        network.layout.join(network.backward(online, signal.saved, signal.gradient)),
        network.layout.join(network.backward(online, saved, signal.gradient)),
        rtol=0,
        atol=1e-12,
    )


def test_double_and_single_differ():
    network, online, target, batch = setup()
    errors = [DQN(d).signal(network, online, target, batch).td_error for d in (False, True)]
    # single takes the largest value, so its goal is never below double's
    assert (errors[0] <= errors[1] + 1e-12).all()
    assert (errors[0] < errors[1] - 1e-3).any()


def test_no_discount_no_future():
    network, online, target, batch = setup()
    batch = batch._replace(discount=torch.zeros_like(batch.discount))
    wild = target._replace(head_weight=target.head_weight * 1e6)
    first = DQN().signal(network, online, target, batch).td_error
    assert torch.equal(first, DQN().signal(network, online, wild, batch).td_error)


def test_samples_without_weight_have_no_gradient_and_no_loss():
    network, online, target, batch = setup()
    weight = batch.weight.clone()
    weight[:, 5:] = 0
    batch = batch._replace(
        weight=weight, reward=batch.reward.index_fill(1, torch.arange(5, 12), 9e9)
    )
    for kind in ("huber", "mse"):
        algorithm = DQN(loss_kind=kind)
        signal = algorithm.signal(network, online, target, batch)
        assert not signal.gradient[:, :, 5:].any()
        own = algorithm.loss(signal.td_error[:, :5], weight[:, :5])
        torch.testing.assert_close(algorithm.loss(signal.td_error, weight), own)


def test_loss_by_hand():
    errors = torch.tensor([[0.5, -3.0, 1.0]])
    weight = torch.tensor([[1.0, 2.0, 0.5]])
    assert DQN().loss(errors, weight).item() == pytest.approx(0.125 + 2 * 2.5 + 0.5 * 0.5)
    assert DQN(loss_kind="mse").loss(errors, weight).item() == pytest.approx(0.25 + 18 + 0.5)


def test_act_is_greedy_where_not_exploring():
    draw = np.random.default_rng(0)
    values = torch.from_numpy(draw.normal(size=(SIZE, ACTIONS, 50)))
    explore = draw.random((SIZE, 50)) < 0.3
    random = draw.integers(0, ACTIONS, (SIZE, 50))
    actions = DQN().act(values, explore, random)
    assert actions.dtype == np.int64
    for i, n in np.ndindex(SIZE, 50):
        best = int(np.argmax(values[i, :, n].numpy()))
        assert actions[i, n] == (random[i, n] if explore[i, n] else best)


def test_epsilon_is_linear_then_flat():
    start, end = np.array([1.0, 0.5, 0.2]), np.array([0.1, 0.5, 0.4])
    duration = np.array([1000.0, 10.0, 200.0])

    def at(*steps):
        return epsilon(np.array(steps), start, end, duration).tolist()

    assert at(0, 0, 0) == [1.0, 0.5, 0.2]
    assert at(500, 5, 100) == pytest.approx([0.55, 0.5, 0.3])
    assert at(250, 1, 150) == pytest.approx([0.775, 0.5, 0.35])
    assert at(1000, 10, 200) == pytest.approx([0.1, 0.5, 0.4])
    assert at(1001, 10**9, 10**9) == at(1000, 10, 200)


class Table:
    """A network whose outputs are its parameters."""

    def forward(self, values, obs):
        return values, None


def test_the_algorithm_of_the_documentation(monkeypatch):
    page = Path(__file__).parent.parent.parent / "docs" / "your_algorithm.md"
    (code,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    module = ModuleType("documented")
    monkeypatch.setitem(sys.modules, "documented", module)  # where dataclass looks
    exec(code, vars(module))
    torch.manual_seed(0)
    online = 3 * torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    target = torch.randn(2, 3, 5, dtype=torch.float64)
    action, reward = torch.randint(3, (2, 5)), torch.randn(2, 5, dtype=torch.float64)
    discount, weight = torch.full((2, 5), 0.9), torch.rand(2, 5, dtype=torch.float64)
    batch = Batch(None, action, reward, None, discount, weight)
    signal = module.SoftDQN().signal(Table(), online.detach(), target, batch)
    goal = reward + 0.9 * 0.1 * torch.logsumexp(target / 0.1, 1)
    chosen = online.gather(1, action.unsqueeze(1)).squeeze(1)
    loss = torch.nn.functional.huber_loss(chosen, goal, reduction="none")
    (gradient,) = torch.autograd.grad((loss * weight).sum(), online)
    torch.testing.assert_close(signal.gradient, gradient, rtol=1e-6, atol=1e-6)
