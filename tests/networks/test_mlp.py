"""The hand-written backward pass against autograd, LayerNorm, and gated layers."""

import itertools

import pytest
import torch

from evorl.genome import ACTIVATIONS, Architecture
from evorl.networks.layout import Layout, shapes, signature
from evorl.networks.masks import LayerMask, layers_with_skips, make_masks, needed_rows
from evorl.networks.mlp import StackedMLP, _normalise
from evorl.networks.spec import NetworkSpec
from evorl.networks.stacked import Network
from evorl.networks.views import layer_views

torch.set_num_threads(1)

PROBLEM = NetworkSpec(inputs=5, outputs=3)

# who lives in a group: (hidden, gated) of each
UNEVEN = [((12, 30, 7), (False,) * 3), ((16, 20, 8), (False,) * 3)]  # in layers 16, 32 and 8 wide
ALIKE = [((12, 16), (False, False)), ((16, 9), (False, False))]
ABSENT = [((9, 16, 10), (False, False, False)), ((13,), (False,))]
GATED = [((14, 14), (False, True)), ((16, 16), (False, True))]
EVERYTHING = [
    ((9, 9, 9), (False, True, True)),
    ((16, 11, 11), (False, False, True)),
    ((12, 16), (False, False)),
    ((13,), (False,)),
]


def random_weights(layout, architecture, seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes(layout.problem, architecture).items()
    }


def stack(architectures, always_blend=False, depth=0):
    """(network, live, theta) with random weights, also for gates, scales and shifts."""
    depth = max([depth, *(a.depth for a in architectures)])
    assert architectures == sorted(architectures, key=lambda a: -a.depth)
    widths = signature(architectures[0]).widths
    if depth > len(widths) or any(a.depth < depth or any(a.gated) for a in architectures):
        widths = (max(widths),) * depth
    layout = Layout(PROBLEM, signature(architectures[0])._replace(widths=widths))
    rows = needed_rows(architectures, depth)
    blended = layers_with_skips(architectures, rows)
    if always_blend:
        rows = (len(architectures),) * depth
        blended = tuple(k > 0 for k in range(depth))
    theta = [layout.pack(random_weights(layout, a, i)) for i, a in enumerate(architectures)]
    live = make_masks(architectures, widths, rows, torch.float64)
    return Network(layout, blended), live, torch.stack(theta)


def cast(live, dtype):
    """The masks in another type."""
    return tuple(LayerMask(*(part.to(dtype) for part in mask)) for mask in live)


def randn(*shape, seed=99):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("who", [ALIKE, UNEVEN, ABSENT, GATED, EVERYTHING])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_backward_is_autograd(activation, who):
    for layer_norm, dueling, always_blend in itertools.product([False, True], repeat=3):
        if always_blend and who is UNEVEN:
            continue  # what goes in must be as wide as what comes out
        architectures = [
            Architecture(hidden, activation, layer_norm, dueling, gated) for hidden, gated in who
        ]
        network, live, theta = stack(architectures, always_blend)
        theta.requires_grad_()
        x = randn(len(who), 7, PROBLEM.inputs).requires_grad_()
        weights = layer_views(network.layout.views(theta), live)
        values, saved = network.forward(weights, x)
        assert values.shape == (len(who), PROBLEM.actions, 7)
        upstream = randn(*values.shape, seed=1)
        by_theta, by_x = torch.autograd.grad((values * upstream).sum(), (theta, x))
        with torch.no_grad():
            found = network.layout.join(network.backward(weights, saved, upstream))
            first = network.mlp.backward(weights, saved.mlp, upstream)[1]
        masks = torch.stack([network.layout.mask(a) for a in architectures])
        # Autograd on LayerNorm's mean leaks into the padding; the written-out pass must not.
        torch.testing.assert_close(found[masks], by_theta[masks], rtol=0, atol=1e-10)
        by_first = torch.bmm(first, weights.hidden[0].weight.mT)
        torch.testing.assert_close(by_first, by_x, rtol=0, atol=1e-10)
        assert not found[~masks].any()
        assert found[masks].count_nonzero() > 0.5 * masks.sum()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_two_observations_in_one_pass_are_two_passes(activation):
    architectures = [Architecture(h, activation, True, True, gated) for h, gated in EVERYTHING]
    network, live, theta = stack(architectures)
    weights = layer_views(network.layout.views(theta), live)
    first, second = randn(2, len(architectures), 6, PROBLEM.inputs)
    second = second[:, :4]
    upstream = randn(len(architectures), PROBLEM.actions, 6, seed=2)
    values, others, kept = network.forward_two(weights, first, second)
    own, saved = network.forward(weights, first)
    close = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(values, own, **close)
    torch.testing.assert_close(others, network.forward(weights, second)[0], **close)
    torch.testing.assert_close(
        network.layout.join(network.backward(weights, kept, upstream)),
        network.layout.join(network.backward(weights, saved, upstream)),
        **close,
    )


