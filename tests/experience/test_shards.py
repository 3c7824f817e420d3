"""Several shards are drawn from as one replay, whatever is known of them."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy import stats

from evorl.bus.wire import encode
from evorl.experience import (
    LocalShard,
    PrioritisedSampler,
    ReplayBuffer,
    ReplayLoader,
    Replays,
    Samples,
    ShardedSampler,
    no_items,
    split_groups,
)
from evorl.seeding import generator
from tests.population.test_population import MIXED, SPEC
from tests.reference import population_of

from .reference import transitions
from .test_buffer import FIELDS
from .test_sampling import request, streams


class Remote:
    """A shard whose answers travel as they do on the bus, and whose status is what was heard."""

    def __init__(self, shard):
        self.shard, self.gone = shard, False
        self.hear()

    def hear(self, fields=None):
        fields = fields or self.shard.status()
        self.heard = {name: fields[name].clone() for name in ("totals", "sizes", "dropped")}

    def status(self):
        return self.heard

    def draw(self, wanted):
        if self.gone:
            reply = no_items(wanted, len(self.heard["totals"]))
        else:
            reply = encode(self.shard.draw(encode(wanted, "draw").fields()), "reply").fields()
        self.hear(reply)
        return reply

    def update(self, learned):
        self.shard.update(encode(learned, "update").fields())

    def inherit(self, family):
        self.shard.inherit(encode(family, "inherit").fields())


def make_sampler(agents=1, capacity=32, shared=True, **options):
    replays = 1 if shared else agents
    buffer = ReplayBuffer(capacity, (2,), torch.float32, 1, replays, reward_dtype=torch.float64)
    share = "rank" if shared else "agent"
    return PrioritisedSampler(buffer, streams(agents), share=share, **options)


def make_shard(priorities, start=0, capacity=32, epoch=0):
    """One agent, and items with these priorities, numbered from `start` on."""
    sampler = make_sampler(capacity=capacity, alpha=1.0, epsilon=1e-300)
    errors = np.asarray(priorities, np.float64)
    sampler.insert(transitions(len(errors), start=start), np.zeros(len(errors), int), errors)
    return LocalShard(sampler, epoch)


def sharded(shards, agents=1, **options):
    like = ReplayBuffer(1, (2,), torch.float32, 1, reward_dtype=torch.float64)
    return ShardedSampler(list(shards), streams(agents), like, capacity=32, **options)


THREE = [np.array([5.0]), np.linspace(0.5, 3.0, 12), np.array([9.0, 0.2, 4.0, 1.0])]


def three(remote=False):
    starts = np.cumsum([0, *map(len, THREE)])
    shards = [make_shard(own, start) for own, start in zip(THREE, starts, strict=False)]
    return [Remote(shard) for shard in shards] if remote else shards


def change(shards):
    """What the sampler has not heard of: other priorities, more items, fewer."""
    shards[0].insert(transitions(6, start=100), np.zeros(6, int), np.arange(1.0, 7.0))
    shards[1].insert(transitions(25, start=200), np.zeros(25, int), np.full(25, 0.7))
    state = shards[2].sampler.priorities
    state.update(np.zeros(4, int), np.arange(4), np.array([0.1, 8.0, 8.0, 2.0]))


def probabilities(shards, known):
    """{number of an item: P(i)} by the definition, with totals `known`."""
    found = {}
    for shard, total in zip(shards, known, strict=True):
        leaves = shard.sampler.priorities.tree.priorities()[0]
        items = shard.sampler.buffer.gather(torch.arange(32))["action"].tolist()
        for item, priority in zip(items, leaves.tolist(), strict=True):
            if priority > 0:
                found[item] = total / sum(known) * priority / leaves.sum()
    return found


def drawn_items(sampler, count):
    """Of one batch: the numbers of items, and their weights before they are normalised, 1 / P."""
    sampler.beta, sampler.highest = 1.0, np.ones_like
    samples = sampler.sample([request([0], [1], [count])])
    assert len(samples.action) == count
    return samples.action.numpy(), samples.weight.numpy() * count


@pytest.mark.parametrize("stale", [False, True])
def test_frequencies_over_three_shards(stale):
    """By chi-square, and every probability as it is reported is the definition's."""
    shards, remote = three(), three(remote=True)
    if stale:
        change(shards)
        change([one.shard for one in remote])
    sampler = sharded(remote if stale else shards)
    known = [float(own.sum()) for own in THREE]
    expected = probabilities(shards, known)
    items, weights = drawn_items(sampler, 60_000)
    np.testing.assert_allclose(1 / weights, [expected[i] for i in items], rtol=1e-9)
    counts = np.array([(items == item).sum() for item in expected])
    assert counts.sum() == len(items)
    share = np.array(list(expected.values()))
    assert stats.chisquare(counts, share / share.sum() * len(items)).pvalue > 0.01


