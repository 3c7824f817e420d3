"""Figures with as many decimals as their error deserves."""

import math

import pytest

from evorl.runs import Estimate, decimals

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("figures", "errors", "places"),
    [
        ([429.2], [14.3], 0),
        ([238.1], [5.4], 1),
        ([0.76], [0.085], 3),
        ([-1e6], [1200.0], 0),
        ([0.02], [3.0], 1),  # the error is larger than the figure
        ([1.0, 2.0, 3.0], [0.1, 20.0, 5.0], 1),  # the middle one
        ([1.0, 2.0], [0.1, 20.0], 2),  # of two the smaller
        ([500.0, 480.0], [0.0, 6.0], 1),  # all episodes alike say nothing of the others
        ([500.0], [0.0], 1),
        ([-200.0], [3e-14], 1),  # of rounding
        ([500.0], [], 1),
        ([42.46], [NAN], 2),
        ([0.8, -INF, NAN], [NAN, INF], 4),
        ([12_345.0], [], 0),
        ([0.0], [0.0], 1),
        ([], [], 1),
        ([1e-300], [], 12),
    ],
)
def test_decimals(figures, errors, places):
    assert decimals(figures, errors) == places


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.756, 0.671, 0.841), "0.756 (95 % interval 0.671 to 0.841)"),
        (Estimate(429.2, 414.9, 443.6), "429 (95 % interval 415 to 444)"),
        (Estimate(500.0, 500.0, 500.0), "500.0 (95 % interval 500.0 to 500.0)"),
        (Estimate(7.5, NAN, NAN), "7.500 (no interval)"),
    ],
)
def test_an_estimate_as_text(estimate, text):
    assert str(estimate) == f"{estimate}" == text
    value, interval = estimate.texts()
    assert text.startswith(value)
    assert interval in text
