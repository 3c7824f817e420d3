"""How many updates agents make, that a split gather changes nothing, and that death is private."""

import numpy as np
import pytest
import torch

from evorl.algorithms.dqn import DQN
from evorl.config import BudgetConfig, ReplayConfig
from evorl.experience import PrioritisedSampler, ReplayBuffer, Transitions, UniformSampler
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NetworkSpec
from evorl.pipeline import learn as learn_module
from evorl.pipeline.learn import AnnealBeta, Learn
from evorl.pipeline.training_context import TrainingContext
from tests.pipeline.snapshots import alone
from tests.reference import population_of

torch.set_num_threads(1)

SPEC = NetworkSpec(4, 3)
AGENTS = [
    {"hidden": (16, 16), "lr": 1e-2, "learn_step": 1, "batch_size": 8},
    {"hidden": (16,), "lr": 1e-3, "learn_step": 3, "batch_size": 5},
    {"hidden": (40,), "lr": 1e-3, "learn_step": 16, "batch_size": 12},
    {"hidden": (16, 9), "lr": 3e-3, "learn_step": 2, "batch_size": 8},
]


def make_population(agents=AGENTS):
    genomes = []
    for i, values in enumerate(agents):
        own = {name: value for name, value in values.items() if name != "hidden"}
        numbers = DQN(**own).hyperparameters
        genomes.append(Genome(i, {"q": Architecture(values["hidden"])}, numbers))
    return population_of(genomes, SPEC, DQN(), seed=2)


def make_learn(population, prioritised=False, shared=True, items=60, **options):
    """A learner over a replay of random transitions."""
    agents = population.size
    replays = 1 if shared else agents
    buffer = ReplayBuffer(200, (4,), torch.float32, 1, num_replays=replays)
    kind = PrioritisedSampler if prioritised else UniformSampler
    sampler = kind(buffer, [np.random.default_rng(10 + i) for i in range(agents)])
    add(buffer, sampler, items)
    return Learn(alone(), population, buffer, sampler, **options)


def add(buffer, sampler, items):
    """So many random transitions in every replay."""
    random, replays = np.random.default_rng(0), buffer.num_replays
    count = items * replays
    transitions = Transitions(
        random.normal(size=(count, 4)).astype(np.float32),
        random.integers(3, size=count),
        random.normal(size=(count, 1)),
        random.normal(size=(count, 4)).astype(np.float32),
        (random.random(count) < 0.8).astype(np.uint8),
        np.zeros(count, np.int64),
    )
    where = np.repeat(np.arange(replays), items) if replays > 1 else None
    sampler.inserted(buffer.add(transitions, where))


def advance(context, steps):
    context.new_steps = np.broadcast_to(np.asarray(steps), (context.agents,)).copy()
    context.agent_steps = context.agent_steps + context.new_steps


def run(learn, rounds=6, steps=8):
    context = TrainingContext(learn.population.size)
    for _ in range(rounds):
        advance(context, steps)
        learn(context)
    return context


def assert_same_agents(left, right, agents):
    for i in agents:
        for part in ("online", "target", "m", "v"):
            ours, theirs = getattr(left.state(i), part), getattr(right.state(i), part)
            assert all(torch.equal(value, theirs[name]) for name, value in ours.items()), (i, part)
        assert left.state(i).updates == right.state(i).updates


