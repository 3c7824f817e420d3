"""A replay divided among actors: what each side does, and what the learner makes of nonsense."""

import math
import threading
import warnings
from itertools import count

import numpy as np
import pytest
import torch

from evorl.actors import ActorMessage, ActorShards, Inbox, Limits, OwnShard, on_bus
from evorl.actors.messages import Refused
from evorl.actors.remote_shards import REPLAY
from evorl.algorithms import DQN
from evorl.bus.wire import encode
from evorl.errors import RunError
from evorl.experience import LocalShard, ReplayBuffer, ShardedSampler, Transitions
from evorl.experience.prioritised import PrioritisedSampler
from tests.bus.buses import join
from tests.experience.test_sampling import request, streams

from .parts import ENVS, STEPS, make_env, population_of

torch.set_num_threads(1)
AGENTS, CAPACITY, N_STEP = 3, 16, 2


@pytest.fixture(scope="module")
def env():
    return make_env()


@pytest.fixture(scope="module")
def population(env):
    return population_of(env, DQN(n_step=N_STEP))


def sampler_of(capacity=CAPACITY, shared=True):
    obs = ((3,), torch.float32)
    buffer = ReplayBuffer(capacity, *obs, N_STEP, 1 if shared else AGENTS)
    share = "rank" if shared else "agent"
    return PrioritisedSampler(buffer, streams(AGENTS), alpha=1.0, epsilon=1e-300, share=share)


def played(items, start=0, agents=None):
    """So many items of random agents, each known by its action, with TD errors."""
    random, numbers = np.random.default_rng(start), np.arange(start, start + items)
    agents = random.integers(0, AGENTS, items) if agents is None else np.asarray(agents)
    obs = np.repeat(numbers[:, None], 3, 1).astype(np.float32)
    rewards = np.repeat(numbers[:, None], N_STEP, 1).astype(np.float32)
    bootstrap = np.ones(items, np.uint8)
    windows = Transitions(obs, numbers % 3, rewards, obs + 1, bootstrap, agents * ENVS)
    return windows, agents, (numbers % 3 + 1).astype(np.float32)


class Fellow:
    """An actor's shard, asked as on a bus; its answers may be spoiled."""

    def __init__(self, epoch=0, shared=True):
        self.own = OwnShard(LocalShard(sampler_of(shared=shared), epoch))
        self.own.begin(0)
        self.spoil = lambda said: said
        self.asked = []

    def ask(self, fields):
        self.asked.append(fields["what"])
        answer = self.own.answer(encode(fields, "request").fields())
        return encode(self.spoil(answer), "answer").fields()

    def message(self, slot, version=0):
        return ActorMessage(slot, 0, False, {"version": version, **self.own.status()})


class Side:
    """A learner's side of two actors' shards."""

    def __init__(self, env, population, lockstep=False, shared=True):
        kinds = (env.observation, env.action)
        limits = Limits(AGENTS, ENVS, STEPS, *kinds, N_STEP, shard=CAPACITY)
        self.inbox = Inbox(population, limits, slots=2)
        self.inbox.begin(0, 0)
        self.fellows = [Fellow(shared=shared) for _ in range(2)]
        self.shards = ActorShards([own.ask for own in self.fellows], self.inbox, lockstep)
        self.shards.begin(0)
        like = sampler_of(1, shared).buffer
        share = "rank" if shared else "agent"
        self.sampler = ShardedSampler(
            self.shards.shards, streams(AGENTS), like, CAPACITY, share=share
        )

    def play(self, slot, items, start=0, generation=0, **more):
        self.fellows[slot].own.insert(generation, played(items, start, **more))

    def hear(self, slot, version=0):
        self.shards.hear([self.fellows[slot].message(slot, version)])

    def draw(self, size=64):
        """One agent's batch: the numbers of its items."""
        samples = self.sampler.sample([request([1], [1], [size])])
        numbers = samples.obs[:, 0].int().tolist()
        assert samples.rewards[:, 0].int().tolist() == numbers
        assert (samples.next_obs[:, 0] - 1).int().tolist() == numbers
        return numbers, samples.weight


@pytest.fixture
def side(env, population):
    return Side(env, population)


def test_the_learner_draws_from_all_and_tells_each(side):
    side.play(0, 5)
    side.play(1, 7, start=100)
    assert side.sampler.buffer.sizes.tolist() == [0]  # nobody has heard of it
    for slot in range(2):
        side.hear(slot)
    assert side.sampler.buffer.sizes.tolist() == [12]
    numbers, _ = side.draw()
    assert {n < 100 for n in numbers} == {True, False}
    side.sampler.update_priorities([torch.full((1, 1, 64), 0.5)])
    for fellow, start in zip(side.fellows, (0, 100), strict=True):
        leaves = fellow.own.shard.sampler.priorities.tree.priorities()[1]
        drawn = np.isin(start + np.arange(CAPACITY), numbers)
        assert (leaves[drawn] == 0.5).all()
        assert not (leaves[~drawn] == 0.5).any()
        assert fellow.asked == ["draw", "update"]
    totals = [shard.status()["totals"][1].item() for shard in side.shards.shards]
    assert totals == [own.own.shard.status()["totals"][1].item() for own in side.fellows]
    assert side.shards.report() == {"dropped": 0}


