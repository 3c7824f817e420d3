"""What is added keeps the function and learns at once; what stays keeps its bits."""

import functools
import itertools
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from evorl.evolution import surgery
from evorl.evolution.surgery import (
    add_layer,
    add_units,
    all_units,
    channel_units,
    dormant_units,
    hidden_units,
    remove_layer,
    remove_units,
    reset_dormant,
)
from evorl.genome import ACTIVATIONS, Architecture
from evorl.networks.module import to_module
from evorl.population.compiled import has_compiler
from tests.evolution.networks import (
    IMAGE,
    PARTS,
    VECTOR,
    assert_fits,
    assert_same_state,
    change,
    copied,
    learn,
    live_values,
    module_values,
    random_architecture,
    random_obs,
    random_state,
    trained,
    whole,
)
from tests.population.checks import check
from tests.reference import LoneNetwork, fold_one, genome, places, population_of

torch.set_num_threads(1)

LR = 1e-3


def growths(spec, architecture, state, random, units=True):
    """Every way in which this network can grow, as (name, ChangedAgent)."""
    for k in range(architecture.depth):
        yield f"layer after {k}", add_layer(architecture, state, k, random)
    for layer in all_units(spec, architecture) if units else ():
        count = int(random.integers(1, 2 * layer.size))
        yield f"{count} {layer.kind}", add_units(architecture, state, layer, count, random)


def assert_same_function(spec, architecture, state, changed, obs, tolerance=1e-5):
    for part in ("online", "target"):
        own, grown = getattr(state, part), getattr(changed.state, part)
        before = module_values(spec, architecture, own, obs)
        after = module_values(spec, changed.architecture, grown, obs)
        assert change(before, after) < tolerance
        live = changed.state._replace(online=grown)
        after = live_values(spec, changed.architecture, live, obs)
        assert change(before, after) < tolerance


