"""A rank's replays as files: back on the same ranks, on fewer and on more."""

import numpy as np
import pytest
import torch

from evorl.experience import PrioritisedSampler, ReplayBuffer, Replays, Transitions, UniformSampler
from evorl.seeding import generator


def items(first, count):
    """Transitions that are known by their action."""
    action = np.arange(first, first + count)
    obs = np.repeat(action[:, None], 2, 1).astype(np.float32)
    return Transitions(
        obs, action, np.zeros((count, 1)), obs, np.ones(count, np.uint8), np.zeros(count, np.int64)
    )


def make(rank, ranks, agents, share="rank", *, prioritised=False, data=1, copy=0):
    buffer = ReplayBuffer(6, (2,), torch.float32, 1, len(agents) if share == "agent" else 1)
    streams = [generator(0, "sample", agent) for agent in agents]
    kind = PrioritisedSampler if prioritised else UniformSampler
    sampler = kind(buffer, streams, share=share)
    return Replays(buffer, sampler, agents, copy, rank, (ranks // data, data))


def fill(replays, first, count):
    index = np.zeros(count, np.int64) if replays.buffer.num_replays > 1 else None
    replays.sampler.inserted(replays.buffer.add(items(first, count), index))


def held(replays, ring=0):
    """The actions of a ring, oldest first."""
    state = replays.buffer.state_dict(ring)
    actions, position = state["action"].tolist(), int(state["position"])
    full = len(actions) == replays.buffer.capacity
    return actions[position:] + actions[:position] if full else actions


def move(old, new):
    """From the files of some ranks to others; whether each is exact."""
    files = {name: tensors for replays in old for name, tensors in replays.files().items()}
    copies = {k: {n: t.clone() for n, t in tensors.items()} for k, tensors in files.items()}
    return [replays.load(list(files), copies.__getitem__, old[0].mesh) for replays in new]


@pytest.mark.parametrize("prioritised", [False, True])
def test_the_same_ranks(prioritised):
    old, new = (
        [make(r, 2, range(2 * r, 2 * r + 2), prioritised=prioritised) for r in (0, 1)]
        for _ in range(2)
    )
    fill(old[0], 0, 8)  # more than it holds
    fill(old[1], 10, 3)
    assert move(old, new) == [True, True]
    assert [held(replays) for replays in new] == [[2, 3, 4, 5, 6, 7], [10, 11, 12]]
    for before, after in zip(old, new, strict=True):
        for agent in range(2):
            a, b = before.sampler.state_dict(agent), after.sampler.state_dict(agent)
            assert a.keys() == b.keys()
            assert all(torch.equal(a[name], b[name]) for name in a)


def test_fewer_and_more_ranks_with_a_shared_replay():
    old = [make(r, 3, range(r, r + 1)) for r in range(3)]
    for rank, replays in enumerate(old):
        fill(replays, 10 * rank, 2)
    two = [make(r, 2, range(2)) for r in range(2)]
    assert move(old, two) == [False, False]
    assert [held(replays) for replays in two] == [[0, 1, 20, 21], [10, 11]]
    five = [make(r, 5, range(1)) for r in range(5)]
    assert move(old, five) == [False] * 5
    assert [held(replays) for replays in five] == [[0, 1], [10, 11], [20, 21], [0, 1], [10, 11]]


def test_a_replay_for_each_agent_goes_to_whatever_rank_has_it():
    old = [make(0, 2, range(0, 3), "agent"), make(1, 2, range(3, 4), "agent")]
    fill(old[0], 0, 7)
    fill(old[1], 10, 3)
    new = [make(r, 4, range(r, r + 1), "agent") for r in range(4)]
    assert move(old, new) == [True] * 4
    assert [held(replays) for replays in new] == [[1, 2, 3, 4, 5, 6], [], [], [10, 11, 12]]


def test_the_replay_of_all_ranks_is_saved_once():
    options = {"share": "world", "prioritised": True}
    old = [make(r, 2, range(2 * r, 2 * r + 2), **options) for r in range(2)]
    for replays in old:
        fill(replays, 0, 4)
        replays.sampler.priorities.update(*np.array([[0, 1], [2, 3]]), np.array([5.0, 7.0]))
    assert sum("replay-world" in replays.files() for replays in old) == 1
    (alone,) = new = [make(0, 1, range(4), **options)]
    assert move(old, new) == [True]
    assert held(alone) == [0, 1, 2, 3]
    rows = [replays.sampler.priorities.tree.priorities() for replays in (*old, alone)]
    np.testing.assert_array_equal(np.concatenate(rows[:2]), rows[2])


@pytest.mark.parametrize("prioritised", [False, True])
def test_as_many_ranks_in_another_mesh(prioritised):
    """Two ranks with two agents each, and then two that train all four."""
    old = [make(r, 2, range(2 * r, 2 * r + 2), prioritised=prioritised) for r in (0, 1)]
    for rank, replays in enumerate(old):
        fill(replays, 10 * rank, 3)
    new = [make(r, 2, range(4), prioritised=prioritised, data=2, copy=r) for r in (0, 1)]
    assert move(old, new) == [False, False]
    assert [held(replays) for replays in new] == [[0, 1, 2], [10, 11, 12]]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("share", ["agent", "world"])
def test_more_or_fewer_copies_of_an_agent(before, after, share):
    def ranks(data):
        options = {"share": share, "prioritised": True, "data": data}
        return [make(r, data, range(1), copy=r, **options) for r in range(data)]

    old, new = ranks(before), ranks(after)
    for replays in old:
        fill(replays, 0, 3)
    assert move(old, new) == [False] * after
    assert [held(replays) for replays in new] == [[0, 1, 2]] * after


def test_a_child_from_another_rank_knows_nothing_of_a_replay_that_only_a_rank_shares():
    source, target = (make(r, 2, range(2 * r, 2 * r + 2), prioritised=True) for r in (0, 1))
    for replays in (source, target):
        fill(replays, 0, 4)
        replays.sampler.priorities.update(*np.array([[0, 1], [2, 3]]), np.array([5.0, 7.0]))
    sent = source.sampler.export(1)
    assert sent == {}
    target.sampler.load_state_dict(sent, 0)
    rows = target.sampler.priorities.tree.priorities()
    assert rows[0].tolist() == [1.0] * 4 + [0.0] * 2
    assert rows[1, 3] > 1
