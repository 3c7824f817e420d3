import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from evorl.genome import ACTIVATIONS, Architecture
from evorl.networks.layers import layers_with_skips, make_masks, needed_rows
from evorl.networks.layout import (
    Layout,
    NetworkLayout,
    freeze,
    network_part,
    row_shapes,
    shapes,
    signature,
)
from evorl.networks.spec import NetworkSpec, ParameterSpec


@st.composite
def architectures(draw):
    hidden = [draw(st.integers(1, 40))]
    gated = [False]
    for _ in range(draw(st.integers(0, 3))):
        gated.append(draw(st.booleans()))
        hidden.append(hidden[-1] if gated[-1] else draw(st.integers(1, 40)))
    return Architecture(
        hidden=tuple(hidden),
        activation=draw(st.sampled_from(ACTIVATIONS)),
        layer_norm=draw(st.booleans()),
        dueling=draw(st.booleans()),
        gated=tuple(gated),
    )


@st.composite
def agents(draw):
    """(specs, architectures) of one to three networks, and perhaps a bare parameter."""
    names = ["q", "actor", "critic"][: draw(st.integers(1, 3))]
    sizes = {"inputs": st.integers(1, 9), "outputs": st.integers(1, 6), "extra": st.integers(0, 4)}
    specs = {name: draw(st.builds(NetworkSpec, **sizes)) for name in names}
    if draw(st.booleans()):
        specs = {"scale": ParameterSpec(draw(st.integers(1, 20))), **specs}
    return specs, {name: draw(architectures()) for name in names}


def numbered(specs, architectures):
    """Weights 1, 2, 3, …: every one is different, and none is 0."""
    found, start = {}, 1
    for name, shape in row_shapes(specs, architectures).items():
        size = math.prod(shape)
        found[name] = torch.arange(start, start + size, dtype=torch.float64).view(shape)
        start += size
    return found


def roomy(specs, architectures, deeper):
    """The layout of an agent alone, or one with more layers, which must be alike then."""
    signatures = {}
    for name, architecture in architectures.items():
        own = signature(architecture)
        widths = (max(own.widths),) * (architecture.depth + deeper) if deeper else own.widths
        signatures[name] = own._replace(widths=widths)
    return Layout(specs, signatures)


def layout_of(spec, architecture):
    """The layout of an agent with one network."""
    return Layout({"q": spec}, {"q": signature(architecture)})


@settings(deadline=None, max_examples=60)
@given(agent=agents(), deeper=st.integers(0, 2))
def test_pack_and_unpack_are_inverse(agent, deeper):
    specs, architectures = agent
    layout = roomy(specs, architectures, deeper)
    parameters = numbered(specs, architectures)
    row = layout.pack(parameters)
    assert row.shape == (layout.length,)
    assert row.dtype == torch.float64
    found = layout.unpack(row, architectures)
    assert list(found) == list(parameters)
    for name, value in parameters.items():
        assert torch.equal(found[name], value)
    count = sum(value.numel() for value in parameters.values())
    assert sorted(row[row != 0].tolist()) == list(range(1, count + 1))


@settings(deadline=None, max_examples=60)
@given(agent=agents(), deeper=st.integers(0, 2))
def test_mask_is_where_the_weights_are(agent, deeper):
    specs, architectures = agent
    layout = roomy(specs, architectures, deeper)
    mask = layout.mask(architectures)
    assert mask.dtype == torch.bool
    assert torch.equal(mask, layout.pack(numbered(specs, architectures)) != 0)


def test_unpack_copies():
    architecture = Architecture((3,))
    layout = layout_of(NetworkSpec(2, 2), architecture)
    row = torch.zeros(layout.length)
    found = layout.unpack(row, {"q": architecture})
    found["q.head.bias"].fill_(1)
    frozen = freeze(found)
    found["q.head.bias"].fill_(2)
    assert not row.any()
    assert frozen["q.head.bias"].tolist() == [1, 1]


def test_views_write_through_and_cover_the_row_once():
    layout = two_networks()
    theta = torch.zeros(3, layout.length)
    views = layout.views(theta)
    count = 0
    for name, own in views.items():
        shapes = layout.parts[name].shapes
        assert {segment: tuple(view.shape[1:]) for segment, view in own.items()} == shapes
        count += sum(math.prod(shape) for shape in shapes.values())
        for view in own.values():
            view += 1
    assert theta.max() == 1
    assert theta[0].sum() == count
    views["critic"]["hidden1.weight"][1, 2, 3] = 7
    assert (theta == 7).sum() == 1
    assert (theta[1] == 7).any()


def two_networks():
    """A row of an actor, a scale and a critic."""
    specs = {"actor": NetworkSpec(3, 2), "scale": ParameterSpec(3), "critic": NetworkSpec(3, 1)}
    own = {"actor": Architecture((5,)), "critic": Architecture((4, 4), layer_norm=True)}
    return Layout(specs, {name: signature(each) for name, each in own.items()})


def test_every_network_has_columns_of_its_own():
    layout = two_networks()
    theta = torch.zeros(2, layout.length)
    for number, own in enumerate(layout.views(theta).values(), start=1):
        for view in own.values():
            view.fill_(number)
    assert list(layout.slices) == ["actor", "scale", "critic"]
    for number, own in enumerate(layout.slices.values(), start=1):
        assert own.start % 16 == 0
        assert set(theta[:, own].unique().tolist()) <= {0, number}
    assert sum(own.stop - own.start for own in layout.slices.values()) == layout.length


