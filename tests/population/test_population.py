"""The population against agents trained alone, and what must not depend on the neighbours."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.experience.transitions import Samples
from evorl.genome import Architecture
from evorl.networks.layout import network_part, signature
from evorl.networks.spec import NetworkSpec
from evorl.population.grouping import Kind, kinds_of
from tests.population.checks import check
from tests.reference import (
    LoneAgent,
    LoneNetwork,
    fold_one,
    genome,
    learn_alone,
    outside,
    places,
    population_of,
    random_samples,
)

torch.set_num_threads(1)

SPEC = NetworkSpec(inputs=6, outputs=3)
MATRICES = ("theta", "target", "m", "v")
PARTS = ("online", "target", "m", "v")

# Six signatures, five of them shared by agents of different width and depth.
MIXED = [
    genome(0, Architecture((64,), "relu"), lr=2e-3, batch_size=24),
    genome(1, Architecture((48, 64, 40), "relu"), gamma=0.9, max_grad_norm=0.05, learn_step=2),
    genome(2, Architecture((64, 64), "relu", gated=(False, True)), tau=0.2, batch_size=5),
    genome(3, Architecture((100,), "tanh", True, True), learn_step=3, max_grad_norm=0),
    genome(
        4,
        Architecture((70, 100, 100), "tanh", True, True, gated=(False, False, True)),
        target_period=4,
        batch_size=9,
    ),
    genome(5, Architecture((16,), "gelu", True), gamma=1.0, learn_step=4, max_grad_norm=0.1),
    genome(6, Architecture((9, 16, 16), "gelu", True, gated=(False, False, True)), lr=5e-4),
    genome(7, Architecture((24, 24), "elu", False, True, (False, True)), tau=1.0, batch_size=32),
    genome(8, Architecture((32, 17, 5), "elu", False, True), gamma=0.0, learn_step=6),
    genome(9, Architecture((5,), "silu"), max_grad_norm=0.01, target_period=1),
    genome(10, Architecture((5, 8), "silu"), lr=3e-3, batch_size=1, learn_step=12),
    genome(11, Architecture((48, 48, 33), "relu", True, gated=(False, True, False)), tau=0.05),
]
NINE = [genome(i, Architecture((32, 20 + i)), lr=1e-3 * (i + 1)) for i in range(9)]


def updates_of(genomes, steps=12):
    """Updates of a round in which every environment makes so many steps."""
    return np.array([steps // int(g.hyperparameters["learn_step"]) for g in genomes])


def opened_gates(population):
    """Start with gates at 0.3, so that gated layers matter from the first update."""
    states = [population.state(i) for i in range(population.size)]
    for state in states:
        for name in state.online:
            if name.endswith("gate"):
                state.online[name].fill_(0.3)
                state.target[name].fill_(0.2)
    population.rebuild(population.genomes, states)
    return population


def trained(
    genomes,
    rounds=3,
    updates=None,
    algorithm=None,
    *,
    seed=0,
    nan=(),
    garbage=1.0,
    each=None,
    **options,
):
    """A population after some rounds on random data; rows in `nan` are spoiled first."""
    dtype = options.get("dtype", torch.float32)
    population = population_of(genomes, SPEC, algorithm, **options)
    for group, numbers in zip(population.groups, population.members, strict=True):
        group.theta[np.isin(numbers, nan)] = torch.nan
    random = np.random.default_rng(seed)
    for _ in range(rounds):
        requests = population.requests(updates_of(genomes, 4) if updates is None else updates)
        samples = random_samples(requests, SPEC, random, dtype=dtype, garbage=garbage)
        learned = population.learn(samples, requests)
        if each is not None:
            each(learned)
    return population


def assert_same_bits(left, right, agents):
    for i in agents:
        a, b = left.state(i), right.state(i)
        for part in PARTS:
            for name, value in getattr(a, part).items():
                assert torch.equal(value, getattr(b, part)[name]), (i, part, name)
        assert a.updates == b.updates


def compared(double, loss_kind, periodic, steps, dtype, rounds, per_round):
    """Train together and alone; (population, agents alone)."""
    options = {"double": double, "loss_kind": loss_kind}
    algorithm = DQN(**options, target_update="periodic" if periodic else "soft")
    population = population_of(MIXED, SPEC, algorithm, dtype=dtype)
    opened_gates(population)
    alone = [
        LoneAgent(SPEC, g, population.state(i), periodic=periodic, dtype=dtype, **options)
        for i, g in enumerate(MIXED)
    ]
    random = np.random.default_rng(5)
    for _ in range(rounds):
        requests = population.requests(updates_of(MIXED, per_round))
        samples = random_samples(requests, SPEC, random, steps=steps, dtype=dtype)
        learned = population.learn(samples, requests)
        losses = learn_alone(alone, samples, requests)
        tolerance = 1e-9 if dtype == torch.float64 else 1e-3
        np.testing.assert_allclose(learned.loss, losses, rtol=tolerance, atol=tolerance)
    assert population.alive.all()
    return population, alone


def assert_padding_zero(population):
    for group in population.groups:
        for name, values in outside(group).items():
            assert values.numel() > 0, name
            assert not values.any(), (group.layout.signatures["q"], name)


def test_mixed_population_covers_what_it_should():
    assert {g.architectures["q"].activation for g in MIXED} == {
        "relu",
        "elu",
        "gelu",
        "tanh",
        "silu",
    }
    assert {g.architectures["q"].depth for g in MIXED} == {1, 2, 3}
    groups = population_of(MIXED, SPEC).groups
    assert sorted(group.size for group in groups) == [1, 2, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("double", "loss_kind", "periodic", "steps", "updates"),
    [
        (True, "huber", False, 1, 300),
        (True, "mse", True, 3, 120),
        (False, "huber", True, 1, 120),
        (False, "mse", False, 3, 120),
    ],
)
def test_together_equals_alone_after_hundreds_of_updates(
    double, loss_kind, periodic, steps, updates
):
    rounds = updates // 12
    population, alone = compared(double, loss_kind, periodic, steps, torch.float64, rounds, 12)
    assert max(agent.updates for agent in alone) == updates
    for i, agent in enumerate(alone):
        state = population.state(i)
        assert state.updates == agent.updates
        for part, expected in agent.parts().items():
            for name, value in getattr(state, part).items():
                difference = (value - expected[name]).abs().max()
                assert difference < 1e-9, (i, part, name, difference)
    assert_padding_zero(population)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_widths_in_one_matrix_learn_what_they_learn_alone(layer_norm, dueling, whole):
    """Narrow agents that ride along with wide ones; `whole`: in the layout of compiled updates."""
    shapes = [((5,), ()), ((40, 24), ()), ((48, 48, 48), (False, True, True)), ((33, 70), ())]
    genomes = [
        genome(i, Architecture(hidden, "gelu", layer_norm, dueling, gated), batch_size=4 + 3 * i)
        for i, (hidden, gated) in enumerate(shapes)
    ]
    wide = signature(genomes[-1].architectures["q"])._replace(widths=(96,) * 3)
    kind = Kind((wide,), 16, skips=(True,))
    population = population_of(genomes, SPEC, compiled=whole, kinds=[kind] * 4, dtype=torch.float64)
    if population.compiled:
        population.compiled._ways.clear()  # its layout is what counts here
    states = [population.state(i) for i in range(4)]
    states[2].online["q.hidden1.gate"].fill_(0.3)
    population.rebuild(genomes, states, [kind] * 4)
    assert population.kinds == [kind]
    options = {"double": True, "loss_kind": "huber", "periodic": False}
    alone = [LoneAgent(SPEC, g, states[i], **options) for i, g in enumerate(genomes)]
    random = np.random.default_rng(0)
    for _ in range(5):
        requests = population.requests(np.full(4, 10))
        samples = random_samples(requests, SPEC, random, dtype=torch.float64)
        population.learn(samples, requests)
        learn_alone(alone, samples, requests)
    for i, agent in enumerate(alone):
        assert agent.updates == population.state(i).updates == 50
        for part, expected in agent.parts().items():
            for name, value in getattr(population.state(i), part).items():
                difference = (value - expected[name]).abs().max()
                assert difference < 1e-9, (i, part, name, difference)
    assert_padding_zero(population)


@pytest.mark.parametrize("loss_kind", ["huber", "mse"])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("periodic", [False, True])
def test_together_equals_alone_in_float32(double, loss_kind, periodic):
    population, alone = compared(double, loss_kind, periodic, 3, torch.float32, 1, 20)
    assert max(agent.updates for agent in alone) == 20
    for i, agent in enumerate(alone):
        state, parts = population.state(i), agent.parts()
        for part in ("online", "target"):
            largest = max(value.abs().max() for value in parts[part].values())
            for name, value in getattr(state, part).items():
                difference = (value - parts[part][name]).abs().max()
                assert difference < 1e-4 * largest, (i, part, name, difference / largest)
    assert_padding_zero(population)


@pytest.mark.parametrize(("dtype", "huge"), [(torch.float64, 1e30), (torch.float32, 1e6)])
def test_padded_samples_do_not_matter(dtype, huge):
    losses = {1.0: [], huge: []}
    plain, spoiled = (
        trained(MIXED, garbage=g, dtype=dtype, each=lambda x, g=g: losses[g].append(x.loss))
        for g in losses
    )
    assert_same_bits(plain, spoiled, range(len(MIXED)))
    np.testing.assert_array_equal(losses[1.0], losses[huge])
    assert spoiled.alive.all()
    assert_padding_zero(spoiled)


def test_outputs_equal_plain_modules():
    population = opened_gates(population_of(MIXED, SPEC, dtype=torch.float64))
    obs = torch.from_numpy(np.random.default_rng(0).normal(size=(len(MIXED), 11, 6)))
    for numbers, group in zip(population.members, population.groups, strict=True):
        values = group.online["q"](obs[torch.from_numpy(numbers)])
        for row, i in enumerate(numbers):
            alone = LoneNetwork(SPEC, MIXED[i].architectures["q"])
            alone.load(network_part(population.state(i).online, "q"))
            torch.testing.assert_close(values[row], alone(obs[i]), rtol=0, atol=1e-12)


def test_act_is_greedy_where_not_exploring():
    population = population_of(MIXED, SPEC, dtype=torch.float64)
    draw = np.random.default_rng(0)
    obs = draw.normal(size=(len(MIXED), 40, 6))
    explore = draw.random((len(MIXED), 40)) < 0.5
    random = draw.integers(0, 3, explore.shape)
    noise = {"chance": np.where(explore, 0.0, 1.0), "action": random}
    actions = population.act(obs, noise, np.full(len(MIXED), 0.5))
    for i, g in enumerate(MIXED):
        alone = LoneNetwork(SPEC, g.architectures["q"])
        alone.load(network_part(population.state(i).online, "q"))
        greedy = alone(torch.from_numpy(obs[i])).argmax(1).numpy()
        np.testing.assert_array_equal(actions[i], np.where(explore[i], random[i], greedy))
        np.testing.assert_array_equal(population.greedy(obs)[i], greedy)
    assert actions.dtype == np.int64
    assert (actions != random).any()


def test_act_in_one_group_equals_act_in_many():
    many = population_of(MIXED, SPEC)
    obs = np.random.default_rng(0).normal(size=(len(MIXED), 40, 6)).astype(np.float32)
    random = np.random.default_rng(1)
    noise = {"chance": random.random((len(MIXED), 40)), "action": random.integers(3, size=(12, 40))}
    rates = np.linspace(0, 1, len(MIXED))
    actions = many.act(obs, noise, rates)
    one = population_of(MIXED[:3], SPEC)
    assert len(one.groups) == 1
    noise = {name: values[:3] for name, values in noise.items()}
    np.testing.assert_array_equal(one.act(obs[:3], noise, rates[:3]), actions[:3])
    np.testing.assert_array_equal(one.greedy(obs[:3]), many.greedy(obs)[:3])


@pytest.mark.parametrize("periodic", [False, True])
def test_agents_not_due_keep_every_bit(periodic):
    population = trained(
        MIXED, rounds=1, algorithm=DQN(target_update="periodic" if periodic else "soft")
    )
    before = [population.state(i) for i in range(len(MIXED))]
    due = np.arange(len(MIXED)) % 2
    requests = population.requests(due * 8)
    learned = population.learn(
        random_samples(
            requests, SPEC, np.random.default_rng(1), dtype=torch.float32, garbage=100.0
        ),
        requests,
    )
    np.testing.assert_array_equal(np.isnan(learned.loss), due == 0)
    assert population.alive.all()
    for i, old in enumerate(before):
        new = population.state(i)
        assert new.updates == old.updates + 8 * due[i]
        for part in PARTS:
            same = [torch.equal(getattr(new, part)[n], x) for n, x in getattr(old, part).items()]
            assert all(same) if not due[i] else not all(same), (i, part)


def test_a_round_without_updates_changes_nothing():
    population, untouched = (population_of(MIXED, SPEC) for _ in range(2))
    requests = population.requests(np.zeros(len(MIXED), np.int64))
    samples = random_samples(requests, SPEC, np.random.default_rng(0), dtype=torch.float32)
    learned = population.learn(samples, requests)
    assert np.isnan(learned.loss).all()
    assert population.alive.all()
    assert_same_bits(population, untouched, range(len(MIXED)))


@pytest.mark.parametrize("sick", [0, 1, 5, 11])
def test_nan_kills_one_agent_and_touches_no_other(sick):
    updates = np.full(len(MIXED), 3)
    healthy = trained(MIXED, rounds=1, updates=updates)
    spoiled = trained(MIXED, rounds=1, updates=updates, nan=[sick])
    others = [i for i in range(len(MIXED)) if i != sick]
    assert healthy.alive.all()
    assert np.flatnonzero(~spoiled.alive).tolist() == [sick]
    assert_same_bits(healthy, spoiled, others)
    assert [sick] == [
        int(agent)
        for request in spoiled.requests(updates)
        for agent, count in zip(request.agents, request.updates, strict=True)
        if count == 0
    ]


def test_the_dead_stay_dead_and_their_group_goes_on():
    """Agent 0 has living neighbours; agent 11 is alone in its group, which then has no updates."""
    updates = np.full(len(MIXED), 3)
    losses = []
    population = trained(
        MIXED, rounds=3, updates=updates, nan=[0, 11], each=lambda learned: losses.append(learned)
    )
    for learned in losses:
        assert np.flatnonzero(np.isnan(learned.loss)).tolist() == [0, 11]
    assert population.mark_dead().tolist() == [0, 11]
    assert [population.state(i).updates for i in (0, 1, 2, 11)] == [3, 9, 9, 3]
    for i in range(1, 11):
        assert all(value.isfinite().all() for value in population.state(i).online.values())


def test_mark_dead_sees_weights_before_any_loss_does():
    population = population_of(MIXED, SPEC)
    population.groups[0].theta[1, 3] = torch.inf
    assert population.mark_dead().tolist() == [int(population.members[0][1])]


def test_eager_is_bitwise_repeatable():
    assert_same_bits(trained(MIXED), trained(MIXED), range(len(MIXED)))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("count", [3, 4, 8])
def test_same_bits_among_any_number_of_neighbours(count, layer_norm):
    def trained_group(size):
        genomes = [
            genome(i, Architecture((32, 20 + i), layer_norm=layer_norm), lr=1e-3 * (i + 1))
            for i in range(size)
        ]
        population = population_of(genomes, SPEC)
        for step in range(20):
            requests = population.requests(np.full(size, 1))
            parts = [  # agent i's data don't depend on how many agents there are
                random_samples(
                    [request_of_one(requests[0], i)],
                    SPEC,
                    np.random.default_rng((step, i)),
                    dtype=torch.float32,
                )
                for i in range(size)
            ]
            samples = Samples(*(torch.cat(fields) for fields in zip(*parts, strict=True)))
            population.learn(samples, requests)
        return population

    assert_same_bits(trained_group(2), trained_group(count), range(2))


def request_of_one(request, i):
    return replace(
        request,
        agents=request.agents[i : i + 1],
        updates=request.updates[i : i + 1],
        batch_sizes=request.batch_sizes[i : i + 1],
    )


def outputs(population, agent, obs):
    for numbers, group in zip(population.members, population.groups, strict=True):
        if agent in numbers:
            return group.online["q"](obs.expand(group.size, -1, -1))[list(numbers).index(agent)]
    raise AssertionError(agent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rebuild_among_other_neighbours_keeps_state_and_outputs(dtype):
    population = trained(MIXED, dtype=dtype)
    obs = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 7, 6))).to(dtype)
    states = [population.state(i) for i in range(len(MIXED))]
    before = [outputs(population, i, obs) for i in range(len(MIXED))]
    order = np.random.default_rng(3).permutation(len(MIXED))
    population.rebuild([MIXED[i] for i in order], [states[i] for i in order])
    for place, i in enumerate(order):
        state = population.state(place)
        assert state.updates == states[i].updates
        for part in PARTS:
            for name, value in getattr(states[i], part).items():
                assert torch.equal(getattr(state, part)[name], value)
        assert torch.equal(outputs(population, place, obs), before[i])
    assert_padding_zero(population)


def test_bits_do_not_depend_on_the_row():
    """Clones in every row of a group value the same observations alike, to the bit."""
    genomes = [genome(i, Architecture((64,))) for i in range(5)]
    population = population_of(genomes, SPEC)
    population.rebuild(genomes, [population.state(0)] * 5)
    obs = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 16, 6))).float()
    values = [outputs(population, i, obs) for i in range(5)]
    assert all(torch.equal(value, values[0]) for value in values)


@pytest.mark.parametrize("grown", [(30, 30), (40, 32), (32, 65)])
def test_an_agent_that_grows_moves_to_another_group(grown):
    """New units have no outgoing weights: the function stays; so does all that was there."""
    genomes = NINE[:3]
    population = trained(genomes, dtype=torch.float64)
    small = Architecture((30, 20))
    states = [population.state(i) for i in range(3)]
    states[1] = cut(states[1], small)
    genomes = [genomes[0], genome(1, small), genomes[2]]
    population.rebuild(genomes, states)
    obs = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 7, 6)))
    before = [outputs(population, i, obs) for i in range(3)]
    bigger = Architecture(grown)
    moved = signature(bigger) != signature(small)
    grown_states = [states[0], padded(states[1], grown), states[2]]
    genomes[1] = genome(1, bigger)
    kinds = [kinds_of({"q": SPEC}, [own], compiled=False)[0] for own in genomes]  # each by itself
    population.rebuild(genomes, grown_states, kinds)
    assert len(population.groups) == 1 + moved
    state = population.state(1)
    for part in PARTS:
        for name, value in getattr(states[1], part).items():
            found = getattr(state, part)[name]
            corner = tuple(map(slice, value.shape))
            assert torch.equal(found[corner], value)
            assert found.count_nonzero() == value.count_nonzero()
    after = [outputs(population, i, obs) for i in range(3)]
    for i in range(3):
        torch.testing.assert_close(after[i], before[i], rtol=0, atol=1e-13)


def cut(state, architecture):
    """A smaller agent from a bigger one's leading corners."""
    sizes = (SPEC.inputs, *architecture.hidden)
    shapes = {"q.head.weight": (SPEC.outputs, sizes[-1]), "q.head.bias": (SPEC.outputs,)}
    for k, (a, b) in enumerate(pairwise(sizes)):
        shapes |= {f"q.hidden{k}.weight": (a, b), f"q.hidden{k}.bias": (b,)}
    return state._replace(
        **{
            part: {n: getattr(state, part)[n][tuple(map(slice, s))] for n, s in shapes.items()}
            for part in PARTS
        }
    )


