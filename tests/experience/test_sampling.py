import numpy as np
import pytest
import torch
from scipy import stats

from evorl.experience import (
    PrioritisedSampler,
    ReplayBuffer,
    SampleRequest,
    UniformSampler,
    linear_beta,
    split_groups,
)
from evorl.seeding import generator

from .reference import transitions


def streams(count, seed=0):
    return [generator(seed, "replay", agent) for agent in range(count)]


def request(agents, updates, batch_sizes, width=None):
    sizes = np.array(batch_sizes)
    return SampleRequest(np.array(agents), np.array(updates), sizes, width or int(sizes.max()))


def filled(kind, agents, items=20, capacity=32, shared=True, **options):
    """A sampler over a buffer that has `items` items (for each agent)."""
    replays = 1 if shared else agents
    buffer = ReplayBuffer(capacity, (2,), torch.float32, 1, replays, reward_dtype=torch.float64)
    sampler = kind(buffer, streams(agents), **options)
    index = None if shared else np.repeat(np.arange(agents), items)
    sampler.inserted(buffer.add(transitions(items * replays), index))
    return buffer, sampler


def set_priorities(sampler, agent, priorities):
    leaves = np.arange(len(priorities))
    sampler.priorities.tree.set(np.full(len(leaves), agent), leaves, np.array(priorities))


KINDS = pytest.mark.parametrize("kind", [UniformSampler, PrioritisedSampler])