def test_join_is_the_inverse_of_views_also_into_memory_that_is_there():
    layout = two_networks()
    widest = {"actor": Architecture((8,)), "critic": Architecture((4, 4), layer_norm=True)}
    theta = layout.pack(numbered(layout.specs, widest)).repeat(3, 1)
    views = layout.views(theta)
    assert torch.equal(layout.join(views), theta)
    out = torch.zeros_like(theta)
    assert layout.join(views, out) is out
    assert torch.equal(out, theta)
    views["critic"]["hidden1.weight"] = views["critic"]["hidden1.weight"][:1]  # two lack the layer
    found = layout.join(views)
    assert torch.equal(found[0], theta[0])
    missing = found[1] != theta[0]
    assert int(missing.sum()) == 16
    assert not found[1][missing].any()


def test_weights_are_named_by_network_and_segment():
    specs = {"pi": NetworkSpec(3, 2), "pi2": NetworkSpec(3, 1), "scale": ParameterSpec(2)}
    own = {"pi": Architecture((5,)), "pi2": Architecture((6,))}
    found = row_shapes(specs, own)
    assert found["pi.hidden0.weight"] == (3, 5)
    assert found["scale.value"] == (2,)
    part = network_part({name: torch.zeros(shape) for name, shape in found.items()}, "pi")
    assert {name: tuple(value.shape) for name, value in part.items()} == shapes(
        specs["pi"], own["pi"]
    )


def test_shapes_of_a_known_network():
    spec = NetworkSpec(inputs=8, outputs=4)
    architecture = Architecture((32, 16, 16), layer_norm=True, dueling=True, gated=(0, 0, 1))
    assert shapes(spec, architecture) == {
        "hidden0.weight": (8, 32),
        "hidden0.bias": (32,),
        "hidden0.scale": (32,),
        "hidden0.shift": (32,),
        "hidden1.weight": (32, 16),
        "hidden1.bias": (16,),
        "hidden1.scale": (16,),
        "hidden1.shift": (16,),
        "hidden2.weight": (16, 16),
        "hidden2.bias": (16,),
        "hidden2.scale": (16,),
        "hidden2.shift": (16,),
        "hidden2.gate": (1,),
        "head.weight": (5, 16),
        "head.bias": (5,),
    }


def test_shapes_of_convolutions():
    spec = NetworkSpec(inputs=0, outputs=6, image=(4, 84, 84))
    nature = Architecture((512,), channels=(32, 64, 64), kernels=(8, 4, 3), strides=(4, 2, 1))
    found = shapes(spec, nature)
    assert found["conv1.weight"] == (64, 32, 4, 4)
    assert found["hidden0.weight"] == (64 * 7 * 7, 512)
    with pytest.raises(ValueError, match="leave nothing"):
        shapes(NetworkSpec(0, 6, image=(4, 10, 10)), nature)


@pytest.mark.parametrize(
    ("widest", "bucket"),
    [(1, 1), (2, 2), (3, 4), (16, 16), (17, 32), (33, 48), (49, 64), (64, 64), (65, 96), (97, 128)],
)
def test_widths_are_rounded_up(widest, bucket):
    assert signature(Architecture((widest,))).widths == (bucket,)
    assert signature(Architecture((1, widest, 1))).widths == (1, bucket, 1)


def test_what_makes_a_signature():
    same = [Architecture((64, 8)), Architecture((49, 5)), Architecture((60, 7))]
    assert len({signature(a) for a in same}) == 1
    different = [
        Architecture((64,)),
        Architecture((65,)),
        Architecture((64, 64)),
        Architecture((64, 32)),
        Architecture((64,), "tanh"),
        Architecture((64,), layer_norm=True),
        Architecture((64,), dueling=True),
        Architecture((64,), channels=(8,), kernels=(3,), strides=(1,)),
    ]
    assert len({signature(a) for a in different}) == len(different)


def test_make_masks_of_two_agents():
    plain = Architecture((3,))
    gated = Architecture((2, 2), gated=(False, True))
    first, second = make_masks([gated, plain], widths=(4, 4), rows=(2, 2))
    assert first.units[:, 0].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert second.units[:, 0].tolist() == [[1, 1, 0, 0], [0] * 4]
    torch.testing.assert_close(first.inverse_count.flatten(), torch.tensor([1 / 2, 1 / 3]))
    assert second.inverse_count.flatten().tolist() == [1 / 2, 1]
    assert [mask.keep.flatten().tolist() for mask in (first, second)] == [[0, 0], [1, 1]]
    assert [mask.replace.flatten().tolist() for mask in (first, second)] == [[1, 1], [0, 0]]
    assert [mask.gated.flatten().tolist() for mask in (first, second)] == [[0, 0], [1, 0]]
    assert layers_with_skips([gated, plain], (2, 2)) == (False, True)
    assert layers_with_skips([plain], (1,)) == (False,)


def test_layers_have_masks_as_wide_as_they_are():
    first, second = make_masks([Architecture((3, 1)), Architecture((2, 2))], (4, 2), (2, 2))
    assert first.units[:, 0].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    assert second.units[:, 0].tolist() == [[1, 0], [1, 1]]


def test_only_layers_as_wide_as_the_one_before_have_room_for_a_gate():
    layout = NetworkLayout(NetworkSpec(3, 2), signature(Architecture((16, 16, 32, 8, 8))))
    gates = [name for name in layout.shapes if name.endswith("gate")]
    assert gates == ["hidden1.gate", "hidden4.gate"]
    assert layout.shapes["hidden3.weight"] == (32, 8)


def test_a_layer_is_computed_for_those_who_have_it_and_for_two_at_least():
    deep, shallow = Architecture((4, 4, 4)), Architecture((4,))
    middle = Architecture((4, 4))
    assert needed_rows([deep, middle, middle, shallow], 4) == (4, 3, 2, 2)
    assert needed_rows([deep], 3) == (1, 1, 1)
    assert layers_with_skips([deep, middle, middle, shallow], (4, 3, 2)) == (False, False, True)