def padded(state, hidden):
    """The same agent with more units, all of their weights zero."""
    sizes = (SPEC.inputs, *hidden)

    def widen(parameters):
        found = {}
        for name, value in parameters.items():
            layer = len(hidden) if name.startswith("q.head") else int(name[8])
            if name == "q.head.weight":
                shape = (SPEC.outputs, sizes[-1])
            elif name == "q.head.bias":
                shape = (SPEC.outputs,)
            else:
                shape = sizes[layer : layer + 2] if value.dim() == 2 else (sizes[layer + 1],)
            found[name] = torch.zeros(shape, dtype=value.dtype)
            found[name][tuple(map(slice, value.shape))] = value
        return found

    return state._replace(**{part: widen(getattr(state, part)) for part in PARTS})


@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("gammas", [(0.99, 0.5, 0.9), (1.0, 0.0, 0.3)])
def test_fold_is_the_loop(steps, gammas):
    random = np.random.default_rng(0)
    population = population_of([genome(i, Architecture((4,))) for i in range(3)], SPEC)
    requests = population.requests(np.full(3, 2))
    flat = random_samples(requests, SPEC, random, steps=steps)
    samples = Samples(*(field.view(*requests[0].shape, *field.shape[1:]) for field in flat))
    batch = samples.batches(torch.tensor(gammas, dtype=torch.float64))
    for u, p, b in np.ndindex(*requests[0].shape):
        window = int(samples.bootstrap[u, p, b])
        reward, discount = fold_one(samples.rewards[u, p, b].tolist(), window, gammas[p])
        assert batch.reward[u, p, b].item() == pytest.approx(reward, abs=1e-14)
        assert batch.discount[u, p, b].item() == pytest.approx(discount, abs=1e-14)
        if window == 0:
            assert batch.discount[u, p, b].item() == 0
    assert (samples.bootstrap == 0).any()
    assert (samples.bootstrap == steps).any()
    for name in ("obs", "action", "next_obs", "weight"):
        assert getattr(batch, name) is getattr(samples, name)


