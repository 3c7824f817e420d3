"""The optimizer's arithmetic against torch.optim.Adam and clip_grad_norm_."""

import numpy as np
import pytest
import torch

from evorl.algorithms.base import Trained
from evorl.networks.spec import NetworkSpec, ParameterSpec
from evorl.population.optimizer import (
    NEW,
    Coefficients,
    RoundPlanner,
    adam_,
    clip_,
    coefficients,
    idle_networks,
    limits_of,
)

torch.set_num_threads(1)

HP = {
    "lr": np.array([1e-3, 0.1, 3e-4, 1e-2]),
    "tau": np.array([0.01, 1.0, 0.5, 0.005]),
    "target_period": np.array([1.0, 2.0, 5.0, 1000.0]),
    "max_grad_norm": np.array([0.0, 0.5, 10.0, 1e-3]),
}
SIZE, LENGTH = 4, 11
SPEC = NetworkSpec(4, 2)
SOFT = Trained(SPEC, max_grad_norm="max_grad_norm", tau="tau")
PERIODIC = Trained(SPEC, max_grad_norm="max_grad_norm", period="target_period")


def round_of(steps, updates, trained=SOFT, dtype=torch.float64, hp=HP):
    """The coefficients of every update of a network."""
    rows = coefficients(np.array(steps), np.array(updates), hp, [trained])
    for own in torch.from_numpy(rows).to(dtype).squeeze(1):
        yield Coefficients(*own.unbind(0))


def matrices(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SIZE, LENGTH, generator=generator, dtype=dtype)


def test_adam_is_torch_adam_over_uneven_rounds():
    theta = matrices()
    m, v = torch.zeros(2, SIZE, LENGTH, dtype=torch.float64)
    own = [torch.nn.Parameter(row.clone()) for row in theta]
    alone = [torch.optim.Adam([p], lr=lr) for p, lr in zip(own, HP["lr"], strict=True)]
    generator = torch.Generator().manual_seed(1)
    steps = np.zeros(SIZE, dtype=np.int64)
    for number in range(40):
        updates = np.array([3, 1, 0, 2]) if number % 2 else np.array([0, 4, 1, 2])
        for u, c in enumerate(round_of(steps, updates)):
            gradient = torch.randn(SIZE, LENGTH, generator=generator, dtype=torch.float64)
            gradient *= 10.0 ** torch.arange(-6, LENGTH - 6)  # some far below Adam's eps
            gradient[updates <= u] = 0  # as it is in a real round
            for i in np.flatnonzero(updates > u):
                own[i].grad = gradient[i].clone()
                alone[i].step()
            adam_(theta, m, v, gradient.clone(), c, torch.empty_like(theta))
        steps += updates
    for i, (p, optimizer) in enumerate(zip(own, alone, strict=True)):
        state = optimizer.state[p]
        assert state["step"] == steps[i]
        torch.testing.assert_close(theta[i], p.data, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(m[i], state["exp_avg"], rtol=1e-12, atol=0)
        torch.testing.assert_close(v[i], state["exp_avg_sq"], rtol=1e-12, atol=0)


@pytest.mark.parametrize("step", [1, 2, 10, 1000, 100_000, 10_000_000])
def test_bias_correction_at_any_step(step):
    (c,) = round_of([step - 1] * SIZE, [1] * SIZE)
    correction = np.sqrt(1 - 0.999**step)
    expected = -HP["lr"] * correction / (1 - 0.9**step)
    np.testing.assert_allclose(1 / c.divisor.squeeze(1), expected, rtol=1e-14)
    np.testing.assert_allclose(c.eps.squeeze(1), np.full(SIZE, 1e-8 * correction), rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("trained", [SOFT, PERIODIC], ids=["soft", "periodic"])
@pytest.mark.parametrize("gradient_scale", [0.0, 1.0, 1e6])
def test_agents_not_due_keep_every_bit(trained, dtype, gradient_scale):
    theta, target, m = matrices(dtype), matrices(dtype) + 1, matrices(dtype) * 3
    v = matrices(dtype) ** 2
    before = [tensor.clone() for tensor in (theta, target, m, v)]
    gradient = matrices(dtype) * gradient_scale
    for c in round_of([4, 9, 0, 99], [0, 6, 0, 3], trained, dtype):
        adam_(theta, m, v, clip_(gradient.clone(), c.clip), c, torch.empty_like(theta))
        target.lerp_(theta, c.tau)
    for old, new in zip(before, (theta, target, m, v), strict=True):
        assert torch.equal(old[[0, 2]], new[[0, 2]])
    assert not (theta[1] == before[0][1]).any()
    # agent 3 stopped after its third update
    again = [tensor[3:].clone() for tensor in before]
    rows = {name: values[3:] for name, values in HP.items()}
    for c in round_of([99], [3], trained, dtype, rows):
        scratch = torch.empty_like(again[0])
        adam_(again[0], again[2], again[3], clip_(gradient[3:].clone(), c.clip), c, scratch)
    assert torch.equal(again[0], theta[3:])


def test_periodic_targets_are_copied_when_they_are_due():
    found = np.array(
        [c.tau.squeeze(1).numpy() for c in round_of([0, 3, 3, 998], [6, 6, 2, 6], PERIODIC)]
    )
    assert found.T.tolist() == [
        [1, 1, 1, 1, 1, 1],  # every update
        [1, 0, 1, 0, 1, 0],  # at updates 4, 6, 8
        [0, 1, 0, 0, 0, 0],  # at 5, and then it is no longer due
        [0, 1, 0, 0, 0, 0],  # at 1000
    ]


def test_soft_targets_move_when_the_agent_is_due():
    found = np.array([c.tau.squeeze(1).numpy() for c in round_of([0, 3, 3, 9], [1, 2, 0, 2])])
    assert found.T.tolist() == [[0.01, 0], [1, 1], [0, 0], [0.005, 0.005]]


def test_nobody_due_is_a_round_of_nothing():
    rows = coefficients(np.zeros(4, np.int64), np.zeros(4, np.int64), HP, [SOFT, PERIODIC])
    assert rows.shape == (0, 2, 6, 4, 1)


def test_networks_have_coefficients_of_their_own():
    hp = HP | {"other_lr": HP["lr"] * 3}
    bare = Trained(ParameterSpec(), lr="other_lr")  # without a target, and not clipped
    rows = coefficients(np.array([3, 3, 0, 7]), np.array([2, 1, 0, 2]), hp, [SOFT, bare, PERIODIC])
    assert rows.shape == (2, 3, 6, 4, 1)
    for k, (trained, own) in enumerate(((SOFT, HP), (PERIODIC, HP))):
        alone = list(round_of([3, 3, 0, 7], [2, 1, 0, 2], trained, hp=own))
        for mine, theirs in zip(rows[:, 2 * k], alone, strict=True):
            np.testing.assert_array_equal(mine, torch.stack(theirs))
    c = Coefficients(*rows[:, 1, ..., 0].transpose(1, 0, 2))
    np.testing.assert_allclose(c.divisor[0, :2] * 3, rows[0, 0, 2, :2, 0])
    assert not c.tau.any()
    assert np.isinf(c.clip).all()


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e4])
def test_clip_is_clip_grad_norm(scale):
    (c,) = round_of([0] * SIZE, [1] * SIZE)
    gradient = matrices() * scale
    expected = gradient.clone()
    for i, limit in enumerate(HP["max_grad_norm"]):
        if limit > 0:
            parameter = torch.nn.Parameter(torch.zeros(LENGTH, dtype=torch.float64))
            parameter.grad = gradient[i].clone()
            torch.nn.utils.clip_grad_norm_([parameter], limit)
            expected[i] = parameter.grad
    found = clip_(gradient.clone(), c.clip)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
    assert torch.equal(found[0], gradient[0])