@pytest.mark.parametrize(("starts", "updates"), [(0, 1), (1, 1), (50, 1), (1000, 1), (50, 3)])
def test_updates_owed_add_up_without_drift(starts, updates):
    population = make_population(
        [{"hidden": (4,), "learn_step": step} for step in (1, 3, 16, 1000)]
    )
    learn = make_learn(population, learning_starts=starts, updates=updates)
    context, total = TrainingContext(4), np.zeros(4, np.int64)
    random = np.random.default_rng(0)
    for round_ in range(3000):
        # 8 environments; in the second half some rows are no steps, as native ones give them
        advance(context, 8 if round_ < 1500 else random.integers(0, 9, size=4))
        total += learn.updates_owed(context)
        after = np.maximum(context.agent_steps - starts, 0)
        assert total.tolist() == (updates * (after // [1, 3, 16, 1000])).tolist()


def test_each_agent_makes_its_updates_and_counts_them():
    population = make_population()
    context = run(make_learn(population, learning_starts=8), rounds=7)
    expected = [48, 16, 3, 24]
    assert context.updates == sum(expected)
    assert [population.state(i).updates for i in range(4)] == expected
    assert np.isfinite(context.loss).all()


def test_no_update_before_the_start_nor_from_an_empty_replay():
    population = make_population()
    before = make_population()
    context = run(make_learn(population, learning_starts=48))
    assert context.updates == 0
    context = run(make_learn(population, items=0))
    assert context.updates == 0
    assert np.isnan(context.loss).all()
    assert_same_agents(population, before, range(4))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_gather_in_parts_changes_nothing(monkeypatch, shared, most):
    whole, parts = make_population(), make_population()
    expected = run(make_learn(whole, shared=shared))
    learn = make_learn(parts, shared=shared)
    bytes_of_one = 4 * 12 * learn.buffer.item_bytes  # four agents, the widest batch
    monkeypatch.setattr(learn_module, "MOST_BYTES", most * bytes_of_one + 1)
    assert learn._updates_at_once() == most
    got = run(learn)
    assert_same_agents(whole, parts, range(4))
    assert got.updates == expected.updates


@pytest.mark.parametrize("shared", [True, False])
def test_another_agent_changes_nobody_elses_learning(shared):
    few, more = make_population(AGENTS[:3]), make_population(AGENTS)
    learners = [make_learn(population, shared=shared) for population in (few, more)]
    if not shared:  # the random data of more replays begins alike only if it is drawn per replay
        for mine, theirs in zip(*(learn.buffer._store.values() for learn in learners), strict=True):
            theirs[: len(mine)] = mine
    for learn in learners:
        run(learn)
    assert_same_agents(few, more, range(3))


@pytest.mark.parametrize(
    ("steps", "beta"), [(0, 0.4), (250, 0.55), (500, 0.7), (1000, 1.0), (1003, 1.0)]
)
def test_beta_grows_with_the_steps_of_all_agents(steps, beta):
    learn = make_learn(make_population(), prioritised=True)
    context = TrainingContext(4)
    context.before["env_steps"] = steps
    config = ReplayConfig(beta_start=0.4, beta_end=1.0)
    AnnealBeta(learn.sampler, config, BudgetConfig(env_steps=1000), 8)(context)
    assert learn.sampler.beta == pytest.approx(beta)
    context.before |= {"env_steps": steps // 2, "evaluation_steps": steps - steps // 2}
    AnnealBeta(learn.sampler, config, BudgetConfig(env_steps=1000, counts="all"), 8)(context)
    assert learn.sampler.beta == pytest.approx(beta)


def test_within_a_generation_beta_grows_by_the_iterations_of_all_ranks():
    learn, context = make_learn(make_population(), prioritised=True), TrainingContext(4)
    config = ReplayConfig(beta_start=0.0, beta_end=1.0)
    anneal = AnnealBeta(learn.sampler, config, BudgetConfig(env_steps=1000), per_iteration=100)
    found = []
    for begins, iteration, steps in ((0, 0, 0), (0, 1, 7), (0, 2, 9), (3, 3, 290), (3, 4, 300)):
        context.iteration, context.env_steps = iteration, steps
        if iteration == begins:
            context.begins, context.before["env_steps"] = begins, steps
        anneal(context)
        found.append(learn.sampler.beta)
    assert found == pytest.approx([0, 0.1, 0.2, 0.29, 0.39])


def spoil(population, agent):
    for numbers, group in zip(population.members, population.groups, strict=True):
        group.theta[np.isin(numbers, [agent])] = torch.nan


@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize("shared", [True, False])
def test_a_dead_agent_is_named_once_and_harms_nobody(prioritised, shared):
    healthy, population = make_population(), make_population()
    options = {"prioritised": prioritised, "shared": shared}
    run(make_learn(healthy, **options))
    spoil(population, 0)
    learn = make_learn(population, **options)
    with pytest.warns(UserWarning, match="agent 0 is dead: its loss is no longer") as warned:
        context = run(learn)
    assert len(warned) == 1
    assert population.alive.tolist() == [False, True, True, True]
    assert_same_agents(healthy, population, [1, 2, 3])
    assert context.updates == 8 + 16 + 3 + 24  # the one round in which it died
    assert np.isnan(context.loss[0])
    assert np.isfinite(context.loss[1:]).all()
    if prioritised:
        assert np.isfinite(learn.sampler.priorities.tree.priorities()).all()
        assert (learn.sampler.priorities.tree.totals > 0).all()


def test_when_all_are_dead_nothing_is_owed():
    population = make_population()
    learn = make_learn(population, prioritised=True)
    population.alive[:] = False
    assert run(learn).updates == 0


def test_updates_of_an_agent_that_died_in_a_split_round_are_not_counted(monkeypatch):
    monkeypatch.setattr(learn_module, "MOST_BYTES", 1)  # one update at a time
    population = make_population()
    spoil(population, 0)
    with pytest.warns(UserWarning, match="agent 0 is dead"):
        context = run(make_learn(population), rounds=1)
    steps = [population.state(i).updates for i in range(4)]
    assert context.updates == sum(steps)


def test_an_agent_with_data_does_not_wait_for_one_without():
    population = make_population(AGENTS[:2])
    buffer = ReplayBuffer(50, (4,), torch.float32, 1, num_replays=2)
    sampler = UniformSampler(buffer, [np.random.default_rng(i) for i in range(2)])
    one = np.zeros((1, 4), np.float32)
    none = np.zeros(1, np.int64)
    item = Transitions(one, none, np.zeros((1, 1)), one, np.ones(1, np.uint8), none)
    sampler.inserted(buffer.add(item, none))  # agent 0's episode ended early: it has a window
    run(Learn(alone(), population, buffer, sampler), rounds=1)
    assert population.state(0).updates == 8


@pytest.mark.parametrize("shared", [True, False])
def test_replays_that_were_not_kept_fill_up_before_agents_learn_on(shared):
    population = make_population()
    learn = make_learn(population, items=0, shared=shared, learning_starts=40)
    context = TrainingContext(4)
    context.agent_steps += 5000  # a run that went on
    learn.refill(context)
    replays = learn.buffer.num_replays
    held, owed = [], []
    for _ in range(7):
        advance(context, 8)
        add(learn.buffer, learn.sampler, 8 * 4 // replays)  # eight steps of each agent
        held.append(int(learn.buffer.sizes[0]))
        owed.append(learn.updates_owed(context).any())
    assert owed == [size >= 40 * 4 // replays for size in held]
    assert owed == [False] * 4 + [True] * 3


def test_a_run_that_begins_or_has_its_replays_waits_for_nothing_more():
    begins = make_learn(make_population(), items=0, learning_starts=40)
    begins.refill(TrainingContext(4))
    kept = make_learn(make_population(), items=1, learning_starts=40)
    context = TrainingContext(4)
    context.agent_steps += 5000
    kept.refill(context)
    for learn in (begins, kept):
        add(learn.buffer, learn.sampler, 1)
        advance(context, 8)
        assert learn.updates_owed(context).any()


@pytest.mark.parametrize(("shared", "writers"), [(True, 4), (False, 1)])
def test_all_steps_that_enter_a_replay_may_count(shared, writers):
    learn = make_learn(make_population(), shared=shared, counts_all=True, learning_starts=20)
    context = run(learn, rounds=6, steps=8)
    seen = 6 * 8 * writers
    every = np.array([own["learn_step"] for own in AGENTS])
    assert context.updates == ((seen - 20) // every).sum()
