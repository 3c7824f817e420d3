"""Configurations that load, and the one line that every broken one gets."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError

from evorl.algorithms.dqn import DQN
from evorl.config import (
    RunConfig,
    WrapperConfig,
    dump_config,
    load_config,
    make_json_schema,
    parse_config,
    unused_options,
)
from evorl.config.yaml_text import dump_yaml, parse_yaml
from evorl.errors import ConfigError

ROOT = Path(__file__).parent.parent.parent
SHIPPED = [
    p for p in ROOT.glob("configs/*/*.yaml") if p.parent.name not in ("accelerate", "clusters")
]
ENV = "env: {id: X}\n"
TOP = (
    "name, seed, compile, env, algorithm, network, replay, population, evaluation, evolution, "
    "budget, mesh, actors, checkpoint, tracking, run"
)
INDEX = "give an index, or all of it"
HOW = "expected section.key=value, such as algorithm.lr=1e-4"
LARGEST = "must be at least the largest batch size of an agent or a space"
NO_NAME = "must match pattern '^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$', got the string"
NO_ENV = "env: required, but not given: The environment, such as {id: CartPole-v1}"

# Text of a file, and what its error says after the file's name.
BROKEN_FILES = [
    # what is there
    ("", NO_ENV),
    ("# all\n", NO_ENV),
    ("env:\n", "env: expected a mapping, got nothing"),
    ("env: {}\n", "env.id: required, but not given: Gymnasium environment id, such as CartPole-v1"),
    ("- a\n", "expected a mapping of sections at the top, got a list"),
    ("CartPole-v1\n", "expected a mapping of sections at the top, got the string 'CartPole-v1'"),
    (ENV + "network:\n", "network: expected a mapping, got nothing"),
    (ENV + "network: []\n", "network: expected a mapping, got a list"),
    ("env: X\n", "env: expected a mapping, got the string 'X'"),
    # keys
    (ENV + "algorithm: {batch_sise: 3}\n", "algorithm.batch_sise: unknown key; "
     "did you mean batch_size?"),
    (ENV + "run: {zzz: 3}\n", "run.zzz: unknown key; known keys: folder, if_exists"),
    (ENV + "lr: 3\n", f"lr: unknown key; known keys: {TOP}"),
    (ENV + '"a\\nb": 3\n', f"a\\nb: unknown key; known keys: {TOP}"),
    ("env: {idd: X}\n", "env.idd: unknown key; did you mean id? (and 1 more)"),
    (ENV + "population: {agents: [{}, {lrr: 1}]}\n", "population.agents.1.lrr: unknown key; "
     "did you mean lr?"),
    (ENV + "1: 2\n", "1: Keys should be strings, got 1"),
    ("env: {id: X, kwargs: {1: 2}}\n", "env.kwargs.1.[key]: expected a string, got 1"),
    (ENV + "algorithm:\n  lr: 1e-3\n  tau: 1\n  lr: 1\n", "line 5: invalid YAML: the key lr is "
     "given twice; remove one"),
    # numbers
    (ENV + "algorithm: {lr: -1}\n", "algorithm.lr: must be greater than 0, got -1"),
    (ENV + "algorithm: {lr: 1.5}\n", "algorithm.lr: must be at most 1, got 1.5"),
    (ENV + "algorithm: {lr: fast}\n", "algorithm.lr: expected a number, got the string 'fast'"),
    (ENV + "algorithm: {lr: '1e-4'}\n", "algorithm.lr: expected a number, got the string '1e-4'"),
    (ENV + "algorithm: {lr: .nan}\n", "algorithm.lr: must be a finite number, got nan"),
    (ENV + "algorithm: {max_grad_norm: .inf}\n", "algorithm.max_grad_norm: must be a finite "
     "number, got inf"),
    (ENV + f"algorithm: {{lr: 1{'0' * 400}}}\n", "algorithm.lr: expected a number, "
     f"got 1{'0' * 59}"),
    (ENV + f"seed: 1{'0' * 5000}\n", "invalid YAML: Exceeds the limit (4300 digits) for "
     "integer string conversion: value has 5001 digits; use sys.set_int_max_str_digits() to "
     "increase the limit"),
    (ENV + "algorithm: {lr: true}\n", "algorithm.lr: expected a number, got true"),
    (ENV + "network: {dueling: yes}\n", "network.dueling: expected true or false, got the string "
     "'yes'"),
    (ENV + "algorithm: {lr: }\n", "algorithm.lr: expected a number, got nothing"),
    (ENV + "algorithm: {batch_size: 64.0}\n", "algorithm.batch_size: expected a whole number, "
     "got 64.0"),
    (ENV + "algorithm: {batch_size: 1e2}\n", "algorithm.batch_size: expected a whole number, "
     "got 100.0"),
    (ENV + "algorithm: {batch_size: 064}\n", "algorithm.batch_size: expected a whole number, "
     "got the string '064'"),
    (ENV + "algorithm: {n_step: 1:30}\n", "algorithm.n_step: expected a whole number, "
     "got the string '1:30'"),
    (ENV + "algorithm: {n_step: true}\n", "algorithm.n_step: expected a whole number, got true"),
    (ENV + "seed: -1\n", "seed: must be at least 0, got -1"),
    (ENV + "seed: 4294967296\n", "seed: must be at most 4294967295, got 4294967296"),
    (ENV + "evaluation: {final_episodes: 1}\n", "evaluation.final_episodes: must be at least 2, "
     "got 1"),
    (ENV + "algorithm: {lr: , gamma: 3, tau: x}\n", "algorithm.lr: expected a number, "
     "got nothing (and 2 more)"),
    # words
    (ENV + "network: {activation: rleu}\n", "network.activation: must be one of relu, elu, gelu, "
     "tanh, silu, got the string 'rleu'; did you mean relu?"),
    (ENV + "algorithm: {name: rainbow}\n", "algorithm.name: must be one of dqn, ddpg, td3, sac, "
     "a2c, a3c, ppo, impala, or your own as "
     "module:Name, got 'rainbow'"),
    (ENV + "compile: 2\n", "compile: must be one of auto, true, false, got 2"),
    (ENV + "compile: 'true'\n", "compile: must be one of auto, true, false, got the string 'true'; "
     "did you mean true?"),
    (ENV + "network: {dueling: 1}\n", "network.dueling: expected true or false, got 1"),
    (ENV + "name: 3\n", "name: expected a string, got 3"),
    (ENV + "name: ''\n", f"name: {NO_NAME} ''"),
    (ENV + "name: ..\n", f"name: {NO_NAME} '..'"),
    (ENV + "name: a/b\n", f"name: {NO_NAME} 'a/b'"),
    (ENV + f"name: {'a' * 101}\n", f"name: {NO_NAME} '{'a' * 59}"),
    ("env: {id: ''}\n", "env.id: must have at least 1 character, got the string ''"),
    ('env: {id: "\\ud800"}\n', "env.id: expected a string, unable to parse raw data as a "
     "unicode string, got the string '\\ud800'"),
    # lists
    (ENV + "network: {hidden: 64}\n", "network.hidden: expected a list, got 64"),
    (ENV + "network: {hidden: []}\n", "network.hidden: must have at least 1 item, got a list"),
    (ENV + "network: {hidden: [1, 1, 1, 1, 1, 1, 1, 1, 1]}\n", "network.hidden: must have at most "
     "8 items, got a list"),
    (ENV + "network: {hidden: [64, 0]}\n", "network.hidden.1: must be at least 1, got 0"),
    ("env: {id: X, kwargs: 3}\n", "env.kwargs: expected a mapping, got 3"),
    ("env: {id: X, wrappers: [{}]}\n", "env.wrappers.0.name: required, but not given: "
     "Name of a class in "
     "gymnasium.wrappers, or your own as module:Class"),
    ("env: {id: X, wrappers: [3]}\n", "env.wrappers.0: expected a mapping, "
     "got 3"),
    # what fits together
    (ENV + "network: {kernels: [3]}\n", "network.kernels: must have as many entries as channels, "
     "2, got 1"),
    (ENV + "network: {strides: [1, 1, 1]}\n", "network.strides: must have as many entries as "
     "channels, 2, got 3"),
    (ENV + "population: {agents: [{channels: [3]}]}\n", "population.agents.0.channels: must have "
     "as many entries as network.channels, 2, got 1"),
    (ENV + "population: {size: 1, agents: [{}, {}]}\n", "population.agents: must have at most "
     "population.size = 1 elements, got 2"),
    (ENV + "replay: {capacity: 10}\n", f"replay.capacity: {LARGEST}, 64, got 10"),
    (ENV + "replay: {capacity: 99}\npopulation: {agents: [{batch_size: 100}]}\n",
     f"replay.capacity: {LARGEST}, 100, got 99"),
    (ENV + "replay: {capacity: 100}\nevolution: {spaces: {batch_size: {low: 16, high: 128, kind: "
     "power_of_two}}}\n", f"replay.capacity: {LARGEST}, 128, got 100"),
    (ENV + "replay: {capacity: 100}\nevolution: {spaces: {batch_size: {kind: choice, values: [101, "
     "8]}}}\n", f"replay.capacity: {LARGEST}, 101, got 100"),
    (ENV + "replay: {capacity: 100}\npopulation: {size: 1, init: sample}\nevolution: {method: "
     "none, spaces: {batch_size: {kind: choice, values: [128, 8]}}}\n",
     f"replay.capacity: {LARGEST}, 128, got 100"),
    (ENV + "evaluation: {episodes: 2}\nmesh: {data: 3}\n", "mesh.data: must be at most "
     "evaluation.episodes, which its ranks share, 2, got 3"),
    ("env: {id: X, num_envs: 128}\nreplay: {capacity: 511}\n", "replay.capacity: must hold one "
     "step of every environment, 512 transitions, got 511"),
    (ENV + "population: {init: sample, agents: [{dueling: true}, {lr: 0.1}]}\n",
     "population.agents.1.lr: must be left out, as agents draw it from evolution.spaces.lr, "
     "got 0.1"),
    (ENV + "population: {agents: [{tau: 0.1}]}\nevolution: {method: random_search}\n",
     "population.agents.0.tau: must be left out, as agents draw it from "
     "evolution.spaces.tau, got 0.1"),
    # evolution; its spaces are in evolution/test_spaces.py
    (ENV + "evolution: {metod: none}\n", "evolution.metod: unknown key; did you mean method?"),
    (ENV + "evolution: {method: randomsearch}\n", "evolution.method: must be one of none, "
     "random_search, evolution, got the string 'randomsearch'; did you mean random_search?"),
    (ENV + "evolution: {selection: {fraction: 0.6}}\n", "evolution.selection.fraction: must be at "
     "most 0.5, got 0.6"),
    (ENV + "evolution: {explore: {grow: 1}}\n", "evolution.explore.grow: must be greater than 1, "
     "got 1"),
    (ENV + "evolution: {explore: {shrink: 1}}\n", "evolution.explore.shrink: must be less than 1, "
     "got 1"),
    (ENV + "evolution: {mutation: {min_units: 300}}\n", "evolution.mutation.max_units: must be at "
     "least min_units = 300, got 256"),
    (ENV + "evolution: {mutation: {max_channels: 3}}\n", "evolution.mutation.max_channels: must be "
     "at least min_channels = 4, got 3"),
    (ENV + "evolution: {mutation: {architecture: 0, parameters: 0, hyperparameters: 0}}\n",
     "evolution.mutation.none: must be greater than 0 when all kinds of mutation are 0, got 0.0"),
    (ENV + "evolution: {mutation: {activations: [rleu]}}\n", "evolution.mutation.activations.0: "
     "must be one of relu, elu, gelu, tanh, silu, got the string 'rleu'; did you mean relu?"),
    (ENV + "evolution: {mutation: {units: []}}\n", "evolution.mutation.units: must have at least 1 "
     "item, got a list"),
    # YAML
    ("env:\n\tid: X\n", "line 2: invalid YAML: while scanning for the next token, found "
     "character '\\t' that cannot start any token"),
    ("env: [}\n", "line 1: invalid YAML: while parsing a flow node, expected the node content, "
     "but found '}'"),
    ("a: b: c\n", "line 1: invalid YAML: mapping values are not allowed here"),
    ("--- 1\n--- 2\n", "line 2: invalid YAML: expected a single document in the stream, "
     "but found another document"),
    ("? [a, b]\n: c\n", "line 1: invalid YAML: while constructing a mapping, found unhashable key"),
    ("a: 1\nb: \x00\n", "invalid YAML: unacceptable character #x0000: special characters are not "
     "allowed\\n  in \"<unicode string>\", position 8"),
    ("a: !!int many\n", "invalid YAML: invalid literal for int() with base 10: 'many'"),
    ("a: !go b\n", "line 1: invalid YAML: could not determine a constructor for the tag '!go'"),
    ("env: &a {id: X, kwargs: *a}\n", "line 1: invalid YAML: the anchor a holds itself"),
    ("[" * 3000, "line 1: invalid YAML: more than 50 levels of lists and mappings"),
]  # fmt: skip

# An override of a valid file, and its whole error.
BROKEN_OVERRIDES = [
    ("seed", f"override seed: {HOW}"),
    ("", f"override : {HOW}"),
    ("=3", f"override =3: {HOW}"),
    ("a..b=1", f"override a..b=1: {HOW}"),
    ("nam=3", "override nam=3: nam: unknown key; did you mean name?"),
    ("algorithm.lrr=1", "override algorithm.lrr=1: algorithm.lrr: unknown key; did you mean lr?"),
    ("algorithm.lr=-1", "override algorithm.lr=-1: algorithm.lr: must be greater than 0, got -1"),
    ("algorithm.lr=", "override algorithm.lr=: algorithm.lr: expected a number, got nothing"),
    ("algorithm.lr='1'", "override algorithm.lr='1': algorithm.lr: expected a number, "
     "got the string '1'"),
    ("name=a\nb: c", "override name=a\\nb: c: line 2: invalid YAML: mapping values are not "
     "allowed here"),
    ("seed.x=1", "override seed.x=1: seed: expected a whole number, got a mapping"),
    ("replay.kind.x=1", "override replay.kind.x=1: replay.kind: must be one of uniform, "
     "prioritized, got a mapping"),
    ("env.id.x=3", "override env.id.x=3: the string 'X' has no x; give all of it"),
    ("network=3", "override network=3: network: expected a mapping, "
     "got 3"),
    ("network.hidden=[64", "override network.hidden=[64: line 1: invalid YAML: while parsing "
     "a flow sequence, expected ',' or ']', but got '<stream end>'"),
    ("network.hidden=[64, 0]", "override network.hidden=[64, 0]: network.hidden.1: must be at "
     "least 1, got 0"),
    ("network.hidden.3=3", f"override network.hidden.3=3: a list of 2 has no 3; {INDEX}"),
    ("network.hidden.x=3", f"override network.hidden.x=3: a list of 2 has no x; {INDEX}"),
    ("population.agents.1.lr=1", "override population.agents.1.lr=1: a list of 0 has no 1; "
     f"{INDEX}"),
    ("population.agents.0.lr=2", "override population.agents.0.lr=2: population.agents.0.lr: "
     "must be at most 1, got 2"),
    ("env.kwargs={a: 1, a: 2}", "override env.kwargs={a: 1, a: 2}: line 1: invalid YAML: the key "
     "a is given twice; remove one"),
    ("replay.capacity=3", f"override replay.capacity=3: replay.capacity: {LARGEST}, "
     "64, got 3"),
    ("replay.capacity=63", f"override replay.capacity=63: replay.capacity: {LARGEST}, "
     "64, got 63"),
    ("evolution.spaces.lrr.low=1", "override evolution.spaces.lrr.low=1: evolution.spaces.lrr: "
     "unknown key; did you mean lr?"),
    ("evolution.spaces.lr.low=1", "x.yaml with override evolution.spaces.lr.low=1: "
     "evolution.spaces.lr.high: must be greater than low = 1.0, got 0.01"),
    ("evolution.spaces.learn_step.low=1", "x.yaml with override evolution.spaces.learn_step.low=1: "
     "evolution.spaces.learn_step.kind: required, but not given: Scale of the values; "
     "reverse_log is a log scale of 1 - value, for gamma"),
    ("mesh.population=0", "override mesh.population=0: mesh.population: must be at least 1, got 0"),
    ("network.channels=[1]", "x.yaml with override network.channels=[1]: network.kernels: must "
     "have as many entries as channels, 1, got 2"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load_text(text: str, *overrides: str) -> RunConfig:
    Path("x.yaml").write_text(text, encoding="utf-8")
    return load_config("x.yaml", overrides)


def error_of(call: Any, *args: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*args)
    message = str(caught.value)
    assert message.isprintable()  # so it is one line, too
    return message


@pytest.mark.parametrize(("text", "message"), BROKEN_FILES)
def test_broken_file(folder: Path, text: str, message: str) -> None:
    assert error_of(load_text, text) == f"x.yaml: {message}"


@pytest.mark.parametrize(("override", "message"), BROKEN_OVERRIDES)
def test_broken_override(folder: Path, override: str, message: str) -> None:
    assert error_of(load_text, ENV, override) == message


def test_an_error_of_the_file_does_not_blame_an_override(folder: Path) -> None:
    message = error_of(load_text, ENV + "name: a/b\n", "seed=3")
    assert message.startswith("x.yaml: name: must match")
    message = error_of(load_text, ENV + "algorithm: {lr: -1}\n", "algorithm.tau=0.5")
    assert message.startswith("x.yaml: algorithm.lr: must be greater than 0")
    assert error_of(load_text, "seed: 3\n", "name=a") == f"x.yaml with override name=a: {NO_ENV}"


def test_files_that_cannot_be_read(folder: Path) -> None:
    (folder / "latin.yaml").write_bytes(b"name: caf\xe9")
    assert error_of(load_config, "no.yaml") == "no.yaml: cannot be read: no such file or directory"
    assert error_of(load_config, ".") == ".: cannot be read: is a directory"
    assert error_of(load_config, "latin.yaml").startswith(
        "latin.yaml: cannot be read: 'utf-8' codec can't decode byte 0xe9"
    )
    assert error_of(load_config, "a\0b").startswith("a\\x00b: cannot be read")


def test_defaults_and_byte_order_mark(folder: Path) -> None:
    config = load_text("\ufeff" + ENV)
    assert config == RunConfig.model_validate({"env": {"id": "X"}})
    assert (config.seed, config.algorithm.lr, config.network.hidden) == (1, 1e-3, [64, 64])
    with pytest.raises(ValidationError):
        config.seed = 2


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("1.0e-1", 0.1), ("1E-3", 1e-3), ("+.5", 0.5), ("1", 1.0), ("0.000_1", 1e-4)],
)
def test_numbers_as_in_yaml_1_2(folder: Path, text: str, value: float) -> None:
    for config in (
        load_text(f"{ENV}algorithm: {{lr: {text}}}\n"),
        load_text(ENV, f"algorithm.lr={text}"),
    ):
        assert config.algorithm.lr == value
        assert isinstance(config.algorithm.lr, float)


def test_yaml_types_outside_the_schema(folder: Path) -> None:
    config = load_text(
        "env: {id: X, kwargs: {p: &p {a: 1, b: 2}, q: {<<: *p, b: 3}, day: 2024-01-01,"
        " big: 1e3, n: 100_000, inf: .inf, flag: off}}\n"
    )
    assert config.env.kwargs == {
        "p": {"a": 1, "b": 2},
        "q": {"a": 1, "b": 3},
        "day": "2024-01-01",
        "big": 1000.0,
        "n": 100_000,
        "inf": float("inf"),
        "flag": "off",
    }


def test_overrides(folder: Path) -> None:
    config = load_text(
        ENV + "seed: 3\npopulation: {agents: [{tau: 0.5}]}\n",
        "seed=7",
        "env.kwargs.gravity=-5",
        "network.hidden.1=32",
        "network.activation = tanh",
        "population.agents.0.lr=1e-3",
        "population.agents.1.hidden=[8]",
        "env.wrappers=[{name: FlattenObservation}]",
        "env.kwargs.deep.er=1",
        "env.wrappers.1={name: ClipReward, kwargs: {max_reward: 1}}",
        "algorithm.lr=1",
        "algorithm.lr=0.5",
    )
    assert config.seed == 7
    assert config.env.kwargs == {"gravity": -5, "deep": {"er": 1}}
    assert config.network.hidden == [64, 32]
    assert config.network.activation == "tanh"
    assert config.population.model_dump() == {
        "size": 4,
        "init": "config",
        "agents": [{"tau": 0.5, "lr": 1e-3}, {"hidden": [8]}],
    }
    assert config.env.wrappers == [
        WrapperConfig(name="FlattenObservation"),
        WrapperConfig(name="ClipReward", kwargs={"max_reward": 1}),
    ]
    assert config.algorithm.lr == 0.5
    assert load_text(ENV).network.hidden == [64, 64]  # the default was copied, not changed


def test_overrides_of_spaces_start_from_the_default_ones(folder: Path) -> None:
    default = load_text(ENV).evolution.spaces.model_dump()
    assert list(default) == ["lr", "gamma", "tau"]
    for text in (ENV, ENV + "evolution: {method: random_search}\n"):
        spaces = load_text(
            text,
            "evolution.spaces.lr.low=1e-5",
            "evolution.spaces.tau=",
            "evolution.spaces.learn_step={kind: integer, low: 1, high: 8}",
        ).evolution.spaces.model_dump()
        assert spaces == {
            "lr": {"kind": "log", "low": 1e-5, "high": 1e-2},
            "gamma": default["gamma"],
            "learn_step": {"kind": "integer", "low": 1, "high": 8},
        }
    assert load_text(ENV).evolution.spaces.model_dump() == default  # copied, not changed
    given = ENV + "evolution: {spaces: {gamma: {kind: linear, low: 0.9, high: 0.99}}}\n"
    assert load_text(given, "evolution.spaces.gamma.low=0.8").evolution.spaces.model_dump() == {
        "gamma": {"kind": "linear", "low": 0.8, "high": 0.99}
    }
    assert load_text(ENV + "evolution: {spaces: {}}\n").evolution.spaces.model_dump() == {}


def test_agents_have_their_own_values() -> None:
    agents: list[dict[str, Any]] = [
        {"lr": 0.5, "batch_size": 8},
        {"hidden": [8, 9], "dueling": True},
    ]
    config = parse_config(
        {
            "env": {"id": "X"},
            "algorithm": {"lr": 0.1, "gamma": 0.9},
            "network": {"activation": "elu"},
            "population": {"size": 3, "agents": agents},
        }
    )
    common = DQN(lr=0.1, gamma=0.9).hyperparameters
    assert config.agent_hyperparameters(0) == common | {"lr": 0.5, "batch_size": 8}
    assert config.agent_hyperparameters(1) == common
    assert config.agent_hyperparameters(2) == common
    assert list(config.agent_hyperparameters(0)) == list(common) == [
        "lr", "gamma", "tau", "batch_size", "learn_step", "max_grad_norm", "target_period",
        "epsilon_start", "epsilon_end", "epsilon_steps",
    ]  # fmt: skip
    assert config.agent_network(0) == config.network == config.agent_network(2)
    assert config.agent_network(1).model_dump() == config.network.model_dump() | agents[1]


def test_a_batch_size_that_no_agent_has_does_not_count() -> None:
    agents = [{"batch_size": 8}]
    parse_config(
        {"env": {"id": "X"}, "replay": {"capacity": 8}, "population": {"size": 1, "agents": agents}}
    )


@pytest.mark.parametrize(
    "evolution",
    [
        {"method": "none"},
        {"mutation": {"hyperparameters": 0}},
        {"spaces": {"batch_size": {"kind": "integer", "low": 1, "high": 64}}},
        {"spaces": {}},
    ],
    ids=str,
)
def test_a_batch_size_that_evolution_cannot_choose_does_not_count(evolution: Any) -> None:
    parse_config({"env": {"id": "X"}, "replay": {"capacity": 64}, "evolution": evolution})


def test_a_batch_size_that_agents_draw_instead_does_not_count() -> None:
    parse_config(
        {
            "env": {"id": "X"},
            "algorithm": {"batch_size": 1024},
            "replay": {"capacity": 256},
            "population": {"init": "sample"},
            "evolution": {"spaces": {"batch_size": {"kind": "choice", "values": [8, 256]}}},
        }
    )


def test_parse_config_takes_plain_python_and_keeps_it() -> None:
    data = {"env": {"id": "X", "kwargs": {"size": (1, 2)}}, "network": {"hidden": (8, 8)}}
    config = parse_config(data, ["env.kwargs.a=1"])
    assert config.env.kwargs == {"size": [1, 2], "a": 1}
    assert data["env"] == {"id": "X", "kwargs": {"size": (1, 2)}}
    assert error_of(parse_config, {"env": {"id": "X"}, "sed": 1}, (), "here") == (
        "here: sed: unknown key; did you mean seed?"
    )
    assert error_of(parse_config, [1]) == (
        "config: expected a mapping of sections at the top, got a list"
    )
    endless: list[Any] = []
    endless.append(endless)
    assert error_of(parse_config, {"env": endless}) == "config: nested too deeply"


SELECTION, MUTATION, EXPLORE = "evolution.selection.", "evolution.mutation.", "evolution.explore."
NO_IMAGES = "has no effect with observations that are no images"
OPTIONS = "has no effect with the other options"
OTHERS = "has no effect with the other options of algorithm"

# Overrides, and the options that are then without effect.
UNUSED = [
    ("", []),
    ("algorithm.target_period=5", [f"algorithm.target_period=5 {OTHERS}"]),
    ("replay.alpha=0.5", ["replay.alpha=0.5 has no effect with replay.kind: uniform"]),
    ("replay.alpha=0.5 replay.kind=prioritized", []),
    ("replay.samples_per_insert=2 replay.samples_per_insert_slack=5 mesh.actors=2", []),
    ("replay.samples_per_insert_slack=5 mesh.actors=2",
     ["replay.samples_per_insert_slack=5 has no effect with no replay.samples_per_insert"]),
    ("replay.samples_per_insert=2 replay.samples_per_insert_slack=5",
     ["replay.samples_per_insert_slack=5 has no effect with mesh.actors: 0"]),
    ("replay.samples_per_insert=2 replay.samples_per_insert_slack=5 mesh.actors=2"
     " actors.lockstep=true",
     ["replay.samples_per_insert_slack=5 has no effect with actors.lockstep: true"]),
    ("replay.samples_per_insert=2 algorithm.learn_step=5 algorithm.updates=2"
     " evolution.spaces.learn_step={kind: integer, low: 1, high: 8}",
     ["algorithm.learn_step=5 has no effect with replay.samples_per_insert",
      "algorithm.updates=2 has no effect with replay.samples_per_insert",
      f"evolution.spaces.learn_step {OPTIONS}"]),
    ("replay.at=actors replay.kind=prioritized mesh.actors=2 checkpoint.replay=false",
     ["checkpoint.replay=False has no effect with replay.at: actors"]),
    ("network.channels=[8,8]", [f"network.channels=[8, 8] {NO_IMAGES}"]),
    # no evolution
    ("population.size=1", []),
    ("population.size=1 evolution.method=none", []),
    (f"population.size=1 {SELECTION}fraction=0.5 {MUTATION}noise=0.5 {EXPLORE}grow=2",
     [f"{SELECTION}fraction=0.5 has no effect with one agent",
      f"{MUTATION}noise=0.5 has no effect with one agent",
      f"{EXPLORE}grow=2.0 has no effect with one agent"]),
    ("population.size=1 evolution.spaces.lr.low=1e-5",
     [f"evolution.spaces.lr {OPTIONS}"]),
    ("population.size=1 evolution.spaces.lr.low=1e-5 population.init=sample", []),
    ("evolution.spaces={} evolution.method=random_search", []),
    ("evolution.method=none population.init=sample", []),
    (f"evolution.method=none {SELECTION}eval_loop=2 {MUTATION}architecture=0 {EXPLORE}grow=2",
     [f"{SELECTION}eval_loop=2 has no effect with evolution.method: none",
      f"{MUTATION}architecture=0.0 has no effect with evolution.method: none",
      f"{EXPLORE}grow=2.0 has no effect with evolution.method: none"]),
    (f"evolution.method=random_search {SELECTION}kind=tournament {SELECTION}size=3",
     [f"{SELECTION}size=3 has no effect with evolution.method: random_search"]),
    # selection
    (f"{SELECTION}fraction=0.5", []),
    (f"{SELECTION}kind=tournament {SELECTION}size=3 {SELECTION}elitism=false", []),
    # mutation
    (f"{MUTATION}max_units=64 {MUTATION}noise=0.5", []),
    ("network.hidden=[512]", []),
    (f"{MUTATION}architecture=0 {MUTATION}max_units=64 {MUTATION}units=[8] {MUTATION}new_layer=0.5",
     [f"{MUTATION}new_layer=0.5 has no effect with architecture: 0",
      f"{MUTATION}units=[8] has no effect with architecture: 0",
      f"{MUTATION}max_units=64 has no effect with architecture: 0"]),
    (f"{MUTATION}architecture=0 {MUTATION}max_channels=5",
     [f"{MUTATION}max_channels=5 {NO_IMAGES}"]),
    (f"{MUTATION}max_channels=5 {MUTATION}channels=[1]",
     [f"{MUTATION}channels=[1] {NO_IMAGES}", f"{MUTATION}max_channels=5 {NO_IMAGES}"]),
    (f"{MUTATION}parameters=0 {MUTATION}noise=0.5 {MUTATION}reset_dormant=false",
     [f"{MUTATION}noise=0.5 has no effect with parameters: 0",
      f"{MUTATION}reset_dormant=False has no effect with parameters: 0"]),
    (f"{MUTATION}activations=[relu]",
     [f"{MUTATION}activations=['relu'] has no effect with activation: 0"]),
    (f"{MUTATION}new_layer=0.5 {MUTATION}max_layers=5 {MUTATION}max_units=64", []),
    (f"{MUTATION}new_layer=1 {MUTATION}max_channels=5", [f"{MUTATION}max_channels=5 {NO_IMAGES}"]),
    (f"{MUTATION}new_layer=1 {MUTATION}architecture=0",
     [f"{MUTATION}new_layer=1.0 has no effect with architecture: 0"]),
    # environments
    ("env.max_failures=0", []),
    ("env.max_failures=0 env.timeout=3 env.backend=envpool", []),
    # exploring
    (f"{EXPLORE}strategy=perturb {EXPLORE}grow=2", []),
    (f"{EXPLORE}strategy=pb2 {EXPLORE}grow=2 {EXPLORE}shrink=0.5", []),
    (f"{EXPLORE}strategy=perturb {EXPLORE}resample=0.5",
     [f"{EXPLORE}resample=0.5 has no effect with strategy: perturb"]),
    (f"{EXPLORE}strategy=pb2 {EXPLORE}resample=0.5",
     [f"{EXPLORE}resample=0.5 has no effect with strategy: pb2"]),
    (f"{EXPLORE}grow=2 {EXPLORE}resample=0.5", []),
    (f"{EXPLORE}grow=2 {MUTATION}hyperparameters=0",
     [f"{EXPLORE}grow=2.0 has no effect with mutation.hyperparameters: 0"]),
    (f"{EXPLORE}grow=2 evolution.spaces={{}}",
     [f"{EXPLORE}grow=2.0 has no effect with no evolution.spaces"]),
    # spaces
    ("evolution.spaces.lr.low=1e-5", []),
    ("evolution.spaces.lr.low=1e-5 evolution.method=none",
     [f"evolution.spaces.lr {OPTIONS}"]),
    (f"evolution.spaces.lr.low=1e-5 {MUTATION}hyperparameters=0",
     [f"evolution.spaces.lr {OPTIONS}"]),
    ("evolution.spaces={} population.init=sample",
     ["population.init=sample has no effect with no evolution.spaces"]),
    ("algorithm.target_update=periodic", []),
    ("algorithm.target_update=periodic algorithm.tau=0.5", [f"algorithm.tau=0.5 {OTHERS}"]),
    ("algorithm.target_update=periodic evolution.spaces.tau.low=1e-4",
     [f"evolution.spaces.tau {OPTIONS}"]),
    ("algorithm.target_update=periodic evolution.spaces.tau=", []),
    ("algorithm.target_update=periodic evolution.method=none", []),
    ("evolution.spaces.target_period={kind: integer, low: 1, high: 9}",
     [f"evolution.spaces.target_period {OPTIONS}"]),
    # where agents start
    ("population.size=2 population.agents=[{lr: 1e-3},{lr: 1e-3}] algorithm.lr=0.5", []),
    ("algorithm.lr=0.05 population.init=sample", ["algorithm.lr=0.05 has no effect with "
     "agents that draw it from evolution.spaces.lr"]),
    ("algorithm.lr=0.05 evolution.method=random_search", ["algorithm.lr=0.05 has no effect with "
     "agents that draw it from evolution.spaces.lr"]),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "lines"), UNUSED)
def test_options_without_effect(overrides: str, lines: list[str]) -> None:
    given = re.split(r" (?=[\w.]+=)", overrides) if overrides else []
    assert unused_options(parse_config({"env": {"id": "X"}}, given), images=False) == lines


def test_options_of_images_have_an_effect_on_images() -> None:
    overrides = ["network.channels=[8,8]", f"{MUTATION}max_channels=5"]
    assert unused_options(parse_config({"env": {"id": "X"}}, overrides), images=True) == []


FRACTION = st.floats(0, 1)
POSITIVE = st.floats(0, 1, exclude_min=True)
KWARGS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    # strings that plain YAML would read as something else
    | st.sampled_from(["1e-4", "1.0e5", "0x1", "off", "~", "2024-01-01", "=", "<<", "1:30", "064"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    lr=POSITIVE,
    gamma=FRACTION,
    batch_size=st.integers(1, 1000),
    hidden=st.lists(st.integers(1, 4096), min_size=1, max_size=8),
    compile=st.sampled_from(["auto", True, False]),
    kwargs=st.dictionaries(st.text(), KWARGS, max_size=3),
    agents=st.lists(
        st.fixed_dictionaries({}, optional={"tau": POSITIVE, "dueling": st.booleans()})
    ),
)
def test_round_trip(
    lr: float,
    gamma: float,
    batch_size: int,
    hidden: list[int],
    compile: object,
    kwargs: dict[str, Any],
    agents: list[dict[str, Any]],
) -> None:
    config = parse_config(
        {
            "compile": compile,
            "env": {"id": "X", "kwargs": kwargs, "wrappers": [{"name": "B"}]},
            "algorithm": {"lr": lr, "gamma": gamma, "batch_size": batch_size},
            "network": {"hidden": hidden},
            "population": {"size": max(1, len(agents)), "agents": agents},
        }
    )
    again = parse_config(parse_yaml(dump_config(config), "dump"))
    assert again == config
    assert dump_config(again) == dump_config(config)


@settings(max_examples=100, deadline=None)
@given(KWARGS)
def test_any_plain_data_survives_yaml(data: Any) -> None:
    assert parse_yaml(dump_yaml(data), "dump") == data


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab.=:-[]{}&*!|>'\"#%@`,?~<0e\t\n \x00é"), st.booleans())
def test_no_text_gives_a_traceback(text: str, as_value: bool) -> None:
    override = f"env.kwargs={text}" if as_value else text
    for data, overrides in (
        ({"env": {"id": "X"}}, [override]),
        ({"env": {"id": "X"}, text: 1}, []),
    ):
        try:
            parse_config(data, overrides)
            message = ""
        except ConfigError as error:
            message = str(error)
        assert message.isprintable()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configs(path: Path, folder: Path) -> None:
    config = load_config(path)
    assert path.read_text().startswith("# yaml-language-server: $schema=../evorl.schema.json\n")
    assert load_text(dump_config(config)) == config


def test_shipped_configs_are_there() -> None:
    assert {"cartpole", "lunar_lander"} <= {path.stem for path in SHIPPED}


def test_shipped_schema_is_up_to_date() -> None:
    # To renew it: python -c "import json; from evorl.config import make_json_schema as s;
    #   print(json.dumps(s(), indent=2))" > configs/evorl.schema.json
    shipped = (ROOT / "configs" / "evorl.schema.json").read_text(encoding="utf-8")
    assert shipped == json.dumps(make_json_schema(), indent=2) + "\n"


def test_every_option_has_a_description_of_one_line() -> None:
    schema = make_json_schema()
    sections = [schema, *schema["$defs"].values()]
    sections += [arm for section in sections for arm in section.get("anyOf", [])]
    options = [
        (section["title"], name, option)
        for section in sections
        for name, option in section.get("properties", {}).items()
        if not ("$ref" in option or "$ref" in option.get("anyOf", [{}])[0])
    ]
    assert len(options) > 60
    for section, name, option in options:
        description = option.get("description", "")
        assert description.endswith("."), f"{section}.{name} has no description"
        assert "\n" not in description


def test_a_rollout_fits_into_a_generation():
    data = {"env": {"id": "X"}, "algorithm": {"name": "ppo", "rollout_steps": 2048}}
    with pytest.raises(ConfigError) as caught:
        parse_config(data)
    rule = "algorithm.rollout_steps: must be at most evaluation.every, 1000, got 2048"
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "bounds"),
    [
        ("gamma", 0.9, (0.9, 0.999)),
        ("gamma", 0.97, (0.95, 0.999)),
        ("epochs", 30, (3, 30)),
        ("lr", 0.05, (1e-5, 0.05)),
        ("entropy_coef", 0.0, (1e-4, 3e-2)),  # none of a log scale
        ("gae_lambda", 1.0, (0.8, 0.99)),
    ],
)
def test_default_spaces_reach_what_agents_start_from(name, value, bounds):
    data = {"env": {"id": "CartPole-v1"}, "algorithm": {"name": "ppo", name: value}}
    config = parse_config(data)
    assert config.spaces[name].bounds == bounds
    given = {"kind": "integer" if name == "epochs" else "linear", "low": 0, "high": 1}
    given["low"], given["high"] = (4, 5) if name == "epochs" else (0.1, 0.2)
    own = parse_config(data | {"evolution": {"spaces": {name: given}}})
    assert own.spaces[name].bounds == (given["low"], given["high"])  # a user's own stay
    drawn = parse_config(data | {"population": {"init": "sample"}})
    assert drawn.spaces[name].bounds == tuple(
        drawn.algorithm.default_spaces()[name][end] for end in ("low", "high")
    )
