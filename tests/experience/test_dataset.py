import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from evorl.experience import (
    PrioritisedSampler,
    ReplayBuffer,
    SampleRequest,
    Samples,
    UniformSampler,
)
from evorl.experience.loader import ReplayLoader, Round

from .reference import transitions

PLANS = [
    SampleRequest(np.array([0, 1]), np.array([2, 1]), np.array([50, 30]), 50),
    SampleRequest(np.array([2]), np.array([1]), np.array([40]), 40),
]


def make(kind=UniformSampler):
    buffer = ReplayBuffer(500, (2,), torch.float32, 1)
    sampler = kind(buffer, [np.random.default_rng(agent) for agent in range(3)])
    sampler.inserted(buffer.add(transitions(10)))
    return buffer, sampler, ReplayLoader(sampler, "cpu")


@pytest.mark.parametrize("kind", [UniformSampler, PrioritisedSampler])
def test_the_loader_gives_what_the_sampler_gives(kind):
    *_, loader = make(kind)
    _, direct, _ = make(kind)
    assert isinstance(loader.loader, DataLoader)
    for _ in range(3):
        samples = loader.draw(PLANS)
        assert isinstance(samples, Samples)
        for got, wanted in zip(samples, direct.sample(PLANS), strict=True):
            assert torch.equal(got, wanted)


def test_every_round_sees_the_latest_insertions():
    buffer, _, loader = make()
    assert loader.draw(PLANS).action.max() < 10
    for newest in range(10, 500, 200):  # each time more new items than old ones
        buffer.add(transitions(200, start=newest))
        assert loader.draw(PLANS).action.max() >= newest


def test_nothing_is_drawn_ahead():
    _, sampler, loader = make()
    calls, sample = [], sampler.sample
    sampler.sample = lambda requests: calls.append(requests) or sample(requests)
    for rounds in range(1, 4):
        loader.draw(PLANS)
        assert len(calls) == rounds


def test_a_draw_that_failed_is_not_the_last():
    buffer = ReplayBuffer(500, (2,), torch.float32, 1)
    loader = ReplayLoader(UniformSampler(buffer, [np.random.default_rng(0)] * 3), "cpu")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="empty replay"):
            loader.draw(PLANS)
    buffer.add(transitions(10))
    assert loader.draw(PLANS).action.max() < 10


def test_global_generators_are_untouched():
    *_, loader = make()
    torch_state = torch.get_rng_state()
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    for _ in range(3):
        loader.draw(PLANS)
    assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_equal(np.random.get_state(legacy=False), numpy_state)
    assert random.getstate() == python_state


def test_samples_move_to_another_device():
    _, sampler, _ = make()
    samples = sampler.sample(PLANS)
    moved = Round().to(torch.device("meta"))
    moved.fill(samples)
    assert type(moved.samples) is type(samples)
    assert {field.device.type for field in moved.samples} == {"meta"}
