"""Values stay within their space, always move, and are drawn evenly in its scale."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from evorl.config import SpaceConfig, parse_config
from evorl.errors import ConfigError
from evorl.evolution.explore import Space

Draw = Callable[[st.SearchStrategy[Any]], Any]


def between(low: float, high: float) -> st.SearchStrategy[tuple[float, float]]:
    """Two bounds that are clearly apart."""
    pairs = st.tuples(st.floats(low, high), st.floats(low, high))
    ordered = pairs.map(lambda pair: (min(pair), max(pair)))
    return ordered.filter(lambda pair: pair[1] - pair[0] > max(1e-9, 1e-6 * pair[1]))


@st.composite
def spaces(draw: Draw, kinds: str = "linear log reverse_log integer power_of_two choice") -> Space:
    kind = draw(st.sampled_from(kinds.split()))
    if kind == "choice":
        whole = draw(st.booleans())
        items = st.integers(1, 10**6) if whole else st.floats(0, 100)
        values = tuple(sorted(draw(st.lists(items, min_size=1, max_size=6, unique=True))))
        return Space(kind, values[0], values[-1], values, whole)
    if kind == "integer":
        low = draw(st.integers(1, 10**6))
        return Space(kind, low, low + draw(st.integers(1, 10**12)), whole=True)
    if kind == "power_of_two":
        power = draw(st.integers(0, 15))
        return Space(kind, 2**power, 2 ** (power + draw(st.integers(1, 16 - power))), whole=True)
    ends = {"linear": (0, 100), "log": (1e-9, 100), "reverse_log": (0, 1 - 1e-6)}
    return Space(kind, *draw(between(*ends[kind])))


def values_in(space: Space) -> st.SearchStrategy[float]:
    if space.values:
        return st.sampled_from(space.values)
    if space.kind == "integer":
        return st.integers(int(space.low), int(space.high))
    if space.kind == "power_of_two":
        ends = int(math.log2(space.low)), int(math.log2(space.high))
        return st.integers(*ends).map(lambda power: 2**power)
    return st.floats(space.low, space.high)


INSIDE = spaces().flatmap(lambda space: st.tuples(st.just(space), values_in(space)))
ANYWHERE = st.floats(0, 1e9) | st.integers(0, 10**9) | st.sampled_from([0, 0.999, 1.0, 1])
GROW, SHRINK = st.floats(1.001, 100), st.floats(0.01, 0.999)
UNIT = st.floats(0, 1)
relaxed = settings(max_examples=150, deadline=None)


def allows(space: Space, value: float) -> bool:
    """Whether a value is one that the space has."""
    if space.values:
        return value in space.values
    if space.whole and space.from_unit(space.to_unit(value)) != value:
        return False
    return space.low <= value <= space.high


def assert_in_space(value: float, space: Space) -> None:
    assert allows(space, value)
    assert space.low <= value <= space.high
    assert type(value) is (int if space.whole else float)


@relaxed
@given(INSIDE, GROW, SHRINK)
def test_a_value_inside_moves_in_its_direction_unless_at_the_bound(
    inside: tuple[Space, float], grow: float, shrink: float
) -> None:
    space, value = inside
    more, less = space.perturb(value, grow), space.perturb(value, shrink)
    assert_in_space(more, space)
    assert_in_space(less, space)
    assert more > value or value == space.high == more
    assert less < value or value == space.low == less
    if space.whole:
        assert more - value >= 1 or value == space.high
        assert value - less >= 1 or value == space.low


@relaxed
@given(spaces(), ANYWHERE, GROW | SHRINK)
def test_a_value_outside_is_clipped(space: Space, value: float, factor: float) -> None:
    moved = space.perturb(value, factor)
    assert_in_space(moved, space)
    if value > space.high and factor > 1:
        assert moved == space.high
    if value < space.low and factor < 1:
        assert moved == space.low
    assert_in_space(space.from_unit(space.to_unit(value)), space)


@relaxed
@given(spaces(), UNIT, UNIT, ANYWHERE)
def test_units(space: Space, one: float, two: float, value: float) -> None:
    assert space.from_unit(0) == space.from_unit(-1) == space.low
    assert space.from_unit(1) == space.from_unit(2) == space.high
    assert space.to_unit(space.low) == 0
    assert space.to_unit(space.high) == (space.low != space.high)
    low, high = sorted((one, two))
    assert space.from_unit(low) <= space.from_unit(high)
    assert_in_space(space.from_unit(one), space)
    assert 0 <= space.to_unit(value) <= 1


@relaxed
@given(INSIDE)
def test_from_a_value_to_the_unit_and_back(inside: tuple[Space, float]) -> None:
    space, value = inside
    again = space.from_unit(space.to_unit(value))
    assert_in_space(again, space)
    if space.whole or space.values:
        assert again == value
    else:
        assert again == pytest.approx(value, rel=1e-9, abs=1e-9 * space.high)


@relaxed
@given(spaces("linear log reverse_log"), UNIT)
def test_from_the_unit_to_a_value_and_back(space: Space, unit: float) -> None:
    assert space.to_unit(space.from_unit(unit)) == pytest.approx(unit, abs=1e-6)


@relaxed
@given(spaces(), st.integers(0, 2**32))
def test_samples_are_in_the_space_and_repeatable(space: Space, seed: int) -> None:
    first, second = ([space.sample(r) for _ in range(20)] for r in _generators(seed, seed))
    assert first == second
    for value in first:
        assert_in_space(value, space)


def _generators(*seeds: int) -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in seeds]


@pytest.mark.parametrize(
    "space",
    [
        Space("linear", 0.0, 2.0),
        Space("log", 1e-4, 1e-2),
        Space("reverse_log", 0.9, 0.999),
        Space("reverse_log", 0.0, 0.5),
    ],
    ids=str,
)
def test_samples_are_even_in_their_own_scale(space: Space) -> None:
    (random,) = _generators(1)
    units = [space.to_unit(space.sample(random)) for _ in range(4000)]
    assert stats.kstest(units, "uniform").pvalue > 0.01


def test_the_scales_against_closed_forms() -> None:
    # Halfway on a log scale is the geometric mean, of values or of what is left to 1.
    assert Space("log", 1e-4, 1e-2).from_unit(0.5) == pytest.approx(1e-3)
    assert Space("reverse_log", 0.9, 0.999).from_unit(0.5) == pytest.approx(0.99)
    assert Space("linear", 1.0, 2.0).from_unit(0.5) == 1.5
    assert Space("power_of_two", 16, 256, whole=True).from_unit(0.5) == 64
    assert Space("integer", 1, 9, whole=True).from_unit(0.5) == 5
    choice = Space("choice", 1, 50, (1, 5, 50), whole=True)
    assert [choice.to_unit(value) for value in (1, 5, 50, 0, 20, 99)] == [0, 0.5, 1, 0, 0.5, 1]


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (Space("integer", 3, 9, whole=True), range(3, 10)),
        (Space("power_of_two", 4, 64, whole=True), [4, 8, 16, 32, 64]),
        (Space("choice", 0.1, 7.0, (0.1, 0.5, 7.0)), [0.1, 0.5, 7.0]),
    ],
    ids=str,
)
def test_samples_are_equally_often_each_value(space: Space, values: list[float]) -> None:
    (random,) = _generators(2)
    samples = [space.sample(random) for _ in range(400 * len(values))]
    counts = [samples.count(value) for value in values]
    assert sum(counts) == len(samples)
    assert stats.chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize(
    ("space", "value", "grown", "shrunk"),
    [
        (Space("linear", 0.0, 10.0), 4.0, 5.0, 3.2),
        (Space("linear", 0.0, 10.0), 0.0, 0.1, 0.0),  # a factor alone would never leave 0
        (Space("log", 1e-4, 1e-2), 1e-3, 1.25e-3, 8e-4),
        (Space("log", 1e-4, 1e-2), 0.05, 1e-2, 1e-2),
        (Space("log", 1e-4, 1e-2), 0, 1e-4, 1e-4),
        (Space("reverse_log", 0.95, 0.999), 0.99, 0.992, 0.9875),
        (Space("reverse_log", 0.95, 0.999), 1.0, 0.999, 0.999),
        (Space("integer", 1, 100, whole=True), 1, 2, 1),
        (Space("integer", 1, 100, whole=True), 40, 50, 32),
        (Space("integer", 1, 100, whole=True), 99, 100, 79),
        (Space("power_of_two", 16, 256, whole=True), 64, 128, 32),
        (Space("power_of_two", 16, 256, whole=True), 48, 64, 32),
        (Space("power_of_two", 16, 256, whole=True), 1000, 256, 256),
        (Space("power_of_two", 16, 256, whole=True), 0, 16, 16),
        (Space("choice", 1, 9, (1, 3, 9), whole=True), 3, 9, 1),
        (Space("choice", 1, 9, (1, 3, 9), whole=True), 4, 9, 3),
        (Space("choice", 1, 9, (1, 3, 9), whole=True), 50, 9, 9),
        (Space("choice", 3, 3, (3,), whole=True), 3, 3, 3),
    ],
    ids=str,
)
def test_known_moves(space: Space, value: float, grown: float, shrunk: float) -> None:
    moved = space.perturb(value, 1.25), space.perturb(value, 0.8)
    assert moved == pytest.approx((grown, shrunk))


def test_a_small_whole_number_is_not_stuck() -> None:
    # int(4 * 1.2) is 4: cut off instead of moved, a small number could never grow again.
    space = Space("integer", 1, 1000, whole=True)
    assert [space.perturb(value, 1.2) for value in range(1, 8)] == [2, 3, 4, 5, 6, 7, 8]
    assert [space.perturb(value, 0.8) for value in range(1, 8)] == [1, 1, 2, 3, 4, 5, 6]
    value: float = 1
    steps = 0
    while value < space.high:
        value, steps = space.perturb(value, 1.2), steps + 1
    while value > space.low:
        value, steps = space.perturb(value, 0.8), steps + 1
    assert steps < 100


def parsed(spaces: Any, *overrides: str) -> dict[str, SpaceConfig]:
    config = parse_config({"env": {"id": "X"}, "evolution": {"spaces": spaces}}, overrides)
    return {name: space for name, space in config.evolution.spaces if space}


def test_spaces_of_a_configuration() -> None:
    given = parsed(
        {
            "lr": {"kind": "log", "low": 1e-4, "high": 1},
            "gamma": {"kind": "reverse_log", "low": 0, "high": 0.9},
            "tau": {"kind": "choice", "values": [1, 0.5]},
            "max_grad_norm": {"kind": "choice", "values": [0, 10]},
            "epsilon_end": {"kind": "linear", "low": 0, "high": 1},
            "batch_size": {"kind": "power_of_two", "low": 1, "high": 8},
            "learn_step": {"kind": "integer", "low": 1, "high": 4},
            "epsilon_steps": {"kind": "choice", "values": [100, 10]},
        }
    )
    made = {name: Space.of(space) for name, space in given.items()}
    assert made == {
        "lr": Space("log", 1e-4, 1.0),
        "gamma": Space("reverse_log", 0.0, 0.9),
        "tau": Space("choice", 0.5, 1.0, (0.5, 1.0)),
        "max_grad_norm": Space("choice", 0.0, 10.0, (0.0, 10.0)),
        "epsilon_end": Space("linear", 0.0, 1.0),
        "batch_size": Space("power_of_two", 1, 8, whole=True),
        "learn_step": Space("integer", 1, 4, whole=True),
        "epsilon_steps": Space("choice", 10, 100, (10, 100), whole=True),
    }
    (random,) = _generators(3)
    whole = {"batch_size", "learn_step", "epsilon_steps"}
    for name, space in made.items():
        assert type(space.sample(random)) is (int if name in whole else float)


@relaxed
@given(spaces())
def test_any_space_survives_its_configuration(space: Space) -> None:
    if space.values:
        config = SpaceConfig(kind="choice", values=list(space.values))
    else:
        config = SpaceConfig(kind=space.kind, low=space.low, high=space.high)  # type: ignore[arg-type]
    again = Space.of(SpaceConfig.model_validate(config.model_dump()))
    assert (again.kind, again.low, again.high) == (space.kind, space.low, space.high)
    assert again.values == space.values


# Spaces, and what their error says after evolution.spaces.
BROKEN = [
    ({"lrr": {"kind": "log", "low": 0.1, "high": 1}}, "lrr: unknown key; did you mean lr?"),
    ({"lr": 0.1}, "lr: expected a mapping, got 0.1"),
    ({"lr": {"low": 0.1, "high": 1}}, "lr.kind: required, but not given: Scale of the values; "
     "reverse_log is a log scale of 1 - value, for gamma"),
    ({"lr": {"kind": "log", "lo": 0.1}}, "lr.lo: unknown key; did you mean low?"),
    # kinds
    ({"lr": {"kind": "integer", "low": 0.1, "high": 1}}, "lr.kind: must be one of linear, log, "
     "reverse_log, choice, got the string 'integer'; did you mean linear?"),
    ({"batch_size": {"kind": "log", "low": 1, "high": 8}}, "batch_size.kind: must be one of "
     "integer, power_of_two, choice, got the string 'log'"),
    ({"epsilon_end": {"kind": "log", "low": 0, "high": 1}}, "epsilon_end.low: must be greater than "
     "0 on a log scale, got 0.0"),
    ({"lr": {"kind": "lgo", "low": 0.1, "high": 1}}, "lr.kind: must be one of linear, log, "
     "reverse_log, choice, got the string 'lgo'; did you mean log?"),
    # bounds
    ({"lr": {"kind": "log", "high": 1}}, "lr.low: must be given for kind log, got nothing"),
    ({"lr": {"kind": "log", "low": 1e-4}}, "lr.high: must be given for kind log, got nothing"),
    ({"lr": {"kind": "log", "low": 0.1, "high": 0.1}}, "lr.high: must be greater than low = 0.1, "
     "got 0.1"),
    ({"lr": {"kind": "linear", "low": 1, "high": 0.1}}, "lr.high: must be greater than low = 1.0, "
     "got 0.1"),
    ({"lr": {"kind": "log", "low": 0, "high": 0.1}}, "lr.low: must be greater than 0, got 0"),
    ({"lr": {"kind": "log", "low": ".1", "high": 1}}, "lr.low: expected a number, got the string "
     "'.1'"),
    ({"lr": {"kind": "log", "low": 0.1, "high": math.inf}}, "lr.high: must be a finite number, "
     "got inf"),
    ({"gamma": {"kind": "reverse_log", "low": 0.9, "high": 1}}, "gamma.high: must be at least 0 "
     "and less than 1 on a reverse_log scale, got 1.0"),
    ({"gamma": {"kind": "reverse_log", "low": -0.5, "high": 0.9}}, "gamma.low: must be at least "
     "0, got -0.5"),
    ({"batch_size": {"kind": "power_of_two", "low": 48, "high": 64}}, "batch_size.low: must be a "
     "power of two, got 48"),
    ({"batch_size": {"kind": "power_of_two", "low": 0, "high": 64}}, "batch_size.low: must be at "
     "least 1, got 0"),
    ({"batch_size": {"kind": "power_of_two", "low": 2, "high": 65}}, "batch_size.high: must be a "
     "power of two, got 65"),
    ({"learn_step": {"kind": "integer", "low": 1, "high": 2.5}}, "learn_step.high: expected a "
     "whole number, got 2.5"),
    # the range of the hyperparameter
    ({"lr": {"kind": "linear", "low": 0, "high": 1}}, "lr.low: must be greater than 0, got 0"),
    ({"lr": {"kind": "log", "low": 0.1, "high": 2}}, "lr.high: must be at most 1, got 2"),
    ({"lr": {"kind": "log", "low": 0.1, "high": 1.5}}, "lr.high: must be at most 1, got 1.5"),
    ({"max_grad_norm": {"kind": "linear", "low": -1, "high": 1}}, "max_grad_norm.low: must be "
     "at least 0, got -1"),
    ({"batch_size": {"kind": "power_of_two", "low": 1, "high": 131072}}, "batch_size.high: must be "
     "at most 65536, got 131072"),
    ({"learn_step": {"kind": "integer", "low": 0, "high": 3}}, "learn_step.low: must be at least "
     "1, got 0"),
    ({"gamma": {"kind": "choice", "values": [0.9, 1.1]}}, "gamma.values.1: must be at most 1, "
     "got 1.1"),
    # choices
    ({"lr": {"kind": "choice", "values": [0.1], "low": 0.1}}, "lr.low: must be left out for kind "
     "choice, got 0.1"),
    ({"lr": {"kind": "log", "low": 0.1, "high": 1, "values": [0.1]}}, "lr.values: must be left out "
     "for kind log, got a list"),
    ({"lr": {"kind": "choice"}}, "lr.values: must be given for kind choice, got nothing"),
    ({"lr": {"kind": "choice", "values": []}}, "lr.values: must have at least 1 item, got a list"),
    ({"lr": {"kind": "choice", "values": [0.1, 1, 0.1]}}, "lr.values: must differ from each other"),
    ({"batch_size": {"kind": "choice", "values": [1, 2.5]}}, "batch_size.values.1: expected a "
     "whole number, got 2.5"),
]  # fmt: skip


@pytest.mark.parametrize(("spaces", "message"), BROKEN)
def test_broken_space(spaces: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(spaces)
    assert str(caught.value) == f"config: evolution.spaces.{message}"


def test_a_space_by_itself_is_checked_too() -> None:
    for kind, low, high in (("power_of_two", 3, 4), ("log", 0, 1)):
        with pytest.raises(ValueError, match="must be"):
            SpaceConfig(kind=kind, low=low, high=high)  # type: ignore[arg-type]
