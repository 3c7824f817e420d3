import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from evorl.experience import NStep, ReplayBuffer

from .reference import Episodes, SlowNStep, SlowRing, transitions

FIELDS = ("obs", "action", "rewards", "next_obs", "bootstrap")


def assert_equal_rings(buffer: ReplayBuffer, ring: SlowRing) -> None:
    """Every place of every ring holds the window the reference has there."""
    assert buffer.sizes.tolist() == [len(places) for places in ring.places]
    slots = [r * ring.capacity + p for r, places in enumerate(ring.places) for p in places]
    windows = [window for places in ring.places for window in places.values()]
    items = buffer.gather(torch.tensor(slots, dtype=torch.int64))
    for name in FIELDS:
        got = items[name].numpy()
        for row, window in zip(got, windows, strict=True):
            expected = np.asarray(window[name]).astype(got.dtype)
            np.testing.assert_array_equal(row, expected, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 5),
    agents=st.integers(1, 3),
    envs_each=st.integers(1, 3),
    capacity=st.integers(1, 7),
    shared=st.booleans(),
    seed=st.integers(0, 10_000),
    flush_after=st.lists(st.booleans(), min_size=1, max_size=20),
)
def test_what_is_stored_equals_the_reference(
    n, agents, envs_each, capacity, shared, seed, flush_after
):
    num_envs, replays = agents * envs_each, 1 if shared else agents
    fast, slow = NStep(num_envs, n, (2,), np.float32), SlowNStep(num_envs, n)
    buffer = ReplayBuffer(capacity, (2,), torch.float32, n, replays, reward_dtype=torch.float64)
    ring = SlowRing(replays, capacity)
    episodes = Episodes(num_envs, seed)

    def store(emitted, windows):
        owner = emitted.env // envs_each
        slots = buffer.add(emitted, None if shared else owner)
        expected = [ring.add(w, 0 if shared else w["env"] // envs_each) for w in windows]
        # Of a push larger than the ring, only the places that stay are reported, each once.
        assert sorted(slots.tolist()) == sorted(set(expected))

    for flush in flush_after:
        step = episodes.step()
        store(fast.push(*step), slow.push(*step))
        if flush:
            store(fast.flush(), slow.flush())
            episodes.cut()
        assert_equal_rings(buffer, ring)


def test_a_push_larger_than_the_ring_keeps_the_newest():
    buffer = ReplayBuffer(3, (2,), torch.float32, 1)
    buffer.add(transitions(2))
    slots = buffer.add(transitions(8, start=2))
    assert slots.tolist() == [1, 2, 0]
    assert buffer.gather(torch.arange(3))["action"].tolist() == [9, 7, 8]


def test_items_of_one_push_may_come_for_any_replay_in_any_order():
    buffer = ReplayBuffer(2, (2,), torch.float32, 1, num_replays=3)
    slots = buffer.add(transitions(6), np.array([2, 0, 2, 2, 0, 1]))
    assert slots.tolist() == [0, 5, 4, 1, 2]  # item 0 was pushed out of replay 2 by item 3
    assert buffer.sizes.tolist() == [2, 1, 2]
    assert buffer.gather(torch.tensor([0, 1, 2, 4, 5]))["action"].tolist() == [1, 4, 5, 3, 2]


@pytest.mark.parametrize("replays", [1, 3])
@pytest.mark.parametrize("pushes", [1, 5])
def test_a_loaded_state_goes_on_as_the_first_would(replays, pushes):
    def make():
        return ReplayBuffer(4, (2,), torch.float32, 2, num_replays=replays)

    def push(buffer, number):
        index = np.array([0, 1, 2, 0]) % replays if replays > 1 else None
        return buffer.add(transitions(4, n=2, start=10 * number), index)

    first, second = make(), make()
    for number in range(pushes):
        push(first, number)
    for replay in range(replays):
        second.load_state_dict(first.state_dict(replay), replay)
    for number in range(pushes, pushes + 3):
        assert push(first, number).tolist() == push(second, number).tolist()
        for replay in range(replays):
            left, right = first.state_dict(replay), second.state_dict(replay)
            assert left.keys() == right.keys()
            assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_state_holds_only_what_was_written():
    buffer = ReplayBuffer(1000, (2,), torch.float32, 1)
    buffer.add(transitions(3))
    assert len(buffer.state_dict()["obs"]) == 3


def test_a_state_of_another_geometry_is_refused():
    state = ReplayBuffer(4, (2,), torch.float32, 1).state_dict()
    for capacity, dtype, n in [(5, torch.float32, 1), (4, torch.float32, 3), (4, torch.uint8, 1)]:
        with pytest.raises(ValueError, match="another capacity or other items"):
            ReplayBuffer(capacity, (2,), dtype, n).load_state_dict(state)


def test_read_only_arrays_and_images_are_stored():
    buffer = ReplayBuffer(2, (2, 2), torch.uint8, 1)
    frame = np.broadcast_to(np.uint8(200), (1, 2, 2))
    item = transitions(1)._replace(obs=frame, next_obs=frame)
    buffer.add(item)
    assert buffer.gather(torch.tensor([0]))["obs"].unique().tolist() == [200]
