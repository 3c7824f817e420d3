"""One mutation a child: which kinds, within which limits, and what each leaves alone."""

import collections
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from evorl.algorithms.dqn import DQN
from evorl.config import MutationConfig
from evorl.errors import RunError
from evorl.evolution.explore import Space
from evorl.evolution.mutation import Mutation
from evorl.genome import ACTIVATIONS, Architecture, Genome
from evorl.networks.layout import fresh_parameters, signature
from evorl.networks.spec import NetworkSpec, ParameterSpec
from evorl.population.group import newborn
from evorl.population.grouping import kinds_of
from evorl.population.optimizer import NEW
from tests.evolution.networks import (
    IMAGE,
    PARTS,
    VECTOR,
    assert_fits,
    assert_same_state,
    copied,
    learn,
    module_values,
    random_architecture,
    random_obs,
    random_state,
    whole,
)
from tests.population.checks import check
from tests.reference import genome, hyperparameters, population_of

torch.set_num_threads(1)

KINDS = ("none", "architecture", "parameters", "activation", "hyperparameters")
CHANGES = {
    "add layer",
    "remove layer",
    "add units",
    "remove units",
    "add channels",
    "remove channels",
}


class Doubling:
    """An exploration that doubles the learning rate, and remembers what it was asked."""

    def __init__(self, spaces=("lr",)):
        self.spaces = {name: Space("log", 1e-6, 1.0) for name in spaces}
        self.asked = []

    def propose(self, hyperparameters, fitness, generation, random):
        self.asked.append((fitness, generation))
        return dict(hyperparameters) | {"lr": 2 * hyperparameters["lr"]}


def only(kind, **changed):
    """A configuration of one kind of mutation."""
    return MutationConfig(**{name: float(name == kind) for name in KINDS} | changed)


def mutate(config, parent, state, *, spec=VECTOR, explore=None, seed=0, fitness=1.5):
    mutation = Mutation(config, {"q": spec}, explore or Doubling(), DQN())
    random = np.random.default_rng(seed)
    return mutation(parent, state, id=77, generation=5, fitness=fitness, random=random)


def parent_of(architecture, spec=VECTOR, seed=0, **options):
    state = random_state(np.random.default_rng(seed), architecture, spec, **options)
    return genome(3, architecture), whole(state)


# kinds


def test_a_child_knows_where_it_comes_from():
    parent, state = parent_of(Architecture((20,)))
    for kind in KINDS:
        child, _ = mutate(only(kind), parent, state)
        assert (child.id, child.parent, child.born) == (77, 3, 5)
        assert child.mutation in (CHANGES if kind == "architecture" else {kind})
        if kind != "hyperparameters":
            assert child.hyperparameters == parent.hyperparameters
        if kind not in ("architecture", "activation"):
            assert child.architectures == parent.architectures


def test_kinds_come_as_often_as_they_should():
    weights = dict(zip(KINDS, (1.0, 2.0, 0.0, 3.0, 4.0), strict=True))
    parent, state = parent_of(Architecture((20,)))
    found = collections.Counter()
    for seed in range(1000):
        child, _ = mutate(MutationConfig(**weights), parent, state, seed=seed)
        found["architecture" if child.mutation in CHANGES else child.mutation] += 1
    for kind, weight in weights.items():
        assert abs(found[kind] / 1000 - weight / 10) < 0.05, kind


def test_what_is_impossible_is_not_drawn():
    config = MutationConfig(
        none=0,
        activations=["relu"],
        min_layers=1,
        max_layers=1,
        min_units=20,
        max_units=20,
        activation=1,
    )
    parent, state = parent_of(Architecture((20,)))
    for seed in range(50):
        child, _ = mutate(config, parent, state, explore=Doubling(()), seed=seed)
        assert child.mutation == "parameters"