def test_places_follow_the_requests():
    population = population_of(MIXED, SPEC)
    requests = population.requests(updates_of(MIXED))
    found = [where for _, _, where in places(requests)]
    flat = np.concatenate(found)
    assert len(flat) == len(set(flat.tolist()))
    assert len(found) == updates_of(MIXED).sum()
    assert [int(i) for request in requests for i in request.agents] == [
        i for numbers in population.members for i in numbers
    ]


# the invariant


def checked():
    population = trained(MIXED, rounds=1)
    states = [population.state(i) for i in range(len(MIXED))]
    population.rebuild(MIXED, states)
    return population, states


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("compiled", [False, True])
def test_what_was_rebuilt_is_what_the_genomes_say(dtype, compiled):
    population = trained(MIXED, rounds=1, dtype=dtype)
    states = [population.state(i) for i in range(len(MIXED))]
    population = population_of(MIXED, SPEC, dtype=dtype, compiled=compiled)
    check(population)
    population.rebuild(MIXED, states)
    check(population, states)
    order = np.random.default_rng(0).permutation(len(MIXED))
    population.rebuild([MIXED[i] for i in order], [states[i] for i in order])
    check(population, [states[i] for i in order])


def test_a_dead_agent_equals_its_own_state():
    population, states = checked()
    for value in states[2].online.values():
        value.fill_(torch.nan)
    population.rebuild(MIXED, states)
    check(population, states)


