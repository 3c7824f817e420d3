"""The runs of a sweep: one for each combination of values, by a name that says which."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from evorl.config import dump_yaml, parse_yaml
from evorl.errors import ConfigError

MOST = 1000  # runs
LONGEST = 100  # characters of a name


def read_grid(overrides: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Overrides with one value, and the values of those with several, by option.

    Values are separated by commas: `algorithm.lr=1e-3,1e-4`, `network.hidden=[64],[64, 64]`.
    """
    fixed, varied = [], {}
    for text in overrides:
        key, equals, given = text.partition("=")
        values = parse_yaml(f"[{given}]", f"override {text:.60}") if equals else []
        if len(values) < 2:
            fixed.append(text)
            continue
        if twice := [value for value in values if values.count(value) > 1]:
            raise ConfigError(f"override {text:.60}: {twice[0]} is given twice; remove one")
        if key in varied:
            raise ConfigError(f"override {text:.60}: {key} is given twice; remove one")
        varied[key] = values
    return fixed, varied


def make_grid(name: str, varied: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """The overrides of each combination, by the name of its run, which begins with `name`."""
    if (count := math.prod(map(len, varied.values()))) > MOST:
        raise ConfigError(f"{count:,} runs are too many, {MOST:,} at the most; give fewer values")
    words = {key: key.rpartition(".")[2] for key in varied}
    if len(set(words.values())) < len(words):
        words = {key: key for key in varied}
    combinations = [dict(zip(varied, values, strict=True)) for values in product(*varied.values())]
    names = [
        "-".join([name, *(_part(words[key], value) for key, value in one.items())])
        for one in combinations
    ]
    if len(set(names)) < count or max(map(len, names)) > LONGEST:
        names = [f"{name[: LONGEST - 10]}-{number}" for number in range(1, count + 1)]
    given = [[f"{key}={_flow(value)}" for key, value in one.items()] for one in combinations]
    return dict(zip(names, given, strict=True))


def _part(word: str, value: Any) -> str:
    """Such as lr_0.001, or seed7."""
    text = f"{word}{'' if word == 'seed' else '_'}{_flow(value)}"
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_")


def _flow(value: Any) -> str:
    return dump_yaml(value, flow=True)