@pytest.mark.parametrize("kind", ["architecture", "activation", "hyperparameters"])
def test_where_nothing_is_possible_a_child_is_an_exact_copy(kind):
    limits = {"min_units": 20, "max_units": 20, "max_layers": 1, "activations": ["relu"]}
    parent, state = parent_of(Architecture((20,)))
    child, found = mutate(only(kind, **limits), parent, state, explore=Doubling(()))
    assert child.mutation == "none"
    assert dataclasses.replace(
        child, id=3, parent=None, born=0, mutation="initial"
    ) == dataclasses.replace(parent)
    assert_same_state(found, state)


def test_an_activation_changes_to_another_of_those_allowed():
    parent, state = parent_of(Architecture((20,), "relu"))
    config = only("activation", activations=["relu", "tanh", "gelu"])
    found = set()
    for seed in range(40):
        child, same = mutate(config, parent, state, seed=seed)
        found.add(child.architectures["q"].activation)
        assert (
            dataclasses.replace(child.architectures["q"], activation="relu")
            == parent.architectures["q"]
        )
        assert_same_state(same, state)
    assert found == {"tanh", "gelu"}


def test_hyperparameters_come_from_the_exploration():
    explore = Doubling()
    parent, state = parent_of(Architecture((20,)))
    child, same = mutate(only("hyperparameters"), parent, state, explore=explore, fitness=2.5)
    assert child.hyperparameters == hyperparameters(lr=2e-3)
    assert explore.asked == [(2.5, 5)]
    assert_same_state(same, state)


# architecture


def assert_within(architecture, before, config):
    """Every size is within its limits, or has not gone further outside."""
    limits = {
        "hidden": (config.min_units, config.max_units),
        "channels": (config.min_channels, config.max_channels),
    }
    for name, (low, high) in limits.items():
        old = getattr(before, name)
        for size in getattr(architecture, name):
            assert min(low, *old, high) <= size <= max(low, *old, high), (name, before)
            if size not in old:
                assert low <= size or any(o < size for o in old)
                assert size <= high or any(o > size for o in old)
    depths = config.min_layers, config.max_layers, before.depth
    assert min(depths) <= architecture.depth <= max(depths)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), image=st.booleans(), outside=st.booleans())
def test_a_long_line_of_mutations_stays_within_its_limits(seed, image, outside):
    random = np.random.default_rng(seed)
    spec = IMAGE if image else VECTOR
    config = MutationConfig(
        architecture=3,
        activation=1,
        parameters=1,
        hyperparameters=0.5,
        new_layer=0.3,
        units=[4, 7],
        channels=[1, 3],
        min_layers=2,
        max_layers=4,
        min_units=6,
        max_units=40,
        min_channels=3,
        max_channels=9,
    )
    start = {"hidden": (70,) if outside else (12, 12)}
    if image:
        size = (14, 2) if outside else (4, 5)
        start |= {"channels": size, "kernels": (3, 2), "strides": (2, 1)}
    architecture = Architecture(**start, layer_norm=bool(random.random() < 0.5))
    mutation = Mutation(config, {"q": spec}, Doubling(), DQN())
    parent = genome(0, architecture)
    state = newborn(fresh_parameters({"q": spec}, parent, 0))._replace(
        updates=int(random.integers(3000))
    )
    found = collections.Counter()
    for number in range(1, 101):
        child, after = mutation(
            parent, state, id=number, generation=number, fitness=0.0, random=random
        )
        assert child.parent == parent.id
        assert_fits(spec, child.architectures["q"], after.network("q"))
        assert_within(child.architectures["q"], parent.architectures["q"], config)
        found[child.mutation] += 1
        parent, state = child, after
    assert {"add layer", "remove layer", "add units", "remove units"} <= set(found)
    assert ("add channels" in found) == image
    assert min(parent.architectures["q"].hidden) >= 6
    assert max(parent.architectures["q"].hidden) <= 40
    assert 2 <= parent.architectures["q"].depth <= 4
    population = population_of([parent], spec)
    population.rebuild([parent], [state])
    check(population, [state])