@KINDS
def test_a_sample_is_the_item_in_its_slot(kind):
    _, sampler = filled(kind, 2, shared=False)
    samples = sampler.sample([request([0, 1], [2, 2], [8, 8])])
    number = samples.slots % 32 + 20 * (samples.slots // 32)
    assert torch.equal(samples.action, number)
    assert torch.equal(samples.obs[:, 0], number.float())
    assert torch.equal(samples.next_obs[:, 0], number.float() + 1)
    assert torch.equal(samples.rewards[:, 0], number.double())


@KINDS
@pytest.mark.parametrize("shared", [True, False])
def test_draws_do_not_depend_on_other_agents_or_padding(kind, shared):
    def draws(requests):
        """Agent 1's slots, of its 2 updates of 6 items, over three rounds."""
        _, sampler = filled(kind, 3, shared=shared)
        rounds = []
        for _ in range(3):
            parts = split_groups(sampler.sample(requests), requests)
            for group, part in zip(requests, parts, strict=True):
                if 1 in group.agents:
                    row = group.agents.tolist().index(1)
                    rounds.append(part.slots[:2, row, :6])
        return torch.stack(rounds)

    alone = draws([request([1], [2], [6])])
    assert torch.equal(alone, draws([request([1], [2], [6], width=11)]))
    assert torch.equal(alone, draws([request([0, 1, 2], [5, 2, 1], [9, 6, 3])]))
    assert torch.equal(alone, draws([request([2, 1], [0, 2], [4, 6])]))
    assert torch.equal(
        alone, draws([request([2], [1], [4]), request([1], [2], [6]), request([0], [3], [3])])
    )


@KINDS
def test_reseeding_repeats_the_draws(kind):
    _, sampler = filled(kind, 2)
    requests = [request([0, 1], [2, 1], [7, 5])]
    first = sampler.sample(requests).slots
    assert not torch.equal(first, sampler.sample(requests).slots)
    sampler.reseed(streams(2))
    assert torch.equal(first, sampler.sample(requests).slots)


@KINDS
def test_an_empty_replay_is_named_and_costs_no_draw(kind):
    buffer = ReplayBuffer(8, (2,), torch.float32, 1, num_replays=2)
    generators = streams(2)
    sampler = kind(buffer, generators)
    sampler.inserted(buffer.add(transitions(3), np.zeros(3, np.int64)))
    before = generators[0].bit_generator.state
    with pytest.raises(RuntimeError, match="agent 1 samples from an empty replay"):
        sampler.sample([request([0, 1], [1, 1], [4, 4])])
    assert generators[0].bit_generator.state == before
    # where agent 1 is not due nothing is missing
    idle = sampler.sample([request([0, 1], [1, 0], [4, 4])])
    assert idle.weight.reshape(2, 4)[1].tolist() == [0.0] * 4


@KINDS
def test_a_round_without_updates_is_empty(kind):
    _, sampler = filled(kind, 2)
    assert len(sampler.sample([request([0, 1], [0, 0], [4, 4])]).weight) == 0


@KINDS
def test_new_items_are_drawn_and_old_layouts_still_hold(kind):
    buffer, sampler = filled(kind, 1, items=2, capacity=300)
    requests = [request([0], [1], [200])]
    assert set(sampler.sample(requests).slots.tolist()) == {0, 1}
    sampler.inserted(buffer.add(transitions(2, start=2)))
    assert set(sampler.sample(requests).slots.tolist()) == {0, 1, 2, 3}
    for size in range(1, 100):  # more rounds than are remembered
        sampler.sample([request([0], [1], [size])])
    assert len(sampler.sample(requests).slots) == 200


def frequencies(sampler, agent, items, draws=20_000):
    slots = sampler.sample([request([agent], [1], [draws])]).slots
    return np.bincount(slots.numpy(), minlength=items)


def test_uniform_draws_are_uniform():
    _, sampler = filled(UniformSampler, 2)
    assert stats.chisquare(frequencies(sampler, 1, 20)).pvalue > 0.01


def test_prioritised_draws_follow_each_agents_own_priorities():
    _, sampler = filled(PrioritisedSampler, 2)
    rising, falling = np.arange(20.0), np.arange(20.0)[::-1]  # each with one priority of 0
    set_priorities(sampler, 0, rising)
    set_priorities(sampler, 1, falling)
    for agent, wanted in enumerate([rising, falling]):
        counts = frequencies(sampler, agent, 20)
        assert (counts[wanted == 0] == 0).all()
        share = wanted[wanted > 0] / wanted.sum()
        result = stats.chisquare(counts[wanted > 0], share * counts.sum())
        assert result.pvalue > 0.01


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_are_the_closed_form(beta):
    _, sampler = filled(PrioritisedSampler, 2, shared=False)
    sampler.beta = beta
    priorities = [np.linspace(0.1, 3.0, 20), np.linspace(5.0, 0.2, 20)]
    for agent in (0, 1):
        set_priorities(sampler, agent, priorities[agent])
    requests = [request([1, 0], [2, 3], [6, 9], width=10)]
    [part] = split_groups(sampler.sample(requests), requests)
    for row, (agent, updates, size) in enumerate([(1, 2, 6), (0, 3, 9)]):
        for update in range(3):
            expected = np.zeros(10)
            if update < updates:
                p = priorities[agent][part.slots[update, row, :size].numpy() - 32 * agent]
                weight = (20 * p / priorities[agent].sum()) ** -beta
                expected[:size] = weight / weight.max() / size
            np.testing.assert_allclose(part.weight[update, row].numpy(), expected, rtol=1e-12)


def test_priorities_follow_the_td_errors_of_the_living():
    _, sampler = filled(PrioritisedSampler, 3, alpha=0.5, epsilon=0.25)
    tree = sampler.priorities.tree
    requests = [request([2, 0], [2, 3], [4, 7], width=8), request([1], [1], [5])]
    parts = split_groups(sampler.sample(requests), requests)
    rng = np.random.default_rng(0)
    td = torch.from_numpy(rng.normal(size=(3, 2, 8)))
    td[2:, 0] = torch.nan  # padding may hold anything
    td[:, 0, 4:] = torch.nan
    expected = np.zeros((3, 32))
    expected[:, :20] = 1.0  # as inserted
    for row, (agent, updates, size) in enumerate([(2, 2, 4), (0, 3, 7)]):
        for update in range(updates):
            for column in range(size):  # later updates win
                slot = parts[0].slots[update, row, column]
                expected[agent, slot] = (abs(td[update, row, column].item()) + 0.25) ** 0.5
    third = torch.full((1, 1, 5), torch.nan)
    sampler.update_priorities([td, third], alive=np.array([True, False, True]))
    np.testing.assert_allclose(tree.priorities(), expected, rtol=1e-14)
    third = torch.arange(1.0, 6.0).reshape(1, 1, 5)
    for slot, error in zip(parts[1].slots.flatten(), third.flatten(), strict=True):
        expected[1, slot] = (error.item() + 0.25) ** 0.5
    sampler.update_priorities([td, third])
    np.testing.assert_allclose(tree.priorities(), expected, rtol=1e-14)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_diverged_agent_is_named_and_nothing_changes(bad):
    _, sampler = filled(PrioritisedSampler, 2)
    sampler.sample([request([0, 1], [1, 1], [4, 4])])
    before = [sampler.state_dict(agent) for agent in range(2)]
    td = torch.ones(1, 2, 4)
    td[0, 1, 2] = bad
    with pytest.raises(ValueError, match="agent 1 has priority"):
        sampler.update_priorities([td])
    for agent, state in enumerate(before):
        after = sampler.state_dict(agent)
        assert all(torch.equal(state[name], after[name]) for name in state)


@pytest.mark.parametrize("shared", [True, False])
def test_new_items_get_the_agents_highest_priority(shared):
    buffer, sampler = filled(PrioritisedSampler, 2, items=4, capacity=4, shared=shared, alpha=1.0)
    sampler.sample([request([0, 1], [1, 1], [4, 4])])
    td = torch.full((1, 2, 4), 0.5)
    td[0, 1, 0] = 7.0
    sampler.update_priorities([td])
    index = None if shared else np.array([0, 1])
    slots = buffer.add(transitions(2), index)
    sampler.inserted(slots)
    leaves = slots if shared else np.zeros(2, np.int64)
    new = sampler.priorities.tree.priorities()
    assert (new[0, leaves] == 1.0).all()  # none was above the first, 1
    assert (new[1, leaves] == 7.0 + 1e-6).all()
    assert buffer.sizes.max() == 4


@pytest.mark.parametrize("shared", [True, False])
def test_a_loaded_state_goes_on_as_the_first_would(shared):
    def learn(buffer, sampler, rounds):
        slots = []
        for number in range(rounds):
            index = None if shared else np.array([0, 1, 1])
            sampler.inserted(buffer.add(transitions(3, start=number), index))
            samples = sampler.sample([request([1, 0], [2, 1], [5, 4])])
            sampler.update_priorities([samples.rewards.reshape(2, 2, 5) * 0.37])
            slots.append(torch.cat([samples.slots, samples.weight]))
        return torch.stack(slots)

    buffer, sampler = filled(PrioritisedSampler, 2, items=5, capacity=13, shared=shared)
    learn(buffer, sampler, 4)
    other_buffer = ReplayBuffer(13, (2,), torch.float32, 1, buffer.num_replays, torch.float64)
    other = PrioritisedSampler(other_buffer, streams(2))
    for replay in range(buffer.num_replays):
        other_buffer.load_state_dict(buffer.state_dict(replay), replay)
    for agent in range(2):
        other.load_state_dict(sampler.state_dict(agent), agent)
    for each in (sampler, other):
        each.reseed(streams(2, seed=5))
    assert torch.equal(learn(buffer, sampler, 6), learn(other_buffer, other, 6))


def test_beta_is_linear_in_progress():
    progress = [-1.0, 0.0, 0.5, 1.0, 2.0]
    assert [linear_beta(0.4, 1.0, p) for p in progress] == pytest.approx([0.4, 0.4, 0.7, 1.0, 1.0])


def test_groups_and_padding_lie_where_they_should():
    requests = [
        request([2, 0], [3, 1], [4, 2], 5),
        request([1], [0], [4], 4),
        request([3], [2], [3], 3),
    ]
    buffer = ReplayBuffer(50, (2,), torch.float32, 1, num_replays=4)
    buffer.add(transitions(40), np.arange(40) % 4)
    samples = UniformSampler(buffer, streams(4)).sample(requests)
    parts = split_groups(samples, requests)
    assert [tuple(part.weight.shape) for part in parts] == [(3, 2, 5), (0, 1, 4), (2, 1, 3)]
    assert tuple(parts[0].obs.shape) == (3, 2, 5, 2)
    for group, part in zip(requests, parts, strict=True):
        for row, agent in enumerate(group.agents):
            for update in range(part.weight.shape[0]):
                real = group.batch_sizes[row] if update < group.updates[row] else 0
                weight = part.weight[update, row]
                expected = [1 / group.batch_sizes[row]] * real + [0] * (group.width - real)
                assert torch.equal(weight, torch.tensor(expected, dtype=torch.float32))
                slots = part.slots[update, row]
                assert (slots // 50 == agent).all()  # also padding stays in the agent's replay
                assert (slots[real:] == agent * 50).all()
                assert torch.isfinite(part.obs[update, row]).all()
