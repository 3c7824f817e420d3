"""A child takes over what its parent has seen; everybody else keeps their own."""

import numpy as np
import pytest
import torch

from evorl.experience import PrioritisedSampler, ReplayBuffer, UniformSampler
from evorl.seeding import generator

from .reference import transitions

PARENTS = np.array([2, 1, 2, 1])


def filled(kind, shared):
    """Four agents; with a replay each, agent i has 3 + i items."""
    buffer = ReplayBuffer(5, (2,), torch.float32, 1, 1 if shared else 4)
    sampler = kind(buffer, [generator(0, "replay", agent) for agent in range(4)])
    index = None if shared else np.repeat(np.arange(4), [3, 4, 5, 6])
    sampler.inserted(buffer.add(transitions(4 if shared else 18), index))
    return buffer, sampler


def held(buffer, replay):
    slots = replay * buffer.capacity + np.arange(buffer.sizes[replay])
    return buffer.gather(torch.from_numpy(slots))["obs"].clone()


@pytest.mark.parametrize("kind", [UniformSampler, PrioritisedSampler])
def test_a_replay_each_follows_the_parent(kind):
    buffer, sampler = filled(kind, shared=False)
    before = [held(buffer, replay) for replay in range(4)]
    sampler.inherit(PARENTS)
    for agent, parent in enumerate(PARENTS):
        assert torch.equal(held(buffer, agent), before[parent])
    # the next item of parent and child goes to the same place of their own rings
    slots = buffer.add(transitions(4), np.arange(4))
    assert (slots % buffer.capacity).tolist() == [0, 4, 0, 4]
    assert not torch.equal(held(buffer, 0), held(buffer, 2))


@pytest.mark.parametrize("kind", [UniformSampler, PrioritisedSampler])
def test_a_shared_replay_stays_as_it_is(kind):
    buffer, sampler = filled(kind, shared=True)
    before = held(buffer, 0)
    sampler.inherit(PARENTS)
    assert torch.equal(held(buffer, 0), before)


@pytest.mark.parametrize("shared", [True, False])
def test_priorities_follow_the_parent(shared):
    _, sampler = filled(PrioritisedSampler, shared)
    priorities = sampler.priorities
    priorities.update(np.arange(4), np.arange(4) % 3, np.array([9.0, 7.0, 5.0, 3.0]))
    leaves, highest = priorities.tree.priorities().copy(), priorities._highest.copy()
    totals = priorities.tree.totals.copy()
    sampler.inherit(PARENTS)
    np.testing.assert_array_equal(priorities.tree.priorities(), leaves[PARENTS])
    np.testing.assert_array_equal(priorities._highest, highest[PARENTS])
    np.testing.assert_array_equal(priorities.tree.totals, totals[PARENTS])