# growing keeps the function


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("spec", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_growing_keeps_the_function(activation, spec, dueling):
    random = np.random.default_rng(0)
    for _ in range(4):
        options = {"activation": activation, "layer_norm": False, "dueling": dueling}
        architecture = random_architecture(random, spec, **options)
        state = random_state(random, architecture, spec)
        obs = random_obs(random, spec)
        for _, changed in growths(spec, architecture, state, random):
            assert_fits(spec, changed.architecture, changed.state)
            assert_same_function(spec, architecture, state, changed, obs)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("spec", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_new_layer_keeps_the_function_under_layer_norm(activation, spec, dueling):
    random = np.random.default_rng(1)
    for _ in range(4):
        options = {"activation": activation, "layer_norm": True, "dueling": dueling}
        architecture = random_architecture(random, spec, **options)
        state = random_state(random, architecture, spec)
        obs = random_obs(random, spec)
        for _, changed in growths(spec, architecture, state, random, units=False):
            assert_fits(spec, changed.architecture, changed.state)
            assert_same_function(spec, architecture, state, changed, obs)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_new_channels_keep_the_function_under_layer_norm(activation):
    """Convolutions have no norm of their own."""
    random = np.random.default_rng(2)
    for _ in range(4):
        architecture = random_architecture(random, IMAGE, activation=activation, layer_norm=True)
        state = random_state(random, architecture, IMAGE)
        obs = random_obs(random, IMAGE)
        for k in range(len(architecture.channels)):
            layer = channel_units(IMAGE, architecture, k)
            changed = add_units(architecture, state, layer, 3, random)
            assert_same_function(IMAGE, architecture, state, changed, obs)


@pytest.mark.parametrize("updates", [0, 150])
@pytest.mark.parametrize("dueling", [False, True])
def test_new_units_change_little_under_layer_norm(updates, dueling):
    """Measured: 0.014 newborn and 0.017 trained, on average, and 0.025 for the worst activation."""
    shapes = [((64,), ()), ((64, 48), ()), ((32,) * 3, (False, True, False))]
    architectures = [
        Architecture(hidden, activation, True, dueling, gated)
        for activation in ACTIVATIONS
        for hidden, gated in shapes
    ]
    population = trained(architectures, updates, batch_size=32)
    random = np.random.default_rng(3)
    obs = random_obs(random, count=256)
    found = {activation: [] for activation in ACTIVATIONS}
    for i, architecture in enumerate(architectures):
        state = population.state(i).network("q")
        before = module_values(VECTOR, architecture, state.online, obs)
        for k, count in itertools.product(range(architecture.depth), (16, 32)):
            layer = hidden_units(architecture, k)
            for _ in range(2):
                changed = add_units(architecture, state, layer, count, random)
                after = module_values(VECTOR, changed.architecture, changed.state.online, obs)
                difference = (after - before).abs().mean() / before.abs().mean()
                found[architecture.activation].append(float(difference))
    everything = list(itertools.chain.from_iterable(found.values()))
    assert np.mean(everything) < 0.03
    assert np.quantile(everything, 0.95) < 0.1
    for activation, own in found.items():
        assert np.mean(own) < 0.05, activation


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_doubling_a_layer_keeps_the_function_under_layer_norm(activation):
    random = np.random.default_rng(4)
    for _ in range(4):
        architecture = random_architecture(random, activation=activation, layer_norm=True)
        state = random_state(random, architecture, updates=0)
        state = state._replace(v={name: 0 * v for name, v in state.v.items()})  # all may be copied
        obs = random_obs(random)
        for k in range(architecture.depth):
            layer = hidden_units(architecture, k)
            changed = add_units(architecture, state, layer, layer.size, random)
            assert_same_function(VECTOR, architecture, state, changed, obs)


def test_further_copies_of_a_unit_are_no_twins_under_layer_norm():
    """Two units that read and say the same get the same gradient for ever."""
    random = np.random.default_rng(7)
    for count in (8, 20, 32):
        architecture = Architecture((8, 16), layer_norm=True)
        state = random_state(random, architecture)
        changed = add_units(architecture, state, hidden_units(architecture, 0), count, random)
        for weights in (changed.state.online, changed.state.target):
            new = weights["hidden0.weight"][:, 8:]
            assert len(new.unique(dim=1)[0]) == count
        assert_fits(VECTOR, changed.architecture, changed.state)


def test_few_new_units_under_layer_norm_stay_finite():
    random = np.random.default_rng(5)
    for hidden, count in itertools.product((1, 2, 3), (1, 2, 5)):
        architecture = Architecture((hidden,), layer_norm=True)
        state = random_state(random, architecture)
        changed = add_units(architecture, state, hidden_units(architecture, 0), count, random)
        assert all(value.isfinite().all() for value in changed.state.online.values())


# what stays keeps its bits, and what leaves is chosen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spec", [VECTOR, IMAGE], ids=["vector", "image"])
def test_removing_what_was_added_gives_the_same_bits(spec, dtype):
    """New units are heard by nobody and new gates are shut: they are the first to go."""
    random = np.random.default_rng(6)
    for _ in range(12):
        architecture = random_architecture(random, spec)
        state = random_state(random, architecture, spec, dtype)
        for layer in all_units(spec, architecture):
            count = int(random.integers(1, 30))
            changed = add_units(architecture, state, layer, count, random)
            grown = layer._replace(size=layer.size + count)
            again = remove_units(changed.architecture, changed.state, grown, count)
            assert again.architecture == architecture
            assert_same_state(again.state, state)
        for k in range(architecture.depth):
            again = remove_layer(*add_layer(architecture, state, k, random))
            assert again.architecture == architecture
            assert_same_state(again.state, state)


@pytest.mark.parametrize("spec", [VECTOR, IMAGE], ids=["vector", "image"])
def test_changes_fit_their_architecture_and_leave_their_inputs_alone(spec):
    random = np.random.default_rng(7)
    for _ in range(12):
        architecture = random_architecture(random, spec)
        state = random_state(random, architecture, spec)
        before = copied(state)
        found = [changed for _, changed in growths(spec, architecture, state, random)]
        for layer in all_units(spec, architecture):
            if layer.size > 1:
                found.append(remove_units(architecture, state, layer, 1))
        if architecture.depth > 1:
            found.append(remove_layer(architecture, state))
        for changed in found:
            assert_fits(spec, changed.architecture, changed.state)
            assert changed.state.updates == state.updates
            live_values(spec, *changed, random_obs(random, spec))
        reset_dormant(spec, architecture, state, random)
        assert_same_state(state, before)


def test_a_run_of_gated_layers_widens_together():
    architecture = Architecture((8, 8, 8, 5), gated=(False, True, True, False))
    state = random_state(np.random.default_rng(0), architecture)
    for k in range(3):
        layer = hidden_units(architecture, k)
        changed = add_units(architecture, state, layer, 3, np.random.default_rng(0))
        assert changed.architecture.hidden == (11, 11, 11, 5)
        smaller = remove_units(architecture, state, layer, 3)
        assert smaller.architecture.hidden == (5, 5, 5, 5)


def test_the_units_that_are_heard_least_are_removed():
    architecture = Architecture((6, 4))
    state = random_state(np.random.default_rng(0), architecture)
    for unit, factor in ((1, 0.01), (4, 0.0), (5, 0.02)):
        state.online["hidden1.weight"][unit] *= factor
    changed = remove_units(architecture, state, hidden_units(architecture, 0), 3)
    assert changed.architecture.hidden == (3, 4)
    kept = [0, 2, 3]
    for part in PARTS:
        old, new = getattr(state, part), getattr(changed.state, part)
        assert torch.equal(new["hidden0.weight"], old["hidden0.weight"][:, kept])
        assert torch.equal(new["hidden0.bias"], old["hidden0.bias"][kept])
        assert torch.equal(new["hidden1.weight"], old["hidden1.weight"][kept])


def test_the_gated_layer_that_is_most_nearly_shut_is_removed():
    architecture = Architecture((6, 6, 6, 3), gated=(False, True, True, False))
    state = random_state(np.random.default_rng(0), architecture)
    state.online["hidden1.gate"].fill_(-0.5)
    state.online["hidden2.gate"].fill_(0.4)
    changed = remove_layer(architecture, state)
    assert changed.architecture == Architecture((6, 6, 3), gated=(False, True, False))
    assert torch.equal(changed.state.v["hidden1.gate"], state.v["hidden1.gate"])
    assert torch.equal(changed.state.m["hidden2.weight"], state.m["hidden3.weight"])


@pytest.mark.parametrize("hidden", [(7, 4), (4, 7), (5, 5)])
def test_without_gated_layers_the_last_one_is_removed(hidden):
    architecture = Architecture(hidden, dueling=True)
    state = random_state(np.random.default_rng(0), architecture)
    changed = remove_layer(architecture, state)
    assert changed.architecture == Architecture(hidden[:1], dueling=True)
    both = min(hidden)
    for part, rest in zip(PARTS, (0, 0, 0, surgery.NEW), strict=True):
        old, new = getattr(state, part)["head.weight"], getattr(changed.state, part)["head.weight"]
        assert torch.equal(new[:, :both], old[:, :both])
        assert (new[:, both:] == rest).all()


# new units


def test_donors_are_lively_and_chosen_evenly():
    architecture = Architecture((10,))
    state = random_state(np.random.default_rng(0), architecture)
    dead = [2, 7]
    for name in ("hidden0.weight", "hidden0.bias"):
        state.v[name].fill_(1e-6)[..., dead] = 1e-9
    layer = hidden_units(architecture, 0)
    for count in (3, 8, 21):
        found = surgery._donors(state, layer, count, 0.1, np.random.default_rng(1))
        donors = found.bincount(minlength=10)
        assert donors.sum() == count
        assert donors[dead].sum() == 0
        alive = donors[[i for i in range(10) if i not in dead]]
        assert alive.max() - alive.min() <= 1


def test_new_units_are_their_donors_with_noise_in_both_networks():
    random = np.random.default_rng(0)
    architecture = Architecture((40, 5))
    state = random_state(random, architecture)
    changed = add_units(architecture, state, hidden_units(architecture, 0), 40, random).state
    for part in ("online", "target"):
        old, new = (getattr(s, part)["hidden0.weight"] for s in (state, changed))
        assert torch.equal(new[:, :40], old)
        noise = (new[:, 40:] - old).square().mean() / old.square().mean()
        assert 0.25 < noise.sqrt() < 0.35
        bias = getattr(changed, part)["hidden0.bias"]
        assert torch.equal(bias[40:], bias[:40])
        assert not getattr(changed, part)["hidden1.weight"][40:].any()
    both = [
        getattr(changed, part)["hidden0.weight"][:, 40:] - getattr(state, part)["hidden0.weight"]
        for part in ("online", "target")
    ]
    torch.testing.assert_close(*both, rtol=0, atol=1e-6)


def test_a_new_layer_reads_its_inputs_from_zero_mean_weights():
    random = np.random.default_rng(0)
    architecture = Architecture((50,), layer_norm=True)
    state = random_state(random, architecture)
    changed = add_layer(architecture, state, 0, random)
    assert changed.architecture.gated == (False, True)
    for part in ("online", "target"):
        new = getattr(changed.state, part)
        weight = new["hidden1.weight"]
        assert weight.mean(0).abs().max() < 1e-6
        assert 0.9 < weight.std() / np.sqrt(2 / 50) < 1.1
        assert torch.equal(weight, changed.state.online["hidden1.weight"])
        assert not new["hidden1.gate"].any()
        assert (new["hidden1.scale"] == 1).all()
    assert (changed.state.v["hidden1.weight"] == surgery.NEW).all()


# learning goes on


@functools.cache
def experienced(spec=VECTOR):
    """Agents of every activation, with and without LayerNorm and dueling, that learned for long."""
    updates, batch_size = (20, 16) if spec is IMAGE else (300, 128)
    shape = {"hidden": (32, 24, 24), "gated": (False, False, True)}
    kinds = itertools.product(ACTIVATIONS, (False, True), (False, True))
    if spec is IMAGE:  # which are slow: six of them
        shape = {"hidden": (8,), "channels": (4, 6), "kernels": (3, 2), "strides": (1, 2)}
        kinds = zip((*ACTIVATIONS, "relu"), (0, 0, 1, 1, 0, 1), (0, 1, 0, 1, 0, 1), strict=True)
    architectures = [
        Architecture(activation=activation, layer_norm=bool(norm), dueling=bool(dueling), **shape)
        for activation, norm, dueling in kinds
    ]
    population = trained(architectures, updates, spec, batch_size=batch_size, lr=LR)
    states = []
    for i in range(len(architectures)):
        state = population.state(i).network("q")
        v = {name: value / (1 - 0.999**updates) for name, value in state.v.items()}
        states.append(state._replace(v=v, updates=10_000))  # nothing left of the bias correction
    return architectures, states


def grown_agents(what):
    random = np.random.default_rng(8)
    changed = []
    spec = IMAGE if what == "channels" else VECTOR
    for i, (architecture, state) in enumerate(zip(*experienced(spec), strict=True)):
        k = i % architecture.depth
        if what == "layer":
            changed.append(add_layer(architecture, state, k, random))
        elif what == "channels":
            layer = channel_units(IMAGE, architecture, i % 2)
            changed.append(add_units(architecture, state, layer, 3, random))
        else:
            layer = hidden_units(architecture, k)
            changed.append(add_units(architecture, state, layer, 16, random))
    return changed


def rebuilt(changed, forget=False, spec=VECTOR, dtype=torch.float32, **options):
    """A population of these; with `forget`, new weights have plain zero moments."""
    states = [state for _, state in changed]
    if forget:
        states = [
            state._replace(v={name: v.clamp(min=0) for name, v in state.v.items()})
            for state in states
        ]
    genomes = [
        genome(i, architecture, batch_size=128 if spec is VECTOR else 32, lr=LR)
        for i, (architecture, _) in enumerate(changed)
    ]
    population = population_of(genomes, spec, dtype=dtype, **options)
    population.rebuild(genomes, list(map(whole, states)))
    check(population, list(map(whole, states)))
    return population


def new_weights(changed):
    return [{name: v < 0 for name, v in state.v.items()} for _, state in changed]


def moves(before, after, new):
    """How far new weights went, in learning rates."""
    parts = [(after[name] - before[name])[new[name]].abs() / LR for name in new]
    return torch.cat(parts)


def can_learn(architecture, parameters, obs):
    """Which weights have any gradient on these observations, by segment."""
    upstream = torch.from_numpy(np.random.default_rng(0).normal(size=(len(obs), 3))).float()
    if architecture.channels:  # those segments in which new channels have weights
        network = to_module(IMAGE, architecture, parameters)
        (network(obs) * upstream).sum().backward()
        first, second = network.convolutions[0], network.convolutions[2]
        hidden = network.body[0][0]
        found = {"hidden0.weight": hidden.weight.grad.T != 0}
        for k, conv in enumerate((first, second)):
            found[f"conv{k}.weight"] = conv.weight.grad != 0
            found[f"conv{k}.bias"] = conv.bias.grad != 0
        return found
    network = LoneNetwork(VECTOR, architecture, torch.float32)
    network.load(parameters)
    (network(obs) * upstream).sum().backward()
    return network.read(lambda p: p.grad != 0)


@pytest.mark.parametrize("what", ["units", "layer", "channels"])
def test_new_weights_learn_at_once_and_never_jump(what):
    """All of them, but those of ReLU units that are silent on a whole batch: they have no gradient.

    A ReLU weight must move if it has a gradient at the second update.
    """
    changed = grown_agents(what)
    new = new_weights(changed)
    population = rebuilt(changed, spec=IMAGE if what == "channels" else VECTOR)
    start = [population.state(i).network("q").online for i in range(population.size)]
    random = np.random.default_rng(9)
    learn(population, random, 1)
    middle = [population.state(i).network("q").online for i in range(population.size)]
    samples, requests = learn(population, random, 1)
    seen = {agent: samples.obs[where] for agent, _, where in places(requests)}
    for i, (architecture, _) in enumerate(changed):
        after = population.state(i).network("q").online
        for old, now in ((start[i], middle[i]), (middle[i], after)):
            assert moves(old, now, new[i]).max() < 1.01
        free = can_learn(architecture, middle[i], seen[i])
        for name, fresh in new[i].items():
            moved = (after[name] != start[i][name]) & fresh
            if fresh.any():
                assert moved[fresh & free[name]].all(), (i, name)
            if architecture.activation != "relu":
                assert moved[fresh].all(), (i, name)
    for _ in range(5 if what == "channels" else 30):  # and later, as gradients of new weights grow
        before = [population.state(i).network("q").online for i in range(population.size)]
        learn(population, random, 1)
        for i in range(population.size):
            assert moves(before[i], population.state(i).network("q").online, new[i]).max() < 1.01


@pytest.mark.parametrize("what", ["units", "layer"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_new_relu_units_are_active(what, layer_norm):
    """On a batch of 128. Of the units that were there, 92 % are."""
    random = np.random.default_rng(9)
    active, before = [], []
    agents = [
        (architecture, state)
        for architecture, state in zip(*experienced(), strict=True)
        if architecture.activation == "relu" and architecture.layer_norm == layer_norm
    ]
    for (architecture, state), k, _ in itertools.product(agents, range(3), range(5)):
        if what == "layer":
            changed = add_layer(architecture, state, k, random)
        else:
            changed = add_units(architecture, state, hidden_units(architecture, k), 16, random)
        heard = {
            name: torch.where(value == 0, 1e-2, value)
            for name, value in changed.state.online.items()
        }
        free = can_learn(changed.architecture, heard, random_obs(random, count=128))
        for name, v in changed.state.v.items():
            if name.endswith("shift" if layer_norm else "bias"):
                active.append(free[name][v < 0])
                before.append(free[name][v >= 0])
    new, old = (float(torch.cat(found).float().mean()) for found in (active, before))
    # under LayerNorm new units have the statistics of all, silent ones included
    assert new > (0.85 if layer_norm and what == "units" else 0.95)
    assert 0.9 < old < 0.95


@pytest.mark.parametrize("what", ["units", "layer"])
def test_without_a_mark_new_weights_would_jump(what):
    changed = grown_agents(what)
    new = new_weights(changed)
    population = rebuilt(changed, forget=True)
    random, largest = np.random.default_rng(9), np.zeros(len(changed))
    for _ in range(2):
        before = [population.state(i).network("q").online for i in range(population.size)]
        learn(population, random, 1)
        for i in range(population.size):
            jump = float(moves(before[i], population.state(i).network("q").online, new[i]).max())
            largest[i] = max(largest[i], jump)
    assert (largest > 2).all()


def test_old_weights_keep_their_moments():
    for architecture, state in grown_agents("units")[:4]:
        for name, v in state.v.items():
            new = v < 0
            assert not state.m[name][new].any()
            assert (v[new] == surgery.NEW).all()
            assert (v[~new] > 0).any() or new.all()
        assert_fits(VECTOR, architecture, state)


class OwnAdam:
    """Plain modules and autograd, and Adam by its definition with the rule for new weights."""

    def __init__(self, hp, architecture, state):
        self.hp, self.steps = hp, state.updates
        self.online, self.target = (LoneNetwork(VECTOR, architecture) for _ in range(2))
        self.online.load(state.online)
        self.target.load(state.target)
        self.m = {name: value.clone() for name, value in state.m.items()}
        self.v = {name: value.abs() for name, value in state.v.items()}
        self.new = {name: value < 0 for name, value in state.v.items()}

    def learn(self, obs, action, rewards, next_obs, bootstrap, importance):
        with torch.no_grad():
            best = self.online(next_obs).argmax(1, keepdim=True)
            future = self.target(next_obs).gather(1, best).squeeze(1)
            windows = zip(rewards.tolist(), bootstrap.tolist(), strict=True)
            folded = [fold_one(*window, self.hp["gamma"]) for window in windows]
            reward, discount = torch.tensor(folded, dtype=obs.dtype).T
        value = self.online(obs).gather(1, action[:, None]).squeeze(1)
        goal = reward + discount * future
        loss = (importance * nn.functional.smooth_l1_loss(value, goal, reduction="none")).mean()
        self.online.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), self.hp["max_grad_norm"])
        self.steps += 1
        with torch.no_grad():
            gradients = self.online.read(lambda p: p.grad)
            values = self.online.read(lambda p: p.detach().clone())
            for name, gradient in gradients.items():
                values[name] = values[name] - self._step(name, gradient)
            self.online.load(values)
            for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
                slow.copy_((1 - self.hp["tau"]) * slow + self.hp["tau"] * fast)

    def _step(self, name, gradient):
        self.m[name] = 0.9 * self.m[name] + 0.1 * gradient
        self.v[name] = 0.999 * self.v[name] + 0.001 * gradient**2
        least = torch.where(self.new[name], self.m[name] ** 2, 0)
        self.v[name] = torch.maximum(self.v[name], least)
        first = self.m[name] / (1 - 0.9**self.steps)
        second = self.v[name] / (1 - 0.999**self.steps)
        return self.hp["lr"] * first / (second.sqrt() + 1e-8)


def test_grown_agents_equal_plain_pytorch():
    architectures = [
        Architecture((12, 9), "relu", dueling=True),
        Architecture((12, 9), "relu", dueling=True),
        Architecture((10, 10), "tanh", True, gated=(False, True)),
        Architecture((14,), "gelu", True),
        Architecture((8, 8, 6), "silu", gated=(False, True, False)),
    ]
    population = trained(architectures, 60, dtype=torch.float64, max_grad_norm=0.5)
    random = np.random.default_rng(10)
    states = [population.state(i).network("q") for i in range(5)]
    changed = [
        add_units(architectures[0], states[0], hidden_units(architectures[0], 1), 9, random),
        add_layer(architectures[1], states[1], 0, random),
        add_units(architectures[2], states[2], hidden_units(architectures[2], 1), 3, random),
        add_layer(architectures[3], states[3], 0, random),
        add_units(architectures[4], states[4], hidden_units(architectures[4], 0), 5, random),
    ]
    population = rebuilt(changed, dtype=torch.float64)
    alone = [
        OwnAdam(population.genomes[i].hyperparameters, *changed[i]) for i in range(population.size)
    ]
    obs = random_obs(random, dtype=torch.float64)
    for i, (architecture, state) in enumerate(changed):
        exported = module_values(VECTOR, architecture, state.online, obs)
        torch.testing.assert_close(alone[i].online(obs), exported, rtol=0, atol=1e-12)
    for _ in range(4):
        samples, requests = learn(population, random, 10)
        for agent, _, where in places(requests):
            obs, action, rewards, next_obs, bootstrap, weight, *_ = (f[where] for f in samples)
            alone[agent].learn(obs, action, rewards, next_obs, bootstrap, weight * len(where))
    for i, agent in enumerate(alone):
        state = population.state(i).network("q")
        assert any(new.any() for new in agent.new.values())
        expected = agent.online.read(), agent.target.read(), agent.m, agent.v
        for part, values in zip(PARTS, expected, strict=True):
            for name, value in getattr(state, part).items():
                if part == "v":
                    assert torch.equal(value < 0, agent.new[name])
                    value = value.abs()
                torch.testing.assert_close(value, values[name], rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="torch.compile needs g++")
def test_compiled_updates_of_new_weights_equal_eager_ones():
    architecture = Architecture((12,), "gelu", True)
    state = trained([architecture], 60, dtype=torch.float64).state(0).network("q")
    random = np.random.default_rng(11)
    changed = [
        add_layer(architecture, state, 0, random),
        add_units(architecture, state, hidden_units(architecture, 0), 4, random),
    ]
    eager, compiled = (rebuilt(changed, dtype=torch.float64, compiled=c) for c in (False, True))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="torch.compile failed")
        for population in (eager, compiled):
            learn(population, np.random.default_rng(12), 10)
    for i in range(2):
        for part in PARTS:
            for name, value in getattr(compiled.state(i), part).items():
                other = getattr(eager.state(i), part)[name]
                torch.testing.assert_close(value, other, rtol=0, atol=1e-9)
                assert part != "v" or torch.equal(value < 0, other < 0)


# dormant units


def with_dead(architecture, units, layer="hidden0", spec=VECTOR):
    """A state in which these units of a layer are dead: they output nothing and learn nothing."""
    state = random_state(np.random.default_rng(0), architecture, spec)
    for part in ("online", "target"):
        own = getattr(state, part)
        own[f"{layer}.shift" if architecture.layer_norm else f"{layer}.bias"][units] = -100
    for name in ("weight", "bias", "scale", "shift"):
        if f"{layer}.{name}" in state.v:
            v = state.v[f"{layer}.{name}"]
            axis = 1 if v.dim() == 2 else 0
            dead = (name != "weight" and name != "bias") or not architecture.layer_norm
            v.index_fill_(axis, torch.tensor(units), 0.0 if dead else 1e-6)
    return state


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_dormant_units_begin_again_and_the_function_stays(layer_norm, dueling):
    architecture = Architecture((12, 10), "relu", layer_norm, dueling)
    units = [1, 5, 6]
    state = with_dead(architecture, units)
    layer = hidden_units(architecture, 0)
    assert dormant_units(state, layer).nonzero().view(-1).tolist() == units
    found = reset_dormant(VECTOR, architecture, state, np.random.default_rng(0))
    others = [i for i in range(12) if i not in units]
    for part in PARTS:
        old, new = getattr(state, part), getattr(found, part)
        assert torch.equal(new["hidden0.weight"][:, others], old["hidden0.weight"][:, others])
        assert torch.equal(new["hidden1.weight"][others], old["hidden1.weight"][others])
        assert torch.equal(new["hidden1.bias"], old["hidden1.bias"])
    for part in ("online", "target"):
        new = getattr(found, part)
        assert new["hidden0.weight"][:, units].abs().max() <= 1 / np.sqrt(6)
        assert (
            new["hidden0.weight"][:, units] != getattr(state, part)["hidden0.weight"][:, units]
        ).all()
        assert not new["hidden1.weight"][units].any()
    assert (found.v["hidden0.weight"][:, units] == surgery.NEW).all()
    assert (found.v["hidden1.weight"][units] == surgery.NEW).all()
    assert not found.m["hidden1.weight"][units].any()
    if not layer_norm:
        obs = random_obs(np.random.default_rng(0))
        before, after = (module_values(VECTOR, architecture, s.online, obs) for s in (state, found))
        assert change(before, after) < 1e-6


def test_dormant_channels_begin_again():
    architecture = Architecture((8,), channels=(4, 5), kernels=(3, 2), strides=(1, 2))
    state = random_state(np.random.default_rng(0), architecture, IMAGE)
    state.v["conv1.weight"][3] = 0
    state.v["conv1.bias"][3] = 0
    found = reset_dormant(IMAGE, architecture, state, np.random.default_rng(0))
    each = found.online["hidden0.weight"].shape[0] // 5
    silent = (found.online["hidden0.weight"] == 0).all(1)
    assert silent.nonzero().view(-1).tolist() == list(range(3 * each, 4 * each))
    assert (found.v["conv1.weight"][3] == surgery.NEW).all()
    assert_fits(IMAGE, architecture, found)


def test_young_agents_have_no_dormant_units():
    architecture = Architecture((12, 10))
    state = with_dead(architecture, [1])._replace(updates=999)
    assert not dormant_units(state, hidden_units(architecture, 0)).any()
    assert reset_dormant(VECTOR, architecture, state, np.random.default_rng(0)) is state


def test_units_shared_with_a_gated_layer_are_not_reset():
    architecture = Architecture((12, 12), gated=(False, True))
    state = with_dead(architecture, [1])
    assert dormant_units(state, hidden_units(architecture, 0)).any()
    assert reset_dormant(VECTOR, architecture, state, np.random.default_rng(0)) is state


@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_unit_that_dies_is_found_after_training(layer_norm):
    """Dead from birth; the others learn, and none of them is taken for dead."""
    architecture = Architecture((16, 16), layer_norm=layer_norm)
    population = population_of([genome(0, architecture)], VECTOR)
    state = population.state(0)
    state.online["q.hidden0.shift" if layer_norm else "q.hidden0.bias"][4] = -100
    population.rebuild(population.genomes, [state])
    random = np.random.default_rng(0)
    for _ in range(10):
        learn(population, random, 100)
    state = population.state(0).network("q")
    found = [dormant_units(state, hidden_units(architecture, k)) for k in range(2)]
    assert found[0].nonzero().view(-1).tolist() == [4]
    assert not found[1].any()