def test_a_weighted_mean_is_unbiased_under_stale_totals():
    """Also of numbers that go with the priorities, for which a plain mean is far off."""
    shards = three(remote=True)
    change([one.shard for one in shards])
    expected = probabilities([one.shard for one in shards], [float(own.sum()) for own in THREE])
    value = {item: 3.0 + 40 * p + item % 7 for item, p in expected.items()}
    true = np.mean(list(value.values()))
    items, weights = drawn_items(sharded(shards), 100_000)
    values = np.array([value[item] for item in items])
    each = values * weights / len(expected)
    error = each.std() / np.sqrt(len(each))
    assert abs(each.mean() - true) < 3 * error
    assert error < 0.02 * true
    assert abs(values.mean() - true) > 10 * error


def test_fresh_shards_are_drawn_as_one_replay_of_all_items():
    """The same random numbers give the same items as one large replay in the shards' order."""
    whole = make_shard(np.concatenate(THREE))
    one, several = whole.sampler, sharded(three())
    one.reseed(streams(1, seed=3))
    several.reseed(streams(1, seed=3))
    one.beta = several.beta = 0.7
    requests = [request([0], [5], [40], width=45)]
    left, right = one.sample(requests), several.sample(requests)
    assert torch.equal(left.action[left.weight > 0], right.action[right.weight > 0])
    torch.testing.assert_close(left.weight, right.weight, rtol=1e-9, atol=0)


def test_batches_are_split_by_chance_and_never_rounded():
    """Shares of 1, 2 and 3 sixths in batches of 7: as many as asked for, by a multinomial."""
    sampler = sharded([make_shard([1.0], 0), make_shard([1.0, 1.0], 1), make_shard([3.0], 3)])
    requests = [request([0], [4000], [7])]
    samples = sampler.sample(requests)
    assert samples.weight.count_nonzero() == 7 * 4000
    shard = np.array([0, 1, 1, 2])[samples.action.numpy()].reshape(4000, 7)
    for number, share in enumerate([1 / 6, 2 / 6, 3 / 6]):
        counts = np.bincount((shard == number).sum(1), minlength=8)
        expected = stats.binom.pmf(np.arange(8), 7, share) * 4000
        last = int(np.flatnonzero(expected > 5)[-1])  # and those above it together
        seen, wanted = (np.append(own[:last], own[last:].sum()) for own in (counts, expected))
        assert stats.chisquare(seen, wanted).pvalue > 0.01


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_share_of_one(size):
    """One draw, of shards with one item each, empty ones among them."""
    empty = [LocalShard(make_sampler()) for _ in range(3)]
    shards = [empty[0], make_shard([2.0], 7), empty[1], make_shard([1.0], 8), empty[2]]
    sampler, seen = sharded(shards), set()
    for _ in range(50):
        seen |= set(sampler.sample([request([0], [1], [size])]).action.tolist())
    assert seen == {7, 8}


def test_importance_is_by_all_items():
    """One item each, nine times as likely in the one shard: weights of 1 and 9, and not of 1."""
    sampler = sharded([make_shard([9.0], 0), make_shard([1.0], 1)])
    samples = sampler.sample([request([0], [1], [300])])
    weight = samples.weight * 300
    assert set(samples.action.tolist()) == {0, 1}
    assert weight[samples.action == 0].numpy() == pytest.approx(1 / 9)
    assert weight[samples.action == 1].numpy() == pytest.approx(1)