def test_clip_leaves_a_zero_gradient():
    (c,) = round_of([0] * SIZE, [1] * SIZE)
    assert not clip_(torch.zeros(SIZE, LENGTH, dtype=torch.float64), c.clip).any()


def test_padding_stays_exactly_zero():
    theta, m, v = torch.zeros(3, SIZE, LENGTH)
    for c in round_of([0] * SIZE, [50] * SIZE, dtype=torch.float32):
        adam_(theta, m, v, torch.zeros(SIZE, LENGTH), c, torch.empty_like(theta))
    assert not torch.stack((theta, m, v)).any()


# weights that came by a mutation


def with_marks(dtype=torch.float64):
    """theta, m and v of agents whose last three weights have just been added."""
    theta, m, v = matrices(dtype), matrices(dtype) * 1e-3, matrices(dtype) ** 2
    m[:, -3:], v[:, -3:] = 0, NEW
    return theta, m, v


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_without_a_mark_get_the_bits_of_plain_adam(dtype):
    plain, marked = with_marks(dtype), with_marks(dtype)
    limits = limits_of(marked[2])
    generator = torch.Generator().manual_seed(1)
    for c in round_of([0, 9, 500, 90_000], [20, 20, 7, 20], dtype=dtype):
        gradient = torch.randn(SIZE, LENGTH, generator=generator, dtype=dtype)
        gradient[:, 0] = 0
        for (theta, m, v), own in ((plain, None), (marked, limits)):
            adam_(theta, m, v, gradient.clone(), c, torch.empty_like(theta), own)
    for left, right in zip(plain, marked, strict=True):
        assert torch.equal(left[:, :-3], right[:, :-3])
    assert not torch.equal(plain[0], marked[0])
    assert (marked[2][:, -3:] < 0).all()
    assert (marked[2][:, :-3] >= 0).all()


