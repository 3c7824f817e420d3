"""Seconds by name. No test measures how fast anything is."""

import pytest

from evorl.pipeline.training_context import Timer


def test_no_measurement_has_no_shares():
    assert Timer().shares() == {}


def test_shares_add_up_to_one_and_follow_the_seconds():
    timer = Timer()
    timer.seconds.update(act=1.0, step=3.0)
    assert timer.shares() == {"act": 0.25, "step": 0.75}


def test_measurements_of_one_name_add_up():
    timer = Timer()
    spent = []
    for _ in range(3):
        with timer("act"):
            sum(range(1000))
        spent.append(timer.seconds["act"])
    assert 0 < spent[0] < spent[1] < spent[2]
    assert timer.shares() == {"act": 1.0}


def test_what_fails_is_timed_too():
    timer = Timer()
    with pytest.raises(ValueError, match="x"), timer("act"):
        raise ValueError("x")
    assert timer.seconds["act"] > 0