def test_importance_over_ranks_is_by_all_items():
    """Each rank draws from its own replay, of 2 items here and 18 there: the ratio is 9."""
    few, many = (make_shard(np.ones(count)).sampler for count in (2, 18))
    raw = []
    few.highest = many.highest = lambda own: raw.append(own) or own
    for sampler in (few, many):
        sampler.sample([request([0], [1], [4])])
    highest = np.maximum(*raw)
    few.highest = many.highest = lambda own: highest
    weights = [sampler.sample([request([0], [1], [4])]).weight[0] * 4 for sampler in (few, many)]
    assert weights == [pytest.approx(1 / 9), pytest.approx(1)]


def test_new_items_get_the_highest_priority_itself():
    sampler = make_sampler(agents=2, alpha=0.6, epsilon=0.01)
    nan = np.nan
    sampler.insert(transitions(3), np.array([0, 0, 1]), np.array([8.0, -20.0, nan]))
    leaves = sampler.priorities.tree.priorities()
    highest = 20.01**0.6
    assert leaves[0, :3].tolist() == [8.01**0.6, highest, 1.0]  # the third: as before this call
    assert leaves[1, :3].tolist() == [1.0, 1.0, 1.0]  # not its own, or not known
    sampler.insert(transitions(1))
    assert leaves[:, 3].tolist() == [highest, 1.0]
    every = np.array([[0.5, nan], [np.inf, 3.0]])  # every agent's own
    sampler.insert(transitions(2), np.array([0, 1]), every)
    assert leaves[0, 4:6].tolist() == [0.51**0.6, highest]
    assert leaves[1, 4:6].tolist() == [1.0, 3.01**0.6]


def test_first_errors_with_replays_of_their_own_and_more_items_than_fit():
    sampler = make_sampler(agents=2, capacity=3, shared=False, alpha=1.0, epsilon=1e-300)
    agents = np.array([0, 1, 0, 0, 0, 1, 0])
    errors = np.arange(1.0, 8.0)
    for given in (errors, np.stack([errors, errors]) * np.array([[1.0], [1.0]])):
        sampler.clear()
        sampler.insert(transitions(7), agents, given)
        leaves = sampler.priorities.tree.priorities()
        slots = torch.arange(6)
        numbers = sampler.buffer.gather(slots)["action"].numpy().reshape(2, 3)
        assert sampler.buffer.sizes.tolist() == [3, 2]
        assert sorted(numbers[0].tolist()) == [3, 4, 6]
        np.testing.assert_array_equal(leaves[0], numbers[0] + 1.0)
        np.testing.assert_array_equal(leaves[1, :2], [2.0, 6.0])


def one_round(sampler, requests, number):
    """A round with errors by what was drawn; its samples."""
    samples = sampler.sample(requests)
    errors = [
        torch.sin(part.action + number + part.weight) for part in split_groups(samples, requests)
    ]
    sampler.update_priorities(errors, np.array([True, number % 3 > 0, True]))
    return samples


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("wrap", [lambda shard: shard, Remote], ids=["local", "remote"])
def test_one_shard_is_a_prioritised_replay_bit_for_bit(shared, wrap):
    """Draws, weights, noise, priorities, and what a new item gets; over many rounds."""
    plain, inner = (make_sampler(3, 20, shared, noise=2) for _ in range(2))
    shard = LocalShard(inner, epoch=5)
    remote = wrap(shard)
    sampler = ShardedSampler([remote], streams(3), plain.buffer, noise=2)
    requests = [request([2, 0], [2, 3], [4, 7], width=8), request([1], [1], [5])]
    random = np.random.default_rng(0)
    for number in range(30):
        count = int(random.integers(3, 9))
        agents = np.append(np.arange(3), random.integers(0, 3, count - 3))
        errors = random.normal(size=count) if number % 2 else None
        items = transitions(count, start=10 * number)
        plain.insert(items, agents, errors)
        shard.insert(items, agents, errors)
        if wrap is Remote:
            remote.hear()
        plain.beta = sampler.beta = random.random()
        left, right = one_round(plain, requests, number), one_round(sampler, requests, number)
        real = left.weight > 0
        for name in Samples._fields:
            one, other = getattr(left, name), getattr(right, name)
            if name in FIELDS:  # padding is another item
                one, other = one[real], other[real]
            assert torch.equal(one, other), name
        assert torch.isfinite(right.obs).all()
        tree, other = (own.priorities.tree for own in (plain, inner))
        assert np.array_equal(tree._nodes, other._nodes)
        assert np.array_equal(plain.priorities._highest, inner.priorities._highest)
    assert sampler.dropped == 0


