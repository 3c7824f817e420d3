"""Configurations that stand for more than they show: refused within a second, in one line."""

import random
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from evorl.config import dump_config, importing, load_config, resolve
from evorl.config.yaml_text import MOST_BYTES, MOST_VALUES, SCHEDULE, parse_yaml
from evorl.errors import ConfigError

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from poisons import fuzzed

ROOT = Path(__file__).parents[2]
NINE = [chr(ord("a") + i) for i in range(10)]
BOMBS = {
    "anchors": "a: &a [x, x]\n"
    + "".join(f"{y}: &{y} [{', '.join([f'*{x}'] * 9)}]\n" for x, y in pairwise(NINE)),
    "merged": "a: &a {x: 1}\n"
    + "".join(f"{y}: &{y} {{<<: [{', '.join([f'*{x}'] * 9)}]}}\n" for x, y in pairwise(NINE)),
    "itself": "env: &a {id: X, kwargs: *a}",
    "wrappers": "env: {id: CartPole-v1, wrappers: [" + "{name: TimeLimit}, " * 2000 + "]}",
    "list": "env: {id: X, kwargs: {a: [" + "1," * 5 * 10**6 + "]}}",
    "values": "env: {id: X, kwargs: {a: [" + "1," * MOST_VALUES + "]}}",
    "text": "env: {id: " + "x" * MOST_BYTES + "}",
    "id": "env: {id: " + "x" * 10**5 + "}",
    "deep": "[" * 10**5,
    "deeper": "{a: " * 10**4,
    "digits": f"env: {{id: X}}\nseed: {'9' * 10**5}",
    "name": "env: {id: X}\nalgorithm: {name: " + "x" * 10**5 + "}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_refused_within_a_second(tmp_path, name):
    path = tmp_path / "config.yaml"
    path.write_text(BOMBS[name])
    begin = time.process_time()
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert time.process_time() - begin < 1
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_is_nearly_a_configuration_is_read_or_refused(tmp_path):
    """A few of those of benchmarks/attacks.py."""
    given = [path.read_text() for path in sorted((ROOT / "configs").glob("*/*.yaml"))]
    path = tmp_path / "config.yaml"
    for seed in range(40):
        path.write_bytes(fuzzed(random.Random(seed), given))
        try:
            config = load_config(path)
        except ConfigError as error:
            assert "\n" not in str(error)  # noqa: PT017 (it need not be raised)
        else:
            path.write_text(dump_config(config))
            assert load_config(path) == config


def test_anchors_that_do_not_multiply_are_read():
    assert parse_yaml("a: &a [1, 2]\nb: *a\nc: {<<: &c {d: *a}}\n", "here") == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"d": [1, 2]},
    }


def test_a_schedule_may_be_longer():
    text = "schedule:\n" + "".join(f"- {{step: {i}, lr: 0.1}}\n" for i in range(2000))
    with pytest.raises(ConfigError):
        parse_yaml(text, "config")
    assert len(parse_yaml(text, "schedule", SCHEDULE)["schedule"]) == 2000


@pytest.fixture
def modules(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_module_that_loops_is_named(modules, monkeypatch):
    monkeypatch.setattr(importing, "LIMIT", 0.2)
    (modules / "looping_part.py").write_text("while True:\n    pass\n")
    with pytest.raises(
        ConfigError, match=r"'looping_part' .* not done after 0\.2 seconds of computing .*line"
    ):
        resolve("fitness", "looping_part:a")


def test_a_module_that_prints_does_not_speak_for_us(modules, capsys):
    (modules / "printing_part.py").write_text("print('hello')\ndef best(returns): pass\n")
    assert resolve("fitness", "printing_part:best") is sys.modules["printing_part"].best
    assert capsys.readouterr() == ("", "hello\n")