def test_priorities_of_what_was_overwritten_are_dropped_and_counted(side):
    side.play(0, CAPACITY)
    side.hear(0)
    side.draw()
    side.play(0, CAPACITY, start=50)
    side.sampler.update_priorities([torch.full((1, 1, 64), 0.5)])
    assert side.shards.report() == {"dropped": 64}
    assert side.shards.report() == {"dropped": 0}


def test_a_generation_is_entered_by_inheriting(side):
    """What was cut comes in, and then all is handed on."""
    side.play(0, 4, agents=[0, 0, 1, 1])
    own = side.fellows[0].own
    own.insert(0, played(2, start=20), cut=True)
    side.hear(0)
    assert own.shard.status()["sizes"].tolist() == [4] * 3
    tree = own.shard.sampler.priorities.tree
    before = tree.priorities().copy()
    side.sampler.inherit(np.array([1, 1, 2]))
    side.sampler.inherit(np.array([0, 0, 2]))  # one after another
    side.sampler.load_state_dict({}, 2)  # a child of an agent that was never here
    assert side.fellows[0].asked == []  # it is told when the generation begins
    side.shards.begin(1)
    assert side.fellows[0].asked == ["inherit"]
    assert own.shard.status()["sizes"].tolist() == [6] * 3
    after = tree.priorities()
    assert np.array_equal(after[0, :4], before[1, :4])
    assert np.array_equal(after[1, :4], before[1, :4])
    assert after[2, :6].tolist() == [1.0] * 6
    own.begin(1)  # the learner's weights: it knows already
    assert own.shard.status()["sizes"].tolist() == [6] * 3
    side.play(0, 3, start=40, generation=0)  # of agents that may be gone
    assert own.shard.status()["sizes"].tolist() == [6] * 3
    assert len(side.draw()[0]) == 64


def test_who_was_not_told_begins_again_with_nothing(side):
    for slot in range(2):
        side.play(slot, 5, start=100 * slot)
    side.hear(0)  # nothing is known of the other one: it is not told
    side.shards.begin(1)
    for fellow in side.fellows:
        fellow.own.begin(1)
    sizes = [own.own.shard.status()["sizes"][0].item() for own in side.fellows]
    assert sizes == [5, 0]
    side.play(1, 5, start=200, generation=1)
    side.hear(1)
    assert min(n for n in side.draw()[0] if n > 50) >= 200


def test_a_shard_of_another_generation_has_nothing_to_draw(side):
    """Whoever comes back late is asked as if it were up to date, or told what is over."""
    side.play(0, 5)
    side.play(1, 5, start=100)
    side.hear(0)
    side.hear(1)
    own = side.fellows[1].own
    late = {"what": "inherit", "generation": 1, "parents": torch.zeros(3, dtype=torch.int64)}
    side.fellows[1].own.begin(2)
    own.answer(late)  # of long ago
    assert own.generation == 2
    assert max(side.draw()[0]) < 50
    own.insert(2, played(3, start=300))
    told = {"what": "update", "generation": 0, "agents": torch.tensor([0])}
    told |= {"stamps": torch.tensor([0]), "td_errors": torch.tensor([9.0]).double()}
    before = own.shard.status()["totals"]
    assert torch.equal(own.answer(told)["totals"], before)
    own.answer(late | {"generation": 4})  # one was missed
    assert (own.generation, own.shard.status()["sizes"].tolist()) == (4, [0] * 3)


def spoiled_answers(side):
    """Everything that can be wrong about what is drawn, with how it is counted."""
    fellow = side.fellows[0]
    agents, uniforms = torch.tensor([1, 1]), torch.tensor([0.1, 0.9], dtype=torch.float64)
    asked = {"what": "draw", "generation": 0, "agents": agents, "uniforms": uniforms}
    good = fellow.own.answer(asked)
    for name, value in good.items():
        yield {k: v for k, v in good.items() if k != name}
        for other in (None, "x", 1.5, [], {}, value[..., None], value.to(torch.float16)):
            yield good | {name: other}
        if value.ndim and name != "obs":
            yield good | {name: torch.cat([value, value])}
        if value.is_floating_point():
            for bad in (math.nan, math.inf, -1e30):
                spoilt = value.clone()
                spoilt.view(-1)[-1] = bad
                yield good | {name: spoilt}
    yield good | {"more": 1}
    yield good | {"shares": torch.tensor([1.1, 0.5], dtype=torch.float64)}
    yield good | {"shares": torch.tensor([0.0, 0.5], dtype=torch.float64)}
    yield good | {"sizes": torch.zeros(3, dtype=torch.int64)}
    yield good | {"sizes": torch.full((3,), CAPACITY + 1)}
    yield good | {"stamps": torch.tensor([-2, 3])}
    yield good | {"action": torch.tensor([3, 0])}
    yield good | {"bootstrap": torch.tensor([N_STEP + 1, 0], dtype=torch.uint8)}
    items = ("obs", "action", "rewards", "next_obs", "bootstrap")
    yield {k: v for k, v in good.items() if k not in items}