def test_all_layers_and_convolutions_have_their_turn():
    architecture = Architecture((20, 30), channels=(5, 6), kernels=(3, 2), strides=(2, 1))
    parent, state = parent_of(architecture, IMAGE)
    config = only("architecture", new_layer=0)
    found = collections.Counter()
    for seed in range(400):
        child, _ = mutate(config, parent, state, spec=IMAGE, seed=seed)
        sizes = child.architectures["q"].channels + child.architectures["q"].hidden
        pairs = zip(sizes, (5, 6, 20, 30), strict=True)
        (place,) = [k for k, (new, old) in enumerate(pairs) if new != old]
        found[place] += 1
    assert all(70 < found[place] < 130 for place in range(4)), found


def test_new_layers_come_as_often_as_they_should():
    parent, state = parent_of(Architecture((64, 64)))
    config = only("architecture", new_layer=0.3)
    found = collections.Counter(
        mutate(config, parent, state, seed=seed).genome.mutation for seed in range(600)
    )
    assert 0.23 < (found["add layer"] + found["remove layer"]) / 600 < 0.37
    assert 0.35 < found["add layer"] / (found["add layer"] + found["remove layer"]) < 0.65
    assert 0.42 < found["add units"] / (found["add units"] + found["remove units"]) < 0.58
    always = only("architecture", new_layer=1)
    assert all(
        "layer" in mutate(always, parent, state, seed=seed).genome.mutation for seed in range(30)
    )


def test_amounts_are_those_of_the_configuration_and_clipped():
    parent, state = parent_of(Architecture((64,)))
    for config, expected in (
        (only("architecture", new_layer=0, units=[5, 11]), {53, 59, 69, 75}),
        (only("architecture", new_layer=0, units=[50], min_units=60, max_units=70), {60, 70}),
        (only("architecture", new_layer=0, units=[7], max_units=64), {57}),
        (only("architecture", new_layer=0, units=[7], min_units=64), {71}),
        (only("architecture", new_layer=0, units=[7], min_units=16, max_units=32), {57}),
        (only("architecture", new_layer=0, units=[7], min_units=100), {71}),
    ):
        found = {
            mutate(config, parent, state, seed=seed).genome.architectures["q"].hidden[0]
            for seed in range(40)
        }
        assert found == expected


def test_mutated_agents_live_in_a_mixed_population():
    """Children join the group of their new signature, and everybody goes on learning."""
    random = np.random.default_rng(4)
    architectures = [
        Architecture((12 + 2 * i, 16), ACTIVATIONS[i % 5], i % 2 == 0) for i in range(10)
    ]
    genomes = [genome(i, a) for i, a in enumerate(architectures)]
    population = population_of(genomes, VECTOR)
    config = MutationConfig(architecture=1, activation=0.3, units=[4, 9], min_units=4, max_units=70)
    mutation = Mutation(config, {"q": VECTOR}, Doubling(), DQN())
    number = 10
    for generation in range(8):
        learn(population, random, 5)
        genomes = list(population.genomes)
        states = [population.state(i) for i in range(10)]
        for place in random.choice(10, 5, replace=False):
            parent = int(random.integers(10))
            genomes[place], states[place] = mutation(
                population.genomes[parent],
                population.state(parent),
                id=number,
                generation=generation,
                fitness=0.0,
                random=random,
            )
            number += 1
        population.rebuild(genomes, states)
        check(population, states)
    learn(population, random, 5)
    check(population)
    assert population.alive.all()


