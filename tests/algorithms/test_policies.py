"""Draws, densities and entropies of policies against torch.distributions and definitions."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from evorl.algorithms.policies import (
    Choices,
    Gaussian,
    draw_noise,
    masked,
    normal_log_prob,
    outputs_of,
    spread_of,
    squashed_log_prob,
)
from evorl.envs.spaces import ActionSpec

torch.set_num_threads(1)

BOX = ActionSpec("continuous", None, (2,), np.dtype(np.float32))
seeds = st.integers(0, 2**32 - 1)
sizes_of_choices = st.lists(st.integers(1, 5), min_size=1, max_size=4)
exactly = {"rtol": 1e-12, "atol": 1e-12}


def normals(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def gaussian(seed):
    """A policy of three agents at four places, and actions of two numbers."""
    mean, log_std, action = normals(seed, 3, 3, 4, 2)
    return Gaussian(2 * mean, log_std), 2 * action


def parts_of(policy):
    """The same choices, as distributions."""
    return [Categorical(logits=own) for own in policy.logits.split(policy.sizes, -1)]


def choices(seed, sizes):
    """A policy of three agents at four places, and choices; of a single part without a last
    dimension.
    """
    policy = Choices(2 * normals(seed, 3, 4, sum(sizes)), sizes)
    torch.manual_seed(seed)
    drawn = [part.sample() for part in parts_of(policy)]
    return policy, drawn[0] if len(sizes) == 1 else torch.stack(drawn, -1)


def masks(seed, sizes):
    """Which choices are allowed, [3, 4, C]: in each part at least one."""
    random = np.random.default_rng(seed)
    allowed = random.random((3, 4, sum(sizes))) < 0.5
    starts = np.cumsum(sizes) - sizes
    kept = starts + random.integers(0, sizes, (3, 4, len(sizes)))
    np.put_along_axis(allowed, kept, True, -1)
    return torch.from_numpy(allowed)


@given(seed=seeds)
@settings(deadline=None)
def test_normal_densities_and_entropies(seed):
    policy, action = gaussian(seed)
    expected = Independent(Normal(policy.mean, policy.log_std.exp()), 1)
    torch.testing.assert_close(policy.log_prob(action), expected.log_prob(action), **exactly)
    torch.testing.assert_close(policy.entropy(), expected.entropy(), **exactly)
    torch.testing.assert_close(policy.mode(), expected.mode, **exactly)


def test_a_spread_that_all_places_share_counts_at_each_of_them():
    policy = Gaussian(torch.zeros(3, 4, 2), torch.tensor([[0.5, -1.0]]).expand(3, 1, 2))
    expected = Independent(Normal(policy.mean, policy.log_std.exp()), 1).entropy()
    torch.testing.assert_close(policy.entropy(), expected)


@given(seed=seeds)
@settings(deadline=None)
def test_squashed_densities(seed):
    policy, before = gaussian(seed)
    normal = Independent(Normal(policy.mean, policy.log_std.exp()), 1)
    squash = TanhTransform(cache_size=1)  # remembers what it squashed: atanh would lose digits
    expected = TransformedDistribution(normal, squash).log_prob(squash(before))
    found = squashed_log_prob(policy.mean, policy.log_std, before)
    torch.testing.assert_close(found, expected, **exactly)


def log_slope(before):
    """The logarithm of 1 - tanh², with two hundred digits."""
    with localcontext() as context:
        context.prec = 200
        grown = (2 * Decimal(before)).exp()
        return float((1 - ((grown - 1) / (grown + 1)) ** 2).ln())


@pytest.mark.parametrize("before", [0.0, 1e-9, 0.3, 3.0, 9.0, 19.0, 40.0, 100.0])
@pytest.mark.parametrize("sign", [-1, 1])
def test_squashed_densities_keep_their_digits_at_the_ends_of_tanh(before, sign):
    """From 19 on, tanh is 1 in float64, and the logarithm of 1 - tanh² would be infinite."""
    mean, log_std = torch.tensor([0.3], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    where = torch.tensor([sign * before], dtype=torch.float64, requires_grad=True)
    found = squashed_log_prob(mean, log_std, where)
    expected = Normal(mean, log_std.exp()).log_prob(where.detach()).item() - log_slope(
        sign * before
    )
    assert found.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    (slope,) = torch.autograd.grad(found, where)
    assert slope.item() == pytest.approx(
        0.3 - sign * before + 2 * np.tanh(sign * before), abs=1e-12
    )


def test_squashed_densities_add_up_to_one():
    mean, log_std = (torch.tensor([own], dtype=torch.float64) for own in (0.4, -0.2))
    action = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1]
    density = squashed_log_prob(mean, log_std, torch.atanh(action).unsqueeze(-1)).exp()
    assert torch.trapezoid(density, action).item() == pytest.approx(1.0, abs=1e-6)


@given(seed=seeds, sizes=sizes_of_choices)
@settings(deadline=None)
def test_choices_densities_entropies_and_modes(seed, sizes):
    policy, action = choices(seed, sizes)
    parts = parts_of(policy)
    chosen = [action] if len(sizes) == 1 else action.unbind(-1)
    log_prob = sum(part.log_prob(own) for part, own in zip(parts, chosen, strict=True))
    torch.testing.assert_close(policy.log_prob(action), log_prob, **exactly)
    entropy = sum(part.entropy() for part in parts)
    torch.testing.assert_close(policy.entropy(), entropy, **exactly)
    best = torch.stack([part.probs.argmax(-1) for part in parts], -1)
    torch.testing.assert_close(policy.mode(), best.squeeze(-1) if len(sizes) == 1 else best)


@given(seed=seeds, sizes=sizes_of_choices)
@settings(deadline=None)
def test_what_a_mask_forbids_has_probability_0_and_the_rest_is_as_without_it(seed, sizes):
    policy, _ = choices(seed, sizes)
    allowed = masks(seed, sizes)
    logits = policy.logits.requires_grad_()
    policy = Choices(masked(logits, allowed), sizes)
    forbidden = logits.detach().masked_fill(~allowed, -torch.inf)
    entropy = torch.zeros(3, 4, dtype=torch.float64)
    starts = np.cumsum(sizes) - sizes
    for start, size in zip(starts, sizes, strict=True):
        own = slice(start, start + size)
        one = Choices(policy.logits[..., own], [size])
        expected = forbidden[..., own].softmax(-1)
        each = [one.log_prob(torch.full((3, 4), c)).exp() for c in range(size)]
        probabilities = torch.stack(each, -1)
        assert (probabilities[~allowed[..., own]] == 0).all()
        torch.testing.assert_close(probabilities, expected, **exactly)
        entropy += torch.special.entr(expected).sum(-1)
    torch.testing.assert_close(policy.entropy(), entropy, **exactly)
    (slope,) = torch.autograd.grad(policy.entropy().sum(), logits)
    assert slope.isfinite().all()
    assert (slope[~allowed] == 0).all()


@given(seed=seeds, sizes=sizes_of_choices)
@settings(deadline=None)
def test_what_a_mask_forbids_is_never_chosen(seed, sizes):
    action = ActionSpec("multidiscrete", parts=tuple(sizes))
    allowed = masks(seed, sizes)
    logits = torch.where(allowed, -50.0, 50.0)  # it would be, without
    policy = Choices(masked(logits, allowed).float(), sizes)
    noise = draw_noise(np.random.default_rng(seed), (20, 3, 4), action)
    drawn = [
        own.draw(torch.from_numpy(each)) for own, each in zip([policy] * 20, noise, strict=True)
    ]
    starts = torch.from_numpy(np.cumsum(sizes) - sizes)
    for chosen in (*drawn, policy.mode()):
        places = starts + (chosen.unsqueeze(-1) if len(sizes) == 1 else chosen)
        assert allowed.gather(-1, places).all()


def test_a_mask_that_forbids_everything_gives_no_nan():
    """As in the padding of a batch, where observations are zeros."""
    policy = Choices(masked(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)), [3])
    assert policy.log_prob(torch.tensor([0, 2])).isfinite().all()
    assert policy.entropy().isfinite().all()


def assert_frequencies(counts, probabilities):
    """Within five standard deviations of what is expected."""
    draws = counts.sum()
    expected = draws * probabilities
    spread = np.sqrt(expected * (1 - probabilities))
    np.testing.assert_array_less(np.abs(counts - expected), 5 * spread + 1e-9)


@pytest.mark.parametrize(
    "action", [ActionSpec("discrete", 4), ActionSpec("multidiscrete", parts=(3, 2))]
)
def test_draws_come_as_often_as_they_are_likely(action):
    sizes = list(action.choices)
    logits = torch.tensor([1.0, -0.5, 0.3, -2.0, 0.7])[: sum(sizes)]
    noise = draw_noise(np.random.default_rng(5), (100_000,), action)
    assert noise.dtype == np.float32
    drawn = Choices(logits.expand(100_000, -1), sizes).draw(torch.from_numpy(noise)).numpy()
    parts = [own.softmax(-1).double().numpy() for own in logits.split(sizes)]
    joint = parts[0] if len(parts) == 1 else np.outer(*parts)
    counts = np.zeros(sizes)
    np.add.at(counts, tuple(drawn.T) if drawn.ndim == 2 else drawn, 1)
    assert_frequencies(counts, joint)


def test_normal_draws_have_the_mean_and_the_spread():
    noise = torch.from_numpy(draw_noise(np.random.default_rng(5), (100_000,), BOX)).double()
    mean, log_std = torch.tensor([[0.5, -3.0]]), torch.tensor([[-1.0, 1.0]])
    policy = Gaussian(mean, log_std)
    drawn = policy.draw(noise)
    std = log_std.exp()
    assert ((drawn.mean(0) - mean).abs() < 5 * std / 100_000**0.5).all()
    assert (drawn.std(0) / std - 1).abs().max() < 0.02
    torch.testing.assert_close(policy.draw(torch.zeros(1, 2)), policy.mode())


def test_outputs_and_spreads_of_each_kind_of_action():
    parted = ActionSpec("multidiscrete", parts=(3, 2))
    assert [outputs_of(own) for own in (BOX, ActionSpec("discrete", 4), parted)] == [2, 4, 5]
    assert spread_of(parted, 0.5) == {}
    spread = spread_of(BOX, 0.5)["log_std"]
    assert (spread.size, spread.initial) == (2, 0.5)


def test_a_normal_density_by_hand():
    found = normal_log_prob(torch.zeros(1), torch.full((1,), np.log(2.0)), torch.tensor([2.0]))
    assert found.item() == pytest.approx(-0.5 - np.log(2 * np.sqrt(2 * np.pi)))
