"""The section `tracking`: off by default, and refused where it cannot be."""

import pytest

from evorl.config import dump_config, parse_config, unused_options
from evorl.config.yaml_text import parse_yaml
from evorl.errors import ConfigError


def tracking(*overrides):
    return parse_config({"env": {"id": "CartPole-v1"}}, overrides).tracking


@pytest.mark.parametrize("text", ["off", "'off'"])
def test_off_is_a_word(text):
    assert tracking(f"tracking.wandb={text}").wandb == "off"
    data = parse_yaml(f"env: {{id: CartPole-v1}}\ntracking: {{wandb: {text}}}", "file")
    assert parse_config(data).tracking.wandb == "off"


def test_nothing_is_on_by_default():
    assert tracking().wandb == "off"
    assert not tracking().tensorboard


def test_written_and_read_back():
    config = parse_config({"env": {"id": "CartPole-v1"}})
    assert parse_config(parse_yaml(dump_config(config), "file")) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tracking.wandb=on", "must be one of off, offline, online, got the string 'on'"),
        ("tracking.wandb=onlin", "did you mean online?"),
        ("tracking.wandb=0", "must be one of off, offline, online, got 0"),
        ("tracking.project=''", "must have at least 1 character"),
        ("tracking.tensorboard=offline", "expected true or false"),
        ("tracking.timeout=0", "must be greater than 0"),
        ("tracking.wand=off", "did you mean wandb?"),
    ],
)
def test_mistakes_are_told_in_a_line(override, message):
    with pytest.raises(ConfigError, match="tracking") as error:
        tracking(override)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_options_without_effect_are_named():
    config = parse_config({"env": {"id": "CartPole-v1"}}, ["tracking.project=mine"])
    message = "tracking.project=mine has no effect with tracking.wandb: off"
    assert unused_options(config, False) == [message]