def test_one_hot_observations():
    problem = NetworkSpec(inputs=4, outputs=2, one_hot=True)
    layout = Layout(problem, signature(Architecture((8,))))
    network = Network(layout, (False,))
    theta = layout.pack(random_weights(layout, Architecture((8,)), 0)).unsqueeze(0)
    live = make_masks([Architecture((8,))], (8,), (1,), torch.float64)
    weights = layer_views(layout.views(theta), live)
    values, _ = network.forward(weights, torch.tensor([[2, 0, 3]]))
    own = layout.views(theta)
    rows = own["hidden0.weight"][0][[2, 0, 3]] + own["hidden0.bias"][0]
    expected = rows.relu() @ own["head.weight"][0].T + own["head.bias"][0]
    torch.testing.assert_close(values[0].T, expected)


@pytest.mark.parametrize("units", [2, 7, 16, 33, 64])
@pytest.mark.parametrize("offset", [0.0, 1000.0, -1000.0])
def test_layer_norm_stays_accurate_at_an_offset(units, offset):
    """Against nn.LayerNorm on the same float32 numbers, and its exact value in float64."""
    (width,) = signature(Architecture((units,))).widths
    live = make_masks([Architecture((units,))], (width,), (1,))
    x = torch.zeros(1, 50, width)
    x[:, :, :units] = randn(1, 50, units).float() + offset
    found = _normalise(x, live[0]).normal
    assert not found[:, :, units:].any()
    own = x[:, :, :units]
    exact = torch.nn.LayerNorm(units, dtype=torch.float64)(own.double())
    torch_error = (torch.nn.LayerNorm(units)(own).double() - exact).abs().max().item()
    error = (found[:, :, :units].double() - exact).abs().max().item()
    assert error < max(2 * torch_error, 2e-3 if offset else 1e-5)


def test_layer_norm_network_with_shifted_inputs():
    """A whole float32 layer whose inputs are shifted by 1000, against Linear and LayerNorm."""
    architecture = Architecture((24,), "tanh", layer_norm=True)
    network, live, theta = stack([architecture])
    live = cast(live, torch.float32)
    weights = layer_views(network.layout.views(theta.float()), live)
    x = randn(1, 40, PROBLEM.inputs).float() + 1000
    values, _ = network.forward(weights, x)
    own = {k: v.double() for k, v in network.layout.unpack(theta[0].float(), architecture).items()}
    before = x[0].double() @ own["hidden0.weight"] + own["hidden0.bias"]
    normal = torch.nn.functional.layer_norm(
        before, (24,), own["hidden0.scale"], own["hidden0.shift"]
    )
    expected = normal.tanh() @ own["head.weight"].T + own["head.bias"]
    assert before.abs().mean() > 500
    torch.testing.assert_close(values[0].T.double(), expected, rtol=0, atol=1e-4)


def closed_gate(activation, layer_norm, dtype, depths):
    """One network twice: without a second layer, and with one whose gate is 0.

    For each (weights, live, values, network, saved), in layouts of these depths.
    """
    without = Architecture((16,), activation, layer_norm)
    within = Architecture((16, 16), activation, layer_norm, gated=(False, True))
    for architecture, depth in zip((without, within), depths, strict=True):
        network, live, _ = stack([architecture] * 2, depth=depth)
        own = random_weights(network.layout, architecture, 7)
        own |= random_weights(network.layout, without, 7)
        if architecture is within:
            own["hidden1.gate"].zero_()
        live = cast(live, dtype)
        theta = network.layout.pack(own).repeat(2, 1).to(dtype)
        weights = layer_views(network.layout.views(theta), live)
        x = randn(2, 9, PROBLEM.inputs).to(dtype)
        values, saved = network.forward(weights, x)
        yield weights, live, values, network, saved


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_closed_gate_is_exact_and_can_open(activation, layer_norm, dtype):
    """With gate 0 the outputs keep their bits, and the gate has a gradient at once."""
    before, after = closed_gate(activation, layer_norm, dtype, depths=(2, 2))
    assert torch.equal(before[2], after[2])
    weights, _, values, network, saved = after
    upstream = randn(*values.shape, seed=3).to(dtype)
    found = network.backward(weights, saved, upstream)
    assert found["hidden1.gate"].abs().min() > 1e-3
    assert not found["hidden1.weight"].any()  # they wait for the gate to open


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_closed_gate_in_a_deeper_layout_is_exact(activation):
    """The layout grows with the layer: every segment after it lies elsewhere in the row."""
    before, after = closed_gate(activation, True, torch.float32, depths=(1, 2))
    assert torch.equal(before[2], after[2])


def test_values_do_not_depend_on_deeper_neighbours():
    shallow = Architecture((16,), "gelu", layer_norm=True)
    alone, live, theta = stack([shallow, shallow])
    deep, deep_live, deep_theta = stack([shallow, shallow], depth=3)
    x = randn(2, 9, PROBLEM.inputs)
    assert isinstance(deep.mlp, StackedMLP)
    assert deep.mlp.blended == (False, True, True)
    torch.testing.assert_close(
        alone.forward(layer_views(alone.layout.views(theta), live), x)[0],
        deep.forward(layer_views(deep.layout.views(deep_theta), deep_live), x)[0],
        rtol=0,
        atol=1e-13,
    )