def test_a_child_that_outgrows_its_group_gets_another():
    parent, state = parent_of(Architecture((60, 20)))
    config = only("architecture", new_layer=0, units=[16], min_units=60)
    grown, grown_state = mutate(config, parent, state, seed=1)
    assert grown.mutation == "add units"
    while max(grown.architectures["q"].hidden) <= 64:
        grown, grown_state = mutate(
            config, grown, grown_state, seed=len(grown.architectures["q"].hidden)
        )
    assert signature(grown.architectures["q"]) != signature(parent.architectures["q"])
    population = population_of([parent, parent], VECTOR)
    population.rebuild([parent, parent], [state, state])
    assert len(population.groups) == 1
    kinds = [
        kinds_of({"q": VECTOR}, [own], compiled=False)[0] for own in (parent, grown)
    ]  # by itself
    population.rebuild([parent, grown], [state, grown_state], kinds)
    check(population, [state, grown_state])
    assert [max(group.layout.signatures["q"].widths) for group in population.groups] == [64, 96]


# several networks

PAIR = {"actor": NetworkSpec(6, 2), "scale": ParameterSpec(), "critic": NetworkSpec(6, 1, extra=2)}


def pair():
    own = {"actor": Architecture((20,)), "critic": Architecture((24, 30), "tanh")}
    parent = Genome(3, own, hyperparameters())
    state = newborn(fresh_parameters(PAIR, parent, 0))
    v = {name: torch.ones_like(value) for name, value in state.v.items()}
    return parent, state._replace(v=v, updates=5000)


@pytest.mark.parametrize("kind", ["architecture", "activation"])
def test_one_network_changes_and_all_have_their_turn(kind):
    parent, state = pair()
    mutation = Mutation(only(kind), PAIR, Doubling(), DQN())
    found = collections.Counter()
    for seed in range(100):
        random = np.random.default_rng(seed)
        child, after = mutation(parent, state, id=4, generation=1, fitness=0.0, random=random)
        own = child.architectures
        (changed,) = [name for name in own if own[name] != parent.architectures[name]]
        found[changed] += 1
        for name in own:
            assert_fits(PAIR[name], own[name], after.network(name))
            if name != changed:
                assert_same_state(after.network(name), state.network(name))
        assert torch.equal(after.online["scale.value"], state.online["scale.value"])
    assert 30 <= found["actor"] <= 70, found


def test_noise_is_on_the_weights_of_all_networks_and_on_nothing_else():
    parent, state = pair()
    state.v["critic.hidden0.weight"][:, 4] = 0
    state.v["critic.hidden0.bias"][4] = 0
    mutation = Mutation(only("parameters", noise_fraction=1), PAIR, Doubling(), DQN())
    random = np.random.default_rng(0)
    after = mutation(parent, state, id=4, generation=1, fitness=0.0, random=random).state
    assert not after.online["critic.hidden1.weight"][4].any()  # a dormant unit began again
    for name, value in state.online.items():
        changed = after.online[name] != value
        assert changed.any() == (name.endswith(".weight") or name == "critic.hidden0.bias"), name
        assert changed.all() or not name.startswith("actor") or not name.endswith("weight")


def swapped(genome, state, random):
    values = dict(genome.hyperparameters) | {"lr": random.uniform(0.5, 1.0)}
    return dataclasses.replace(genome, hyperparameters=values), state


def test_mutations_of_ones_own_come_by_their_names():
    parent, state = pair()
    mine = f"{__name__}:swapped"
    config = only("hyperparameters", **{mine: 1.0})  # and of the others there are none
    mutation = Mutation(config, PAIR, Doubling(()), DQN())
    random = np.random.default_rng(0)
    child, after = mutation(parent, state, id=4, generation=1, fitness=0.0, random=random)
    assert (child.mutation, child.id, child.parent, child.born) == (mine, 4, 3, 1)
    assert child.hyperparameters["lr"] >= 0.5
    assert_same_state(after, state)


def give(renamed=None, **changes):
    """A mutation of one's own that changes hyperparameters, or misspells one."""

    def mutation(genome, state, random):
        values = dict(genome.hyperparameters) | changes
        if renamed is not None:
            values[renamed[:-1]] = values.pop(renamed)
        return dataclasses.replace(genome, hyperparameters=values), state

    return mutation


