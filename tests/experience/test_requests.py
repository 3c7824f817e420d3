import numpy as np
import pytest
import torch

from evorl.experience import ReplayBuffer, SampleRequest, UniformSampler, split_groups

from .reference import transitions


def request(agents, updates, batch_sizes, width):
    return SampleRequest(np.array(agents), np.array(updates), np.array(batch_sizes), width)


def sampler(agents, replays=1):
    buffer = ReplayBuffer(50, (2,), torch.float32, 1, num_replays=replays)
    index = None if replays == 1 else np.arange(40) % replays
    buffer.add(transitions(40), index)
    return UniformSampler(buffer, [np.random.default_rng(i) for i in range(agents)])


def test_groups_and_padding_lie_where_they_should():
    requests = [
        request([2, 0], [3, 1], [4, 2], 5),
        request([1], [0], [4], 4),
        request([3], [2], [3], 3),
    ]
    samples = sampler(4, replays=4).sample(requests)
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


@pytest.mark.parametrize(
    ("requests", "match"),
    [
        ([request([0], [1], [4], 3)], "does not fit width 3"),
        ([request([0, 1], [1], [4, 4], 4)], "one of each"),
        ([request([0], [-1], [4], 4)], ">= 0"),
        ([request([0], [1], [0], 4)], ">= 1"),
        ([request([7], [1], [4], 4)], "population of 2"),
        ([request([0], [1], [4], 4), request([0], [1], [4], 4)], "one group only"),
    ],
)
def test_requests_that_cannot_be_are_refused(requests, match):
    with pytest.raises(ValueError, match=match):
        sampler(2).sample(requests)