def row_of(population, agent):
    for numbers, group in zip(population.members, population.groups, strict=True):
        if agent in numbers:
            return group, numbers.tolist().index(agent)
    raise AssertionError(agent)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("spoil", [1.0, 1e-38, torch.nan])
def test_numbers_in_the_padding_are_found(matrix, spoil):
    population, _ = checked()
    group, row = row_of(population, 8)
    free = ~group.layout.mask(MIXED[8].architectures)
    getattr(group.matrices, matrix)[row, free.nonzero()[-1]] = spoil
    with pytest.raises(RuntimeError, match=rf"agent 8: its {matrix} is not zero outside"):
        check(population)


@pytest.mark.parametrize(("matrix", "part"), list(zip(MATRICES, PARTS, strict=True)))
def test_another_bit_in_a_row_is_found(matrix, part):
    population, states = checked()
    group, row = row_of(population, 4)
    view = group.layout.views(getattr(group.matrices, matrix))["q"]["hidden1.weight"]
    view[row, 2, 3] = torch.nextafter(view[row, 2, 3], torch.tensor(torch.inf))
    check(population)
    with pytest.raises(RuntimeError, match=rf"agent 4: its {part} differs in q.hidden1.weight"):
        check(population, states)


def test_another_state_is_found():
    population, states = checked()
    states[7] = states[7]._replace(updates=states[7].updates + 1)
    with pytest.raises(RuntimeError, match="agent 7: its number of updates differs"):
        check(population, states)
    states[7] = states[8]
    with pytest.raises(RuntimeError, match="agent 7: its online has other segments"):
        check(population, states)


