"""The threads that PyTorch is to use."""

import os

import pytest
import torch

from evorl import machine
from evorl.machine import cores, set_threads, share_cores, threads_are_given


@pytest.fixture
def eight(monkeypatch):
    """Eight cores, and a user who has set nothing; the threads that PyTorch is given."""
    for name in ("LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "cores", lambda: 8)
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    return threads


@pytest.mark.parametrize(
    ("widest", "pixels", "ranks", "threads"),
    [
        (255, 0, 1, 1),
        (256, 0, 1, 8),
        (256, 0, 2, 4),
        (256, 0, 3, 2),
        (256, 0, 16, 1),
        (64, 32 * 32, 2, 4),
        (64, 31 * 33, 2, 1),
    ],
)
def test_large_networks_get_a_share_of_the_cores(eight, widest, pixels, ranks, threads):
    set_threads(widest, pixels, ranks)
    assert eight == [threads]


def test_the_user_decides(eight, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert set_threads(256) == torch.get_num_threads()
    assert eight == []


@pytest.mark.parametrize(
    ("place", "among", "mine"),
    [(0, 1, None), (0, 2, [1, 5]), (1, 2, [3, 7]), (2, 3, [5]), (4, 6, [1]), (5, 6, [3])],
)
def test_processes_share_the_cores_that_there_are(monkeypatch, place, among, mine):
    given = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 3, 5, 7})
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, own: given.append(own))
    share_cores(place, among)
    assert given == ([] if mine is None else [mine])


def test_cores():
    assert 1 <= cores() <= os.cpu_count()


@pytest.mark.parametrize(
    ("variables", "given"),
    [
        ({}, False),
        ({"OMP_NUM_THREADS": "1"}, True),
        ({"OMP_NUM_THREADS": ""}, False),
        ({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}, False),  # torchrun
        ({"OMP_NUM_THREADS": "1", "ACCELERATE_MIXED_PRECISION": "no"}, False),  # accelerate launch
        ({"OMP_NUM_THREADS": "2", "LOCAL_WORLD_SIZE": "2"}, True),
    ],
)
def test_who_set_the_threads(eight, monkeypatch, variables, given):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert threads_are_given() == given
