"""How many agents are left, and when."""

import pytest

from evorl.config import HalvingConfig
from evorl.evolution import Halving


@pytest.mark.parametrize(
    ("agents", "survivors", "sizes"),
    [
        (8, 1, (8, 4, 2, 1)),
        (8, 3, (8, 4, 3)),
        (7, 1, (7, 4, 2, 1)),
        (8, 8, (8,)),
        (8, None, (8,)),
        (1, 1, (1,)),
    ],
)
def test_the_worse_half_goes_until_the_survivors_are_left(agents, survivors, sizes):
    assert Halving.of(HalvingConfig(survivors=survivors), agents).sizes == sizes


def test_what_is_spent_says_how_many_are_left():
    halving = Halving((8, 4, 2, 1), within=0.3)
    found = [halving.agents(spent / 100) for spent in (0, 9, 11, 19, 21, 29, 30, 99, 150)]
    assert found == [8, 8, 4, 4, 2, 2, 1, 1, 1]


def test_all_may_go_at_once():
    assert Halving((8, 4, 2), within=0.0).agents(0.0) == 2
    assert Halving((8,), within=0.5).agents(0.1) == 8