def test_agents_learn_from_one_shard_what_they_learn_from_a_replay():
    """To the bit, with batches of different sizes: padding has no part in it."""
    size, random = len(MIXED), np.random.default_rng(0)
    plain, inner = (
        PrioritisedSampler(ReplayBuffer(90, (SPEC.inputs,), torch.float32, 1), streams(size))
        for _ in range(2)
    )
    sampler = ShardedSampler([LocalShard(inner)], streams(size), plain.buffer)
    obs, next_obs = random.normal(size=(2, 60, SPEC.inputs)).astype(np.float32)
    items = transitions(60)._replace(
        obs=obs, next_obs=next_obs, rewards=random.normal(size=(60, 1))
    )
    items = items._replace(action=random.integers(0, SPEC.outputs, 60))
    populations = [population_of(MIXED, SPEC) for _ in range(2)]
    for population, replay, store in zip(
        populations, (plain, sampler), (plain, inner), strict=True
    ):
        store.insert(items)
        loader = ReplayLoader(replay, "cpu")
        for number in range(6):
            requests = population.requests((np.arange(size) + number) % 3)
            learned = population.learn(loader.draw(requests), requests)
            replay.update_priorities(learned.priorities, population.alive)
    for left, right in zip(*(population.groups for population in populations), strict=True):
        assert torch.equal(left.theta, right.theta)
    assert np.array_equal(plain.priorities.tree._nodes, inner.priorities.tree._nodes)


def test_a_round_without_updates_is_empty():
    for shards in ([], three()):
        sampler = sharded(shards)
        samples = sampler.sample([request([0], [0], [4])])
        assert [len(field) for field in samples] == [0] * len(samples)
        sampler.update_priorities([torch.zeros(0, 1, 4)])


def test_an_empty_replay_is_named():
    for shards in ([], [LocalShard(make_sampler())]):
        sampler = sharded(shards)
        assert sampler.buffer.sizes.tolist() == [0]
        with pytest.raises(RuntimeError, match="agent 0 samples from an empty replay"):
            sampler.sample([request([0], [1], [4])])


def test_what_a_shard_has_lost_since_is_drawn_elsewhere():
    """One was cleared and one is gone, and nobody has heard of it yet."""
    shards = three(remote=True)
    shards[0].shard.clear()
    shards[2].gone = True
    sampler = sharded(shards)
    expected = probabilities([shards[1].shard], [1.0])
    items, weights = drawn_items(sampler, 20_000)
    np.testing.assert_allclose(1 / weights, [expected[i] for i in items], rtol=1e-9)
    counts = np.array([(items == item).sum() for item in expected])
    assert stats.chisquare(counts, np.array(list(expected.values())) * len(items)).pvalue > 0.01
    assert sampler.buffer.sizes.tolist() == [12]  # now it is known
    shards[1].gone = True
    samples = sampler.sample([request([0], [1], [4])])
    assert samples.weight.tolist() == [0, 0, 0, 0]
    assert torch.isfinite(samples.obs).all()
    assert sampler.missing == 4
    sampler.update_priorities([torch.full((1, 1, 4), 9.0)])
    assert leaves_of(shards[1].shard).max() == THREE[1].max()
    with pytest.raises(RuntimeError, match="agent 0 samples from an empty replay"):
        sampler.sample([request([0], [1], [4])])


@pytest.mark.parametrize("ranks", [False, True])
def test_an_agent_that_nobody_has_items_of_any_more(ranks):
    """What is missing of its batch weighs nothing; the other one's is as ever."""
    inner = make_sampler(agents=2, shared=False)
    inner.insert(transitions(8), np.array([0, 1] * 4))
    shard = Remote(LocalShard(inner))
    inner.forget(0)
    like = ReplayBuffer(1, (2,), torch.float32, 1, 2, reward_dtype=torch.float64)
    sampler = ShardedSampler([shard], streams(2), like, 32, share="agent")
    sampler.highest = (lambda own: own) if ranks else None
    requests = [request([0, 1], [2, 2], [3, 3])]
    (part,) = split_groups(sampler.sample(requests), requests)
    assert part.weight[:, 0].tolist() == [[0.0] * 3] * 2
    np.testing.assert_allclose(part.weight[:, 1].numpy(), 1 / 3)
    assert (part.action[:, 1] % 2 == 1).all()
    assert sampler.missing == 6
    before = leaves_of(shard.shard), inner.priorities.tree.priorities()[1].copy()
    sampler.update_priorities([torch.ones(2, 2, 3)])
    assert np.array_equal(leaves_of(shard.shard), before[0])
    assert not np.array_equal(inner.priorities.tree.priorities()[1], before[1])


