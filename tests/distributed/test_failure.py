"""What torch.distributed raises, in one line."""

import pytest

from evorl.distributed.failure import rank_errors
from evorl.errors import RunError


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "[/__w/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5519. This"
            " is typically caused by a remote worker crashing.\nmore",
            "Connection closed by peer [127.0.0.1]:5519",
        ),
        (
            "Gloo connectFullMesh failed with [/__w/gloo/transport/tcp/pair.cc:152] timed out",
            "timed out",
        ),
        (
            "[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 2500 ms",
            "ranks 1, 3 did not come within 2.5 s, or left",
        ),
        (
            "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for"
            " send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original",
            "the main rank did not come in time, or left",
        ),
        ("Tensors must be contiguous", "Tensors must be contiguous"),
        ("", "RuntimeError"),
    ],
)
def test_a_lost_rank_in_one_line(said, told):
    with pytest.raises(RunError) as caught, rank_errors("receive: rank 0 lost rank 1", "wait"):
        raise RuntimeError(said)
    assert str(caught.value) == f"receive: rank 0 lost rank 1 ({told}); wait"


@pytest.mark.parametrize(
    ("silent", "told"),
    [([], ""), ([1], "rank 1 does not answer; "), ([1, 3], "ranks 1, 3 do not answer; ")],
)
def test_who_does_not_answer_is_named(silent, told):
    with pytest.raises(RunError) as caught, rank_errors("agree", "wait", lambda: silent):
        raise RuntimeError("timed out")
    assert str(caught.value) == f"agree (timed out); {told}wait"


def test_a_mistake_stays_what_it_is():
    with pytest.raises(TypeError), rank_errors("receive"):
        raise TypeError