def test_nonsense_is_counted_and_drawn_elsewhere(side):
    side.play(0, 5)
    side.play(1, 5, start=100)
    side.hear(1)
    warned, number = [], count()
    for spoilt in spoiled_answers(side):
        next(number)
        side.hear(0)
        side.fellows[0].spoil = lambda said, own=spoilt: own
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            side.sampler.reseed(streams(AGENTS, seed=2))
            numbers, weight = side.draw(2)
            side.shards.hear([])
        assert min(numbers) >= 100, spoilt
        assert torch.isfinite(weight).all()
        assert side.shards.shards[0].status()["totals"].sum() == 0
        warned += [str(own.message) for own in told]
    counts = side.shards.report()
    assert sum(counts.values()) == next(number) > 80
    assert counts.keys() == {"dropped", "fields", "range", "shape", "type"}
    assert all(
        own.startswith("actor 0: its part of the replay is left out until") for own in warned
    )
    assert len(warned) == len(counts) - 1  # each once


def test_a_late_one_is_left_out_until_it_has_played_with_newer_weights(side):
    side.play(0, 5)
    side.play(1, 5, start=100)
    side.hear(0)
    side.hear(1)

    def late(said):
        raise Refused("late", "no answer within 2 s")

    side.inbox.begin(7, 0)
    side.fellows[0].spoil = late
    assert min(side.draw()[0]) >= 100
    asked = len(side.fellows[0].asked)
    side.draw()
    with pytest.warns(UserWarning, match=r"^actor 0: .* \(late: no answer within 2 s\); the next"):
        side.hear(0, version=7)  # from before
    side.draw()
    assert len(side.fellows[0].asked) == asked
    side.fellows[0].spoil = lambda said: said
    side.hear(0, version=8)
    assert min(side.draw()[0]) < 100
    assert side.shards.report() == {"dropped": 0, "late": 1}


def test_in_lock_step_nobody_is_left_out(env, population):
    side = Side(env, population, lockstep=True)
    side.play(0, 5)
    side.hear(0)
    side.fellows[0].spoil = lambda said: {}
    with pytest.raises(RunError, match=r"^actor 0: its replay cannot be used \(fields: missing"):
        side.draw()


def test_with_replays_of_their_own(env, population):
    side = Side(env, population, shared=False)
    side.play(0, 8, agents=[0, 0, 1, 1, 1, 2, 2, 2])
    side.hear(0)
    assert side.sampler.buffer.sizes.tolist() == [2, 3, 3]
    assert set(side.draw()[0]) == {2, 3, 4}
    side.sampler.load_state_dict({}, 1)
    side.sampler.inherit(np.array([2, 1, 2]))
    side.shards.begin(1)
    assert side.sampler.buffer.sizes.tolist() == [3, 0, 3]


def test_playing_and_answering_at_once(side):
    """From two threads: items stay whole, and no stamp is taken for another's."""
    own, fellow = side.fellows[0].own, side.fellows[0]
    over = threading.Event()

    def play():
        for number in count():
            own.insert(0, played(7, start=100 * number))
            if over.is_set():
                return

    playing = threading.Thread(target=play)
    playing.start()
    try:
        while own.shard.status()["sizes"][0] < CAPACITY:
            pass
        for number in range(100):
            side.hear(0)
            side.draw()  # which looks at every item
            side.sampler.update_priorities([torch.full((1, 1, 64), 0.001 + number)])
    finally:
        over.set()
        playing.join()
    tree = own.shard.sampler.priorities.tree
    np.testing.assert_allclose(tree.totals, tree.priorities().sum(1))
    assert fellow.asked.count("draw") == 100


def test_on_the_bus(tmp_path):
    """Who answers, who raises, who does not answer, and who is gone."""
    with join(tmp_path, 0, 3, "star") as learner, join(tmp_path, 1, 3, "star") as actor:
        own = Fellow().own
        own.serve(actor)
        own.insert(0, played(5))
        ask = on_bus(learner, 0, 30)
        agents, uniforms = torch.tensor([1]), torch.tensor([0.5], dtype=torch.float64)
        asked = {"what": "draw", "generation": 0, "agents": agents, "uniforms": uniforms}
        assert ask(asked)["stamps"].tolist() == own.answer(asked)["stamps"].tolist()
        with pytest.raises(Refused, match=r"^failed: request 'replay': rank 1 could not answer"):
            ask({"what": "draw"})
        with join(tmp_path, 2, 3, "star") as other:
            learner.meet(30)
            with pytest.raises(Refused, match=r"^late: no answer within 0.05 s$"):
                on_bus(learner, 1, 0.05)(asked)
            other.serve(REPLAY, lambda value: own.answer(value.fields))
        learner.wait(lambda: 2 in learner.gone)
        with pytest.raises(Refused, match=r"^gone$"):
            on_bus(learner, 1, 30)(asked)
    with pytest.raises(RunError, match="the bus is closed"):
        ask(asked)