def draw_all(shard, count=64):
    uniforms = (torch.arange(count) + 0.5).double() / count
    return shard.draw({"agents": torch.zeros(count, dtype=torch.int64), "uniforms": uniforms})


def tell(shard, reply, error):
    count = len(reply["stamps"])
    errors = torch.full((count,), error, dtype=torch.float64)
    agents = torch.zeros(count, dtype=torch.int64)
    shard.update({"agents": agents, "stamps": reply["stamps"], "td_errors": errors})


def leaves_of(shard):
    return shard.sampler.priorities.tree.priorities()[0].copy()


def test_priorities_of_overwritten_items_are_dropped_and_counted():
    shard = make_shard(np.ones(4), capacity=4)
    reply = draw_all(shard)
    shard.insert(transitions(3, start=50))
    tell(shard, reply, 7.0)
    assert leaves_of(shard).tolist() == [1.0, 1.0, 1.0, 7.0]
    assert shard.dropped == 48
    assert shard.status()["dropped"] == 48


@pytest.mark.parametrize("inserts", [0, 1, 3, 4, 5, 8])
@pytest.mark.parametrize("way", ["clear", "inherit", "load", "another process"])
def test_no_stamp_is_given_twice(way, inserts):
    """Whatever becomes of a replay: what was drawn before is not taken for what lies there now."""
    sampler = make_sampler(agents=2, capacity=4, shared=False, alpha=1.0, epsilon=1e-300)
    shard = LocalShard(sampler)
    sampler.insert(transitions(6), np.array([0, 0, 0, 1, 0, 0]))
    reply, given = draw_all(shard), set()
    for _ in range(3):
        given |= set(reply["stamps"].tolist())
        if way == "clear":
            shard.clear()
        elif way == "inherit":
            shard.inherit({"parents": torch.tensor([1, 1])})
        elif way == "load":
            state = {name: own.clone() for name, own in sampler.state_dict(1).items()}
            sampler.load_state_dict(state, 0)
        else:
            shard = LocalShard(sampler, shard.epoch + 1)
        sampler.insert(transitions(inserts, start=20), np.zeros(inserts, int))
        before = leaves_of(shard)
        tell(shard, reply, 7.0)
        assert np.array_equal(leaves_of(shard), before)
        sampler.insert(transitions(1, start=20), np.zeros(1, int))
        reply = draw_all(shard)
        assert not given & set(reply["stamps"].tolist())
    assert (reply["stamps"] >= 0).all()


def saved(shard, epoch, rank=0):
    """A shard's files, and another process that takes them over."""
    sampler = shard.sampler
    agents = len(sampler.replay_of)
    other = make_sampler(agents, sampler.buffer.capacity, sampler.share == "rank")
    old, new = (
        Replays(own.buffer, own, range(agents), 0, rank, (1, 1)) for own in (sampler, other)
    )
    files = {
        name: {key: value.clone() for key, value in tensors.items()}
        for name, tensors in old.files().items()
    }
    assert new.load(list(files), files.__getitem__, (1, 1))
    again = new.files()
    assert again.keys() == files.keys()
    for name, tensors in files.items():
        assert tensors.keys() == again[name].keys()
        assert all(torch.equal(own, again[name][key]) for key, own in tensors.items())
    return LocalShard(other, epoch)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("count", [0, 3, 5, 13])