def touch(change):
    """A mutation of one's own that changes a state in place."""

    def mutation(genome, state, random):
        change(state)
        return genome, state

    return mutation


def give_architectures(**own):
    return lambda genome, state, random: (dataclasses.replace(genome, architectures=own), state)


FIRST, INPUTS = "actor.hidden0.weight", PAIR["actor"].inputs
WEIGHT = f"must be (({INPUTS}, 20), torch.float32) by its architecture"
WRONG = [
    (lambda *_: 1 / 0, "raised ZeroDivisionError: division by zero (test_mutation.py, line "),
    (lambda genome, *_: genome, "raised TypeError: cannot unpack non-iterable Genome object"),
    (lambda *_: None, "raised TypeError: cannot unpack non-iterable NoneType object"),
    (give("gamma"), "returned other hyperparameters than there are: gamm, gamma"),
    (give(lr=-1.0), "returned hyperparameters.lr: must be greater than 0, got -1.0"),
    (give(lr=float("nan")), "returned hyperparameters.lr: must be a finite number, got nan"),
    (give(batch_size=3.5), "returned hyperparameters.batch_size: expected a whole number, got 3.5"),
    (give(double=0), "returned other hyperparameters than there are: double"),
    (give_architectures(actor=Architecture((20,))), "raised KeyError: 'critic'"),
    (give_architectures(actor=Architecture((21,)), critic=Architecture((24, 30))),
     f"returned state.online: {FIRST} must be (({INPUTS}, 21), torch.float32) by its architecture, "
     f"got (({INPUTS}, 20), torch.float32)"),
    (touch(lambda state: state.m.pop(FIRST)), f"returned state.m: {FIRST} {WEIGHT}, got None"),
    (touch(lambda state: state.v.update(x=torch.ones(1))), "returned state.v: x must be None by "
     "its architecture, got ((1,), torch.float32)"),
    (touch(lambda state: state.target.update({FIRST: 1})), "raised AttributeError: 'int' object "
     "has no attribute 'shape'"),
    (touch(lambda state: state.target.update({FIRST: state.target[FIRST].double()})),
     f"returned state.target: {FIRST} {WEIGHT}, got (({INPUTS}, 20), torch.float64)"),
    (touch(lambda state: state.online[FIRST].fill_(np.inf)), f"returned state.online: {FIRST} is "
     "not finite"),
]  # fmt: skip
MINE, chosen = f"{__name__}:mine", {}


def mine(genome, state, random):
    return chosen["function"](genome, state, random)


def own_child(function, parent, state):
    """What a mutation of one's own makes of a parent."""
    chosen["function"] = function
    mutation = Mutation(only("", **{MINE: 1.0}), PAIR, Doubling(), DQN())
    random = np.random.default_rng(0)
    return mutation(parent, state, id=4, generation=1, fitness=0.0, random=random)


@pytest.mark.parametrize(("function", "message"), WRONG)
def test_a_mutation_of_ones_own_that_spoils_the_child(function, message):
    parent, state = pair()
    before = copied(state)
    with pytest.raises(RunError) as caught:
        own_child(function, parent, state)
    assert str(caught.value).startswith(f"evolution.mutation: {MINE!r} {message}")
    assert str(caught.value).isprintable()
    assert_same_state(state, before)


def test_a_mutation_of_ones_own_changes_the_child_alone():
    def halved(genome, state, random):
        values = genome.hyperparameters
        values["batch_size"] = np.int64(32)
        values["lr"] = values.pop("lr") / 2  # now the last of them
        for weights in state.online.values():
            weights.mul_(0.5)
        return genome, state

    parent, state = pair()
    before, values = copied(state), dict(parent.hyperparameters)
    child, after = own_child(halved, parent, state)
    assert_same_state(state, before)
    assert parent.hyperparameters == values
    assert list(child.hyperparameters) == list(DQN().hyperparameters)
    assert child.hyperparameters == values | {"lr": values["lr"] / 2, "batch_size": 32}
    assert type(child.hyperparameters["batch_size"]) is int
    assert torch.equal(after.online[FIRST], state.online[FIRST] / 2)