@pytest.mark.parametrize("name", ["lr", "gamma", "batch_size", "epsilon_end"])
def test_another_hyperparameter_is_found(name):
    population, states = checked()
    group, row = row_of(population, 10)
    group.hp[name][row] *= 1.5
    with pytest.raises(RuntimeError, match=f"agent 10: its {name} is "):
        check(population, states)


def spoil_mask(name, value):
    def spoil(population):
        group, row = row_of(population, 1)
        getattr(group.masks["q"][2], name)[row] = value

    return spoil


def swap_members(population):
    population.members[0][:2] = population.members[0][:2][::-1].copy()


def forget_member(population):
    population.members[0][0] = population.members[0][1]


def another_genome(population):
    population.genomes[1] = genome(1, MIXED[1].architectures["q"], lr=0.5)


def another_architecture(population):
    group, row = row_of(population, 1)
    other = genome(1, Architecture((48, 64, 41), "relu"), **MIXED[1].hyperparameters)
    population.genomes[1] = group.genomes[row] = other


def another_signature(population):
    group, row = row_of(population, 1)
    other = genome(1, Architecture((48, 64, 40), "elu"), **MIXED[1].hyperparameters)
    population.genomes[1] = group.genomes[row] = other


def other_numbers(population):
    population._hp_by_agent = {n: v[::-1] for n, v in population._hp_by_agent.items()}