def test_a_checkpoint_of_a_shard(shared, count):
    """It goes on as the first would, and stamps with it."""
    first = LocalShard(make_sampler(2, 5, shared), epoch=3)
    random = np.random.default_rng(count)

    def move(shard, number):
        shard.insert(transitions(2, start=number), np.array([0, 1]), np.array([number + 0.5, 2.0]))
        uniforms = torch.from_numpy(np.random.default_rng(number).random(20))
        reply = shard.draw({"agents": torch.arange(20) % 2, "uniforms": uniforms})
        learned = {"agents": torch.arange(20) % 2, "stamps": reply["stamps"]}
        shard.update(learned | {"td_errors": uniforms * 3})
        return reply

    for number in range(count):
        first.insert(transitions(1, start=number), random.integers(0, 2, 1))
    reply = draw_all(first) if count else None
    second = saved(first, epoch=3)
    for number in range(8):
        left, right = move(first, number), move(second, number)
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)
    third = saved(first, epoch=4)  # after a failure: what it gave since the checkpoint is unknown
    if reply is not None:
        before = leaves_of(third)
        tell(third, reply, 7.0)
        assert np.array_equal(leaves_of(third), before)
    assert not set(move(third, 9)["stamps"].tolist()) & set(move(first, 9)["stamps"].tolist())


@pytest.mark.parametrize("shared", [True, False])
def test_children_take_over_and_newcomers_know_nothing(shared):
    samplers = [make_sampler(3, 8, shared) for _ in range(2)]
    shards = [LocalShard(own) for own in samplers]
    for number, shard in enumerate(shards):
        agents = np.array([0, 1, 1, 2, 2, 2])
        shard.insert(transitions(6, start=10 * number), agents, np.arange(6.0) + number)
    before = [own.priorities.tree.priorities().copy() for own in samplers]
    sampler = ShardedSampler(shards, streams(3), samplers[0].buffer)
    sampler.inherit(np.array([2, 1, 2]))
    assert sampler.state_dict(1) == sampler.export(1) == {}
    sampler.load_state_dict({}, 1)  # a child of an agent of another learner
    for own, leaves in zip(samplers, before, strict=True):
        found = own.priorities.tree.priorities()
        np.testing.assert_array_equal(found[[0, 2]], leaves[[2, 2]])
        assert found[1].tolist() == ([1.0] * 6 + [0.0] * 2 if shared else [0.0] * 8)
        assert own.priorities._highest[1] == 1.0
        assert own.buffer.sizes.tolist() == ([6] if shared else [3, 0, 3])


def test_shards_may_be_asked_at_the_same_time_while_others_insert():
    """Nothing is lost or torn: an item's fields all say the same number."""
    shards = [LocalShard(make_sampler(capacity=50)) for _ in range(3)]
    for shard in shards:
        shard.insert(transitions(50))
    sampler = sharded(shards)

    def insert(shard):
        for number in range(300):
            count = number % 7 + 1
            shard.insert(transitions(count, start=number), np.zeros(count, int), np.ones(count))

    with ThreadPoolExecutor(6) as pool:
        sampler.map = pool.map
        writers = [pool.submit(insert, shard) for shard in shards]
        rounds = 0
        while not all(writer.done() for writer in writers) or rounds < 20:
            samples = sampler.sample([request([0], [2], [32])])
            assert torch.equal(samples.obs[:, 0], samples.action.float())
            assert torch.equal(samples.rewards[:, 0], samples.action.double())
            sampler.update_priorities([samples.weight.reshape(2, 1, 32)])
            rounds += 1
        for writer in writers:
            writer.result()
    for shard in shards:
        assert shard.sampler.buffer.added.tolist() == [50 + sum(n % 7 + 1 for n in range(300))]


@pytest.mark.parametrize("epoch", [-1, 2**19])
def test_an_epoch_that_does_not_fit_is_refused(epoch):
    with pytest.raises(ValueError, match="a shard's epoch must be 0 to 524287"):
        LocalShard(make_sampler(), epoch)


def test_streams_do_not_depend_on_how_many_shards_there_are():
    """As many numbers of each agent's stream, whatever was lost since."""
    states = []
    for shards in (three(), [make_shard(THREE[1])], three(remote=True)):
        if isinstance(shards[0], Remote):
            shards[0].gone = True
        stream = generator(0, "sample", 0)
        sampler = sharded(shards)
        sampler.reseed([stream])
        sampler.sample([request([0], [3], [5])])
        states.append(stream.bit_generator.state)
    assert states[0] == states[1] == states[2]
