import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evorl.genome import ACTIVATIONS, Architecture
from evorl.networks.layout import Layout, freeze, shapes, signature
from evorl.networks.masks import layers_with_skips, make_masks, needed_rows
from evorl.networks.spec import NetworkSpec


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


problems = st.builds(Problem, inputs=st.integers(1, 9), actions=st.integers(1, 6))


def numbered(problem, architecture):
    """Weights 1, 2, 3, …: every one is different, and none is 0."""
    found, start = {}, 1
    for name, shape in shapes(problem, architecture).items():
        size = math.prod(shape)
        found[name] = torch.arange(start, start + size, dtype=torch.float64).view(shape)
        start += size
    return found


def roomy(problem, architecture, deeper):
    """The layout of an architecture alone, or one with more layers, which must be alike then."""
    own = signature(architecture)
    widths = (max(own.widths),) * (architecture.depth + deeper) if deeper else own.widths
    return Layout(problem, own._replace(widths=widths))


@settings(deadline=None, max_examples=60)
@given(problem=problems, architecture=architectures(), deeper=st.integers(0, 2))
def test_pack_and_unpack_are_inverse(problem, architecture, deeper):
    layout = roomy(problem, architecture, deeper)
    parameters = numbered(problem, architecture)
    row = layout.pack(parameters)
    assert row.shape == (layout.length,)
    assert row.dtype == torch.float64
    found = layout.unpack(row, architecture)
    assert list(found) == list(parameters)
    for name, value in parameters.items():
        assert torch.equal(found[name], value)
    count = sum(value.numel() for value in parameters.values())
    assert sorted(row[row != 0].tolist()) == list(range(1, count + 1))


@settings(deadline=None, max_examples=60)
@given(problem=problems, architecture=architectures(), deeper=st.integers(0, 2))
def test_mask_is_where_the_weights_are(problem, architecture, deeper):
    layout = roomy(problem, architecture, deeper)
    mask = layout.mask(architecture)
    assert mask.dtype == torch.bool
    assert torch.equal(mask, layout.pack(numbered(problem, architecture)) != 0)


def test_unpack_copies():
    architecture = Architecture((3,))
    layout = Layout(NetworkSpec(2, 2), signature(architecture))
    row = torch.zeros(layout.length)
    found = layout.unpack(row, architecture)
    found["head.bias"].fill_(1)
    frozen = freeze(found)
    found["head.bias"].fill_(2)
    assert not row.any()
    assert frozen["head.bias"].tolist() == [1, 1]


def test_views_write_through_and_cover_the_row_once():
    layout = Layout(NetworkSpec(3, 2), signature(Architecture((4, 4), layer_norm=True)))
    theta = torch.zeros(3, layout.length)
    views = layout.views(theta)
    assert {name: tuple(v.shape[1:]) for name, v in views.items()} == layout.shapes
    for view in views.values():
        view += 1
    assert theta.max() == 1
    assert theta[0].sum() == sum(math.prod(shape) for shape in layout.shapes.values())
    views["hidden1.weight"][1, 2, 3] = 7
    assert (theta == 7).sum() == 1
    assert (theta[1] == 7).any()


def test_shapes_of_a_known_network():
    problem = NetworkSpec(inputs=8, outputs=4)
    architecture = Architecture((32, 16, 16), layer_norm=True, dueling=True, gated=(0, 0, 1))
    assert shapes(problem, architecture) == {
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
    problem = NetworkSpec(inputs=0, outputs=6, image=(4, 84, 84))
    nature = Architecture((512,), channels=(32, 64, 64), kernels=(8, 4, 3), strides=(4, 2, 1))
    found = shapes(problem, nature)
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
    layout = Layout(NetworkSpec(3, 2), signature(Architecture((16, 16, 32, 8, 8))))
    gates = [name for name in layout.shapes if name.endswith("gate")]
    assert gates == ["hidden1.gate", "hidden4.gate"]
    assert layout.shapes["hidden3.weight"] == (32, 8)


def test_a_layer_is_computed_for_those_who_have_it_and_for_two_at_least():
    deep, shallow = Architecture((4, 4, 4)), Architecture((4,))
    middle = Architecture((4, 4))
    assert needed_rows([deep, middle, middle, shallow], 4) == (4, 3, 2, 2)
    assert needed_rows([deep], 3) == (1, 1, 1)
    assert layers_with_skips([deep, middle, middle, shallow], (4, 3, 2)) == (False, False, True)