def numbers_apart(population):
    group, _ = row_of(population, 1)
    group.updates = group.updates.copy()


def gate_nobody(population):
    group, _ = row_of(population, 2)
    group.networks["q"].mlp.skips = (False,) * 3


def compute_fewer_rows(population):
    group, row = row_of(population, 2)
    assert row == 1
    group.masks["q"] = (
        group.masks["q"][0],
        type(group.masks["q"][1])(*(part[:1] for part in group.masks["q"][1])),
        group.masks["q"][2],
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_mask("units", 1.0), r"agent 1: its mask of layer 2 \(units\)"),
        (spoil_mask("inverse_count", 0.5), r"agent 1: its mask of layer 2 \(inverse_count\)"),
        (spoil_mask("keep", 1.0), r"agent 1: its mask of layer 2 \(keep\)"),
        (spoil_mask("replace", 0.0), r"agent 1: its mask of layer 2 \(replace\)"),
        (spoil_mask("gated", 1.0), r"agent 1: its mask of layer 2 \(gated\)"),
        (swap_members, "its group is another genome's"),
        (forget_member, "are in groups, of 12"),
        (another_genome, "agent 1: its group is another genome's"),
        (another_architecture, "agent 1: its mask of layer 2"),
        (another_signature, "agent 1: its group is another genome's"),
        (other_numbers, "agent .*: its numbers are another's"),
        (numbers_apart, "a group has numbers that rounds do not read"),
        (gate_nobody, "its group computes layer 1 as if it were there, and not gated"),
        (compute_fewer_rows, "agent 2: its group does not compute all of 2 layers"),
    ],
)
def test_a_group_that_does_not_fit_is_found(spoil, message):
    population, states = checked()
    spoil(population)
    with pytest.raises(RuntimeError, match=message):
        check(population, states)