@pytest.mark.parametrize(
    "grows", [lambda t: 1e-6 * t, lambda t: 1.2**t, lambda t: 1.0 + (t % 7 == 6)]
)
def test_a_new_weight_moves_by_its_learning_rate_at_most(grows):
    """However its gradient grows; plain Adam would jump."""
    largest = {}
    for marked in (False, True):
        theta, m, v = with_marks()
        if not marked:
            v = v.abs()
        limits = limits_of(v) if marked else None
        moves = []
        for t, c in enumerate(round_of([100_000] * SIZE, [60] * SIZE)):
            before = theta.clone()
            gradient = torch.full_like(theta, grows(t + 1))
            adam_(theta, m, v, gradient, c, torch.empty_like(theta), limits)
            moves.append((theta - before)[:, -3:].abs().amax(1) / torch.from_numpy(HP["lr"]))
        largest[marked] = torch.stack(moves).amax(0)
        assert (moves[0] > 0.9).all()
    assert (largest[True] <= 1 + 1e-9).all()
    assert (largest[False] > 3).all()


def test_a_new_weight_settles_to_plain_adam():
    """After its second moment has caught up, it moves as one that was always there."""
    theta, m, v = with_marks()
    limits = limits_of(v)
    alone = torch.nn.Parameter(theta[0].clone())
    optimizer = torch.optim.Adam([alone], lr=HP["lr"][0])
    generator = torch.Generator().manual_seed(1)
    steps = np.full(SIZE, 1_000_000)
    for number in range(8000):
        gradient = torch.randn(SIZE, LENGTH, generator=generator, dtype=torch.float64)
        (c,) = round_of(steps + number, [1] * SIZE)
        before, old = theta.clone(), alone.detach().clone()
        alone.grad = gradient[0].clone()
        optimizer.step()
        adam_(theta, m, v, gradient, c, torch.empty_like(theta), limits)
    expected = (alone.detach() - old)[-3:]
    torch.testing.assert_close((theta - before)[0, -3:], expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_new_weight_without_a_gradient_stays_where_it_is(dtype):
    theta, m, v = with_marks(dtype)
    limits, before = limits_of(v), theta.clone()
    for c in round_of([5000] * SIZE, [200] * SIZE, dtype=dtype):
        gradient = torch.ones_like(theta)
        gradient[:, -3:] = 0
        adam_(theta, m, v, gradient, c, torch.empty_like(theta), limits)
    assert torch.equal(theta[:, -3:], before[:, -3:])
    assert not m[:, -3:].any()
    assert torch.equal(v[:, -3:], torch.full_like(v[:, -3:], NEW))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_new_weights_of_agents_not_due_keep_every_bit(dtype):
    theta, m, v = with_marks(dtype)
    limits = limits_of(v)
    updates = [3, 3, 3, 3], [0, 5, 0, 2]
    steps, kept = np.full(SIZE, 4000), []
    for due in updates:
        kept.append([tensor.clone() for tensor in (theta, m, v)])
        for c in round_of(steps, due, dtype=dtype):
            adam_(theta, m, v, matrices(dtype), c, torch.empty_like(theta), limits)
        steps = steps + due
    for old, new in zip(kept[1], (theta, m, v), strict=True):
        assert torch.equal(old[[0, 2]], new[[0, 2]])
        assert not torch.equal(old[[1, 3]], new[[1, 3]])
    assert not torch.equal(kept[0][2], kept[1][2])


@pytest.mark.parametrize("seed", range(5))
def test_rounds_planned_ahead_have_the_bits_of_rounds_one_by_one(seed):
    random = np.random.default_rng(seed)
    networks = {"actor": Trained(SPEC, tau="tau", every="delay"), "critic": SOFT}
    trained, hp = list(networks.values()), HP | {"delay": np.array([1.0, 2.0, 2.0, 3.0])}
    parts = [slice(0, 3), slice(3, 4)]
    planner = RoundPlanner(networks, trained, hp, parts, torch.zeros(1))
    steps = np.array([0, 5, 70_000, 10**7])
    patterns = random.integers(0, 9, (3, SIZE))
    for _ in range(60):
        updates = patterns[random.integers(3)]
        for _ in range(random.integers(1, 90)):  # the same again and again, and then another
            planned = planner(steps, updates)
            rows = coefficients(steps, updates, hp, trained)
            for part, own in zip(parts, planned, strict=True):
                wanted = rows[: updates[part].max(), :, :, part]
                assert own.coefficients.is_contiguous()
                assert np.array_equal(own.coefficients.numpy(), wanted.astype(np.float32))
                assert own.idle == idle_networks(wanted, networks)
            made = updates - (random.random(SIZE) < 0.01)  # some may stop early
            steps = steps + np.maximum(made, 0)
