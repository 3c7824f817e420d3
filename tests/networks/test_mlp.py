"""The hand-written backward pass against autograd, LayerNorm, and gated layers."""

import itertools

import pytest
import torch

from evorl.genome import ACTIVATIONS, Architecture
from evorl.networks.layers import LayerMask, layer_views, layers_with_skips, make_masks, needed_rows
from evorl.networks.layout import Layout, network_part, row_shapes, signature
from evorl.networks.mlp import StackedMLP, _normalise
from evorl.networks.spec import NetworkSpec
from evorl.networks.stacked import StackedNetwork

torch.set_num_threads(1)

SPEC = NetworkSpec(inputs=5, outputs=3)

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
        for name, shape in row_shapes(layout.specs, {"q": architecture}).items()
    }


def stacked(layout, skips):
    """The network of a layout that has one."""
    return StackedNetwork(layout.networks["q"], skips)


def views_of(layout, theta, masks):
    return layer_views(layout.views(theta)["q"], masks)


def stack(architectures, all_skip=False, depth=0):
    """(network, layout, masks, theta), weights random, also those of gates, scales and shifts."""
    depth = max([depth, *(a.depth for a in architectures)])
    assert architectures == sorted(architectures, key=lambda a: -a.depth)
    widths = signature(architectures[0]).widths
    if depth > len(widths) or any(a.depth < depth or any(a.gated) for a in architectures):
        widths = (max(widths),) * depth
    layout = Layout({"q": SPEC}, {"q": signature(architectures[0])._replace(widths=widths)})
    rows = needed_rows(architectures, depth)
    skips = layers_with_skips(architectures, rows)
    if all_skip:
        rows = (len(architectures),) * depth
        skips = tuple(k > 0 for k in range(depth))
    theta = [layout.pack(random_weights(layout, a, i)) for i, a in enumerate(architectures)]
    masks = make_masks(architectures, widths, rows, torch.float64)
    return stacked(layout, skips), layout, masks, torch.stack(theta)


def cast(masks, dtype):
    """The masks in another type."""
    return tuple(LayerMask(*(part.to(dtype) for part in mask)) for mask in masks)


def randn(*shape, seed=99):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("who", [ALIKE, UNEVEN, ABSENT, GATED, EVERYTHING])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_backward_is_autograd(activation, who):
    for layer_norm, dueling, all_skip in itertools.product([False, True], repeat=3):
        if all_skip and who is UNEVEN:
            continue  # what goes in must be as wide as what comes out
        architectures = [
            Architecture(hidden, activation, layer_norm, dueling, gated) for hidden, gated in who
        ]
        network, layout, masks, theta = stack(architectures, all_skip)
        theta.requires_grad_()
        x = randn(len(who), 7, SPEC.inputs).requires_grad_()
        weights = views_of(layout, theta, masks)
        values, saved = network.forward(weights, x)
        assert values.shape == (len(who), SPEC.outputs, 7)
        upstream = randn(*values.shape, seed=1)
        by_theta, by_x = torch.autograd.grad((values * upstream).sum(), (theta, x))
        with torch.no_grad():
            found = layout.join({"q": network.backward(weights, saved, upstream)})
            first = network.mlp.backward(weights, saved.mlp, upstream)[1]
        torch.testing.assert_close(found, by_theta, rtol=0, atol=1e-10)
        by_first = torch.bmm(first, weights.hidden[0].weight.mT)
        torch.testing.assert_close(by_first, by_x, rtol=0, atol=1e-10)
        own = torch.stack([layout.mask({"q": a}) for a in architectures])
        assert not found[~own].any()
        assert not by_theta[~own].any()
        assert found[own].count_nonzero() > 0.5 * own.sum()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_two_observations_in_one_pass_are_two_passes(activation):
    architectures = [Architecture(h, activation, True, True, gated) for h, gated in EVERYTHING]
    network, layout, masks, theta = stack(architectures)
    weights = views_of(layout, theta, masks)
    first, second = randn(2, len(architectures), 6, SPEC.inputs)
    second = second[:, :4]
    upstream = randn(len(architectures), SPEC.outputs, 6, seed=2)
    values, others, kept = network.forward_two(weights, first, second)
    own, saved = network.forward(weights, first)
    close = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(values, own, **close)
    torch.testing.assert_close(others, network.forward(weights, second)[0], **close)
    torch.testing.assert_close(
        layout.join({"q": network.backward(weights, kept, upstream)}),
        layout.join({"q": network.backward(weights, saved, upstream)}),
        **close,
    )