# inputs, repeatability


@pytest.mark.parametrize("kind", KINDS)
def test_the_parent_stays_as_it_is_and_the_same_seed_gives_the_same_child(kind):
    for seed in range(10):
        random = np.random.default_rng(seed)
        architecture = random_architecture(random)
        parent, state = parent_of(architecture, seed=seed)
        before, obs = copied(state), random_obs(random)
        values = module_values(VECTOR, architecture, state.network("q").online, obs)
        config = only(kind, min_units=3)
        first = mutate(config, parent, state, seed=seed)
        assert_same_state(state, before)
        assert torch.equal(
            module_values(VECTOR, architecture, state.network("q").online, obs), values
        )
        assert parent == genome(3, architecture)
        again = mutate(config, parent, state, seed=seed)
        assert again.genome == first.genome
        assert_same_state(again.state, first.state)
        # a state from a file may have its segments in another order
        shuffled = before._replace(
            **{part: dict(sorted(getattr(before, part).items())) for part in PARTS}
        )
        assert_same_state(mutate(config, parent, shuffled, seed=seed).state, first.state)


# noise


@pytest.mark.parametrize("spec", [VECTOR, IMAGE], ids=["vector", "image"])
def test_noise_touches_its_share_of_the_weights(spec):
    extra = {"channels": (8, 8), "kernels": (3, 2), "strides": (1, 1)} if spec.image else {}
    architecture = Architecture((100, 100), layer_norm=True, gated=(False, True), **extra)
    parent, state = parent_of(architecture, spec, updates=10)
    config = only("parameters", noise_fraction=0.15, noise=0.2)
    found = mutate(config, parent, state, spec=spec).state
    factors = []
    for name, old in state.online.items():
        new, touched = found.online[name], found.online[name] != old
        if not name.endswith(".weight"):
            assert not touched.any(), name
            assert torch.equal(found.target[name], state.target[name])
            continue
        assert torch.equal(new[~touched], old[~touched])
        share = touched.double().mean()
        assert abs(share - 0.15) < 5 * np.sqrt(0.15 * 0.85 / old.numel()), name
        factors.append((new / old)[touched])
        other = found.target[name] / state.target[name]
        assert torch.equal(found.target[name] != state.target[name], touched)
        torch.testing.assert_close(other[touched], factors[-1], rtol=1e-4, atol=1e-5)
    every = torch.cat(factors)
    assert abs(every.mean() - 1) < 0.02
    assert abs(every.std() - 0.2) < 0.02
    for part in ("m", "v"):
        for name, value in getattr(state, part).items():
            assert torch.equal(getattr(found, part)[name], value)


def test_a_share_of_none_or_all():
    parent, state = parent_of(Architecture((20,)))
    none = mutate(only("parameters", noise_fraction=0, reset_dormant=False), parent, state).state
    assert_same_state(none, state)
    every = mutate(only("parameters", noise_fraction=1), parent, state).state
    for name, value in state.online.items():
        changed = every.online[name] != value
        assert changed.all() if name.endswith("weight") else not changed.any()


@pytest.mark.parametrize("reset", [False, True])
def test_noise_first_resets_dormant_units_if_wanted(reset):
    parent, state = parent_of(Architecture((20, 20)))
    state.v["q.hidden0.weight"][:, 4] = 0
    state.v["q.hidden0.bias"][4] = 0
    config = only("parameters", reset_dormant=reset)
    found = mutate(config, parent, state).state
    silent = not found.online["q.hidden1.weight"][4].any()
    assert silent == reset
    assert bool((found.v["q.hidden0.weight"][:, 4] == NEW).all()) == reset
