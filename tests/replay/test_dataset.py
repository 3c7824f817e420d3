import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from evorl.replay import GroupPlan, PrioritisedSampler, ReplayBuffer, Samples, UniformSampler
from evorl.replay.dataset import ReplayDataset, replay_loader

from .reference import transitions

PLANS = [
    GroupPlan(np.array([0, 1]), np.array([2, 1]), np.array([50, 30]), 50),
    GroupPlan(np.array([2]), np.array([1]), np.array([40]), 40),
]


def make(kind=UniformSampler):
    buffer = ReplayBuffer(500, (2,), torch.float32, 1)
    sampler = kind(buffer, [np.random.default_rng(agent) for agent in range(3)])
    sampler.inserted(buffer.add(transitions(10)))
    dataset = ReplayDataset(sampler)
    return buffer, sampler, dataset, replay_loader(dataset, "cpu")


@pytest.mark.parametrize("kind", [UniformSampler, PrioritisedSampler])
def test_the_loader_gives_what_the_sampler_gives_once_a_round(kind):
    *_, dataset, loader = make(kind)
    _, direct, *_ = make(kind)
    assert isinstance(loader, DataLoader)
    for _ in range(3):
        dataset.request(PLANS)
        rounds = list(loader)
        assert len(rounds) == 1
        assert isinstance(rounds[0], Samples)
        expected = direct.sample(PLANS)
        for got, wanted in zip(rounds[0], expected, strict=True):
            assert torch.equal(got, wanted)


def test_every_round_sees_the_latest_insertions():
    buffer, _, dataset, loader = make()
    dataset.request(PLANS)
    [before] = list(loader)
    assert before.action.max() < 10
    for newest in range(10, 500, 200):  # each time more new items than old ones
        buffer.add(transitions(200, start=newest))
        dataset.request(PLANS)
        for samples in loader:
            assert samples.action.max() >= newest


def test_global_generators_are_untouched():
    *_, dataset, loader = make()
    torch_state = torch.get_rng_state()
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    for _ in range(3):
        dataset.request(PLANS)
        list(loader)
    assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_equal(np.random.get_state(legacy=False), numpy_state)
    assert random.getstate() == python_state


def test_iterating_without_a_request_is_refused():
    *_, dataset, loader = make()
    dataset.request(PLANS)
    list(loader)
    with pytest.raises(RuntimeError, match="request"):
        list(loader)


def test_samples_move_to_another_device():
    _, sampler, *_ = make()
    samples = sampler.sample(PLANS)
    assert samples.to("cpu") is samples
    assert {field.device.type for field in samples.to("meta")} == {"meta"}
