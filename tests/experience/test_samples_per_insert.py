import numpy as np
import pytest

from evorl.experience import SamplesPerInsert


def test_learners_wait_for_inserts_and_actors_for_samples():
    band = SamplesPerInsert(ratio=4, slack=10)
    assert band.may_insert
    assert band.may_sample  # ahead by up to 10
    band.sampled(10)
    assert not band.may_sample
    band.inserted(1)
    assert band.may_sample
    band.inserted(5)  # calls for 24, of which 10 were drawn
    assert not band.may_insert
    band.sampled(4)
    assert band.may_insert


def test_the_first_inserts_call_for_nothing():
    band = SamplesPerInsert(ratio=2, slack=0, starts=100)
    for _ in range(9):
        band.inserted(11)
        assert band.may_insert
        assert not band.may_sample
    band.inserted(11)
    assert band.owed == 2 * 10
    assert band.may_sample
    assert not band.may_insert


def test_another_ratio_holds_from_then_on():
    band = SamplesPerInsert(ratio=2, slack=0)
    band.inserted(1000)
    band.sampled(2000)
    band.ratio = 8
    assert band.owed == 0
    band.inserted(3)
    assert band.owed == 24


@pytest.mark.parametrize("slack", [0, 1, 64, 1000])
@pytest.mark.parametrize("ratio", [0.25, 1, 8])
def test_one_of_the_two_can_always_go_on_and_the_ratio_holds(ratio, slack):
    """Whoever may, does, in batches and messages of any size: nobody waits for ever."""
    random, band = np.random.default_rng(0), SamplesPerInsert(ratio, slack, starts=50)
    inserts = samples = 0
    for _ in range(20_000):
        assert band.may_insert or band.may_sample
        if random.random() < 0.5 and band.may_insert:
            inserts += (count := int(random.integers(1, 200)))
            band.inserted(count)
        elif band.may_sample:
            samples += (count := int(random.integers(1, 300)))
            band.sampled(count)
    ahead = samples - ratio * (inserts - 50)
    assert -slack - 200 * ratio <= ahead <= slack + 300


@pytest.mark.parametrize(("ratio", "slack"), [(0, 1), (-1, 1), (1, -1), (float("nan"), 1)])
def test_a_band_that_cannot_be_held_is_refused(ratio, slack):
    with pytest.raises(ValueError, match="ratio must be above 0"):
        SamplesPerInsert(ratio, slack)
