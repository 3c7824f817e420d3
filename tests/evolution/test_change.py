"""What changed from parent to child, in words."""

import pytest

from evorl.evolution.lineage import describe_architectures, describe_change, describe_number
from evorl.genome import Architecture, Genome
from tests.synthetic import child, initial

CONV = {"kernels": (3, 3), "strides": (1, 1)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lr": 0.00125}, "lr 0.001 → 0.00125"),
        ({"batch_size": 128, "lr": 0.00125}, "lr 0.001 → 0.00125, batch_size 64 → 128"),
        ({"gamma": 0.995}, "gamma 0.99 → 0.995"),
        ({"gamma": 0.998764}, "gamma 0.99 → 0.9988"),
        ({"gamma": 0.99000004}, "gamma 0.99 → 0.99000004"),
        ({"tau": 0.01234567}, "tau 0.01 → 0.0123"),
        ({"lr": 0.0010001}, "lr 0.001 → 0.0010001"),
        ({"epsilon_steps": 12345}, "epsilon_steps 10000 → 12345"),
        ({"max_grad_norm": 12345.6}, "max_grad_norm 10 → 12346"),
        ({"lr": 3.16228e-05}, "lr 0.001 → 3.16e-05"),
        ({"epsilon_start": 0.0}, "epsilon_start 1 → 0"),
    ],
)
def test_hyperparameters(changes, said):
    parent = initial(lr=1e-3)
    assert describe_change(parent, child(parent, 1, 1, **changes)) == said


def test_the_smallest_possible_change_is_visible():
    parent = initial(gamma=0.99)
    said = describe_change(parent, child(parent, 1, 1, gamma=0.99 + 2**-53))
    before, after = said.removeprefix("gamma ").split(" → ")
    assert before != after


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (Architecture((64, 64)), Architecture((64, 96)), "hidden 64-64 → 64-96"),
        (
            Architecture((64, 64)),
            Architecture((64, 64, 64), gated=(False, True, False)),
            "layer 2 added: 64-64-64",
        ),
        (Architecture((64, 32)), Architecture((64, 32, 16)), "layer 3 added: 64-32-16"),
        (Architecture((64, 32, 16)), Architecture((64, 16)), "layer 2 removed: 64-16"),
        (Architecture((64,)), Architecture((32, 32)), "hidden 64 → 32-32"),
        (
            Architecture((64, 64), gated=(False, True)),
            Architecture((64, 64)),
            "gated False-True → False-False",
        ),
        (Architecture((64,)), Architecture((64,), "tanh"), "activation relu → tanh"),
        (Architecture((64,)), Architecture((64,), layer_norm=True), "layer_norm on"),
        (Architecture((64,), dueling=True), Architecture((64,)), "dueling off"),
        (
            Architecture((64,), channels=(16, 32), **CONV),
            Architecture((64,), channels=(16, 40), **CONV),
            "channels 16-32 → 16-40",
        ),
    ],
)
def test_architecture(old, new, said):
    parent = initial(architecture=old)
    assert describe_change(parent, child(parent, 1, 1, "architecture", new)) == said


def test_architecture_and_hyperparameters():
    parent = initial(lr=1e-3)
    both = child(parent, 1, 1, "both", Architecture((64, 96)), lr=2e-3)
    assert describe_change(parent, both) == "hidden 64-64 → 64-96, lr 0.001 → 0.002"


def test_what_the_genome_does_not_show():
    parent = initial()
    assert describe_change(parent, child(parent, 1, 1, "parameters")) == "noise on the weights"
    assert describe_change(parent, child(parent, 1, 1, "none")) == "copy"


def test_a_whole_architecture():
    assert describe_architectures(initial(0, Architecture((64, 96), "tanh"))) == "64-96 tanh"
    image = Architecture((64,), layer_norm=True, dueling=True, channels=(16, 32), **CONV)
    assert describe_architectures(initial(0, image)) == "channels 16-32, 64 relu layer_norm dueling"


def test_several_networks_are_named():
    actor, critic = Architecture((64, 64)), Architecture((128, 128), "tanh")
    parent = Genome(0, {"actor": actor, "critic": critic}, {"actor_lr": 0.001, "alpha": 0.2})
    assert describe_architectures(parent) == "actor 64-64 relu, critic 128-128 tanh"
    wider = Architecture((128, 160), "tanh", layer_norm=True)
    after = Genome(1, {"actor": actor, "critic": wider}, {"actor_lr": 0.001, "alpha": 0.3}, 0, 1)
    assert describe_change(parent, after) == (
        "critic hidden 128-128 → 128-160, critic layer_norm on, alpha 0.2 → 0.3"
    )
    assert describe_change(parent, parent) == "copy"
    assert describe_architectures(Genome(0, {"q": actor}, {})) == "64-64 relu"


@pytest.mark.parametrize(
    ("value", "text"),
    [(64, "64"), (64.0, "64"), (0, "0"), (0.5, "0.5"), (1 / 3, "0.333"), (0.95, "0.95"), (1, "1")],
)
def test_numbers(value, text):
    assert describe_number(value) == text