def test_one_hot_observations():
    spec = NetworkSpec(inputs=4, outputs=2, one_hot=True)
    layout = Layout({"q": spec}, {"q": signature(Architecture((8,)))})
    network = stacked(layout, (False,))
    theta = layout.pack(random_weights(layout, Architecture((8,)), 0)).unsqueeze(0)
    masks = make_masks([Architecture((8,))], (8,), (1,), torch.float64)
    weights = views_of(layout, theta, masks)
    values, _ = network.forward(weights, torch.tensor([[2, 0, 3]]))
    own = layout.views(theta)["q"]
    rows = own["hidden0.weight"][0][[2, 0, 3]] + own["hidden0.bias"][0]
    expected = rows.relu() @ own["head.weight"][0].T + own["head.bias"][0]
    torch.testing.assert_close(values[0].T, expected)


@pytest.mark.parametrize("units", [2, 7, 16, 33, 64])
@pytest.mark.parametrize("offset", [0.0, 1000.0, -1000.0])
def test_layer_norm_stays_accurate_at_an_offset(units, offset):
    """Against nn.LayerNorm on the same float32 numbers, and its exact value in float64."""
    (width,) = signature(Architecture((units,))).widths
    (mask,) = make_masks([Architecture((units,))], (width,), (1,))
    x = torch.zeros(1, 50, width)
    x[:, :, :units] = randn(1, 50, units).float() + offset
    found = _normalise(x, mask).normal
    assert not found[:, :, units:].any()
    own = x[:, :, :units]
    exact = torch.nn.LayerNorm(units, dtype=torch.float64)(own.double())
    torch_error = (torch.nn.LayerNorm(units)(own).double() - exact).abs().max().item()
    error = (found[:, :, :units].double() - exact).abs().max().item()
    assert error < max(2 * torch_error, 2e-3 if offset else 1e-5)


def test_layer_norm_network_with_shifted_inputs():
    """A whole float32 layer whose inputs are shifted by 1000, against Linear and LayerNorm."""
    architecture = Architecture((24,), "tanh", layer_norm=True)
    network, layout, masks, theta = stack([architecture])
    weights = views_of(layout, theta.float(), cast(masks, torch.float32))
    x = randn(1, 40, SPEC.inputs).float() + 1000
    values, _ = network.forward(weights, x)
    row = layout.unpack(theta[0].float(), {"q": architecture})
    own = {name: value.double() for name, value in network_part(row, "q").items()}
    before = x[0].double() @ own["hidden0.weight"] + own["hidden0.bias"]
    normal = torch.nn.functional.layer_norm(
        before, (24,), own["hidden0.scale"], own["hidden0.shift"]
    )
    expected = normal.tanh() @ own["head.weight"].T + own["head.bias"]
    assert before.abs().mean() > 500
    torch.testing.assert_close(values[0].T.double(), expected, rtol=0, atol=1e-4)


def closed_gate(activation, layer_norm, dtype, depths):
    """One network twice: without a second layer, and with one whose gate is 0.

    For each (weights, values, network, saved), in layouts of these depths.
    """
    without = Architecture((16,), activation, layer_norm)
    within = Architecture((16, 16), activation, layer_norm, gated=(False, True))
    for architecture, depth in zip((without, within), depths, strict=True):
        network, layout, masks, _ = stack([architecture] * 2, depth=depth)
        own = random_weights(layout, architecture, 7)
        own |= random_weights(layout, without, 7)
        if architecture is within:
            own["q.hidden1.gate"].zero_()
        theta = layout.pack(own).repeat(2, 1).to(dtype)
        weights = views_of(layout, theta, cast(masks, dtype))
        x = randn(2, 9, SPEC.inputs).to(dtype)
        values, saved = network.forward(weights, x)
        yield weights, values, network, saved


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_closed_gate_is_exact_and_can_open(activation, layer_norm, dtype):
    """With gate 0 the outputs keep their bits, and the gate has a gradient at once."""
    before, after = closed_gate(activation, layer_norm, dtype, depths=(2, 2))
    assert torch.equal(before[1], after[1])
    weights, values, network, saved = after
    upstream = randn(*values.shape, seed=3).to(dtype)
    found = network.backward(weights, saved, upstream)
    assert found["hidden1.gate"].abs().min() > 1e-3
    assert not found["hidden1.weight"].any()  # they wait for the gate to open


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_closed_gate_in_a_deeper_layout_is_exact(activation):
    """The layout grows with the layer: every segment after it lies elsewhere in the row."""
    before, after = closed_gate(activation, True, torch.float32, depths=(1, 2))
    assert torch.equal(before[1], after[1])


def test_values_do_not_depend_on_deeper_neighbours():
    shallow = Architecture((16,), "gelu", layer_norm=True)
    alone, layout, masks, theta = stack([shallow, shallow])
    deep, deep_layout, deep_masks, deep_theta = stack([shallow, shallow], depth=3)
    x = randn(2, 9, SPEC.inputs)
    assert isinstance(deep.mlp, StackedMLP)
    assert deep.mlp.skips == (False, True, True)
    torch.testing.assert_close(
        alone.forward(views_of(layout, theta, masks), x)[0],
        deep.forward(views_of(deep_layout, deep_theta, deep_masks), x)[0],
        rtol=0,
        atol=1e-13,
    )
