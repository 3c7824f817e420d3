"""Parts by name: ours, a user's own, and the one line that a wrong name gets."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evorl.algorithms.dqn import DQN
from evorl.config import (
    RunConfig,
    dump_config,
    load_config,
    make_json_schema,
    parse_config,
    registry,
    resolve,
)
from evorl.config.yaml_text import parse_yaml
from evorl.errors import ConfigError
from evorl.evolution.selection import Tournament, Truncation, mean
from evorl.runs import RunDirectory

OWN = """
from typing import Literal

from pydantic import Field

from evorl.algorithms.hyperparameters import Declaration
from evorl.algorithms.dqn import DQN
from evorl.config import hyperparameter

class SoftDQN(DQN):
    temperature: float = hyperparameter(
        1.0, "Of the soft maximum.", gt=0, le=10, space={"kind": "log", "low": 0.01, "high": 1.0}
    )
    mood: Literal["calm", "wild"] = Field(default="calm", description="How it is.")

class Bandit(Declaration):
    arms: int = hyperparameter(3, "Arms it pulls.", ge=1)
    name_it: str = Field(min_length=1, description="Must be given.")

def lowest(returns):
    return returns.min()

def jitter(genome, state, random):
    return genome, state

number = 3
"""
SOFT = "own_parts:SoftDQN"


@pytest.fixture(autouse=True)
def own_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_parts.py").write_text(OWN)
    (tmp_path / "broken_parts.py").write_text("raise KeyError('a\\nb')\n")
    (tmp_path / "needy_parts.py").write_text("import no_such_thing_at_all\n")
    (tmp_path / "leaving_parts.py").write_text("import sys; sys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)


def config_of(*overrides: str, **sections: Any) -> RunConfig:
    return parse_config({"env": {"id": "X"}, **sections}, overrides)


def error_of(*overrides: str, **sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config_of(*overrides, **sections)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_ours() -> None:
    assert resolve("algorithm", "dqn") is DQN
    assert resolve("selection", "truncation") is Truncation
    assert resolve("selection", "tournament") is Tournament
    assert resolve("fitness", "mean") is mean


FUNCTION = "must be a function, got"
WRONG = [
    ("algorithm", "dqm", "must be one of dqn, ddpg, td3, sac, a2c, a3c, ppo, impala, "
     "or your own as module:Name, got 'dqm'; did you mean "
     "dqn?"),
    ("selection", "tornament", "must be one of truncation, tournament, or your own as module:Name, "
     "got 'tornament'; did you mean tournament?"),
    ("mutation", "jitter", "must be your own as module:Name, got 'jitter'"),
    ("algorithm", "no_parts:A", "there is no module 'no_parts'; it must be in the current folder, "
     "beside the YAML file, or installed (PYTHONPATH=FOLDER adds a folder)"),
    ("algorithm", "no_parts.deep:A", "there is no module 'no_parts'; it must be in the current "
     "folder, beside the YAML file, or installed (PYTHONPATH=FOLDER adds a folder)"),
    ("fitness", "broken_parts:a", "importing 'broken_parts' raised KeyError: 'a\\nb'"),
    ("fitness", "needy_parts:a", "importing 'needy_parts' raised ModuleNotFoundError: No module "
     "named 'no_such_thing_at_all'"),
    ("fitness", "leaving_parts:a", "importing 'leaving_parts' raised ImportError: the module "
     "calls sys.exit(3); put that below if __name__ == \"__main__\""),
    ("fitness", ":a", "importing '' raised ValueError: Empty module name"),
    ("algorithm", "own_parts:SoftDQM", "module 'own_parts' has no 'SoftDQM'; did you mean "
     "SoftDQN?"),
    ("algorithm", "own_parts:zzz", "module 'own_parts' has no 'zzz'"),
    ("algorithm", "own_parts:number", "must be a subclass of evorl.algorithms.hyperparameters."
     "Declaration, got 3"),
    ("selection", SOFT, "must be a subclass of evorl.evolution.selection.Selection, got <class "
     "'own_parts.SoftDQN'>"),
    ("fitness", SOFT, f"{FUNCTION} <class 'own_parts.SoftDQN'>"),
    ("mutation", "own_parts:number", f"{FUNCTION} 3"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "message"), WRONG)
def test_wrong_names(kind: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(kind, name)
    assert str(caught.value) == message


def test_an_algorithm_of_ones_own() -> None:
    config = config_of(
        "algorithm.lr=1e-4",
        "population.agents.0.temperature=0.5",
        "evolution.spaces.temperature.low=0.1",
        algorithm={"name": SOFT, "temperature": 0.1, "mood": "wild"},
    )
    algorithm = config.algorithm
    assert type(algorithm) is resolve("algorithm", SOFT)
    assert (algorithm.name, algorithm.temperature, algorithm.mood) == (SOFT, 0.1, "wild")
    assert config.agent_hyperparameters(0)["temperature"] == 0.5
    assert config.agent_hyperparameters(1) == algorithm.hyperparameters
    assert list(config.spaces) == ["lr", "gamma", "tau", "temperature"]
    assert config.spaces["temperature"].low == 0.1
    again = parse_config(parse_yaml(dump_config(config), "dump"))
    assert again == config
    assert (
        RunConfig(**config.model_dump()) == RunConfig.model_validate(config.model_dump()) == config
    )


BROKEN = [
    ({"temperatur": 1}, "algorithm.temperatur: unknown key; did you mean temperature?"),
    ({"temperature": 0}, "algorithm.temperature: must be greater than 0, got 0"),
    ({"temperature": "hot"}, "algorithm.temperature: expected a number, got the string 'hot'"),
    ({"mood": "mild"}, "algorithm.mood: must be one of calm, wild, got the string 'mild'; did you "
     "mean wild?"),
    ({"lr": -1}, "algorithm.lr: must be greater than 0, got -1"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "message"), BROKEN)
def test_its_options_are_checked_like_ours(values: dict[str, Any], message: str) -> None:
    assert error_of(algorithm={"name": SOFT, **values}) == f"config: {message}"


def test_its_hyperparameters_elsewhere() -> None:
    name = f"algorithm.name={SOFT}"
    message = error_of("algorithm.temperature=0.1")
    assert message.endswith(f"unknown key; known keys: {', '.join(DQN.model_fields)}")
    message = error_of(name, "population.agents.0.temperature=0")
    assert message.endswith("population.agents.0.temperature: must be greater than 0, got 0")
    assert error_of(name, "evolution.spaces.temperature.high=11").endswith(
        "evolution.spaces.temperature.high: must be at most 10, got 11"
    )
    late = config_of("algorithm.temperature=0.1", name)  # in any order
    assert late.algorithm.temperature == 0.1
    assert error_of("algorithm.name=dqm") == (
        "override algorithm.name=dqm: algorithm.name: must be one of dqn, ddpg, td3, sac, "
        "a2c, a3c, ppo, impala, or your own as "
        "module:Name, got 'dqm'; did you mean dqn?"
    )
    assert error_of(algorithm={"name": 3}) == ("config: algorithm.name: expected a string, got 3")


def test_an_algorithm_without_a_replay() -> None:
    options = {"name": "own_parts:Bandit", "name_it": "x"}
    config = config_of(algorithm=options, replay={"capacity": 1})
    assert config.agent_hyperparameters(0) == {"arms": 3}
    assert config.spaces == config.mutated == {}
    assert error_of(algorithm={"name": "own_parts:Bandit"}) == (
        "config: algorithm.name_it: required, but not given: Must be given"
    )
    assert error_of(algorithm=options, population={"agents": [{"lr": 0.1}]}).startswith(
        "config: population.agents.0.lr: unknown key"
    )


def test_an_algorithm_as_an_object() -> None:
    soft = resolve("algorithm", SOFT)
    config = RunConfig(env={"id": "X"}, algorithm=soft(name=SOFT, temperature=0.5))
    assert config.algorithm.temperature == 0.5
    with pytest.raises(ValueError, match="must name the algorithm's own class"):
        RunConfig(env={"id": "X"}, algorithm=soft())  # whose name is dqn, and would come back as it


def test_unused_hyperparameters_do_not_evolve() -> None:
    spaces = {"target_period": {"kind": "integer", "low": 1, "high": 9}}
    assert list(config_of().spaces) == ["lr", "gamma", "tau"]
    assert list(config_of("algorithm.target_update=periodic").spaces) == ["lr", "gamma"]
    assert config_of(evolution={"spaces": spaces}).spaces == {}
    assert config_of("algorithm.target_update=periodic", evolution={"spaces": spaces}).spaces


def test_options_of_another_selection_are_unknown() -> None:
    kinds = "kind, min_gap, eval_loop, champion"
    assert error_of(evolution={"selection": {"size": 3}}) == (
        f"config: evolution.selection.size: unknown key; known keys: {kinds}, fraction"
    )
    assert error_of("evolution.selection.kind=tournament", "evolution.selection.fraction=0.5") == (
        "override evolution.selection.fraction=0.5: evolution.selection.fraction: unknown key; "
        f"known keys: {kinds}, size, elitism"
    )


def test_mutations_of_ones_own() -> None:
    weights = {"own_parts:jitter": 0.5, "none": 0.1}
    config = config_of(evolution={"mutation": weights})
    assert config.evolution.mutation.user == {"own_parts:jitter": 0.5}
    assert parse_config(parse_yaml(dump_config(config), "dump")) == config
    by_override = config_of("evolution.mutation.own_parts:jitter=0.5")
    assert by_override.evolution.mutation.user == {"own_parts:jitter": 0.5}
    alone = {"own_parts:jitter": 1, "architecture": 0, "parameters": 0, "hyperparameters": 0}
    assert config_of(evolution={"mutation": alone}).evolution.mutation.user
    where = "evolution.mutation"
    assert error_of(evolution={"mutation": {"own_parts:jiter": 1}}) == (
        f"config: {where}.own_parts:jiter: module 'own_parts' has no 'jiter'; did you mean jitter?"
    )
    assert error_of(evolution={"mutation": {"own_parts:jitter": -1}}) == (
        f"config: {where}.own_parts:jitter: must be at least 0, got -1"
    )
    assert error_of(evolution={"mutation": {"actvation": 1}}) == (
        f"config: {where}.actvation: unknown key; did you mean activation?"
    )
    assert error_of(f"{where}.actvation=1").endswith("unknown key; did you mean activation?")


def test_fitness_by_name() -> None:
    assert config_of("evaluation.fitness=iqm").evaluation.fitness == "iqm"
    assert config_of("evaluation.fitness=own_parts:lowest").evaluation.fitness == "own_parts:lowest"
    assert error_of("evaluation.fitness=men") == (
        "override evaluation.fitness=men: evaluation.fitness: must be one of mean, median, iqm, or "
        "your own as module:Name, got 'men'; did you mean mean?"
    )


def test_the_schema_lets_own_parts_have_their_options() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(make_json_schema())
    env: dict[str, Any] = {"env": {"id": "X"}}
    good = [
        {"algorithm": {"lr": 0.1}},
        {"algorithm": {"name": SOFT, "temperature": 1}},
        {"evolution": {"selection": {"kind": "tournament", "size": 3}}},
        {"evolution": {"selection": {"kind": "a:B", "zeal": 3}}},
        {"evolution": {"mutation": {"a:b": 0.5}}},
    ]
    bad = [
        {"algorithm": {"lrr": 0.1}},
        {"algorithm": {"name": "dqn", "temperature": 1}},
        {"evolution": {"selection": {"size": 3}}},
        {"evolution": {"selection": {"kind": "tournament", "fraction": 0.5}}},
        {"evolution": {"mutation": {"b": 0.5}}},
        {"evolution": {"spaces": {"lr": {"kind": "log", "low": 2, "high": 3}}}},
    ]
    assert all(validator.is_valid(env | part) for part in good)
    assert not any(validator.is_valid(env | part) for part in bad)
    json.dumps(make_json_schema())


def test_a_module_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"env: {{id: X}}\nalgorithm: {{name: '{SOFT}', lr: 2}}\n")
    command = [sys.executable, "-m", "evorl", "train", "c.yaml"]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": root}
    )
    assert done.returncode == 2
    assert "c.yaml: algorithm.lr: must be at most 1, got 2" in done.stderr


def test_modules_beside_the_yaml_file_but_never_in_the_folder_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_beside", [""])
    project, elsewhere, run = (tmp_path / name for name in ("project", "elsewhere", "run"))
    for folder in (project, elsewhere, run):
        folder.mkdir()
    monkeypatch.chdir(elsewhere)
    for folder, module in ((project, "parts_beside"), (run, "parts_in_a_run")):
        (folder / f"{module}.py").write_text(OWN)
        text = f"env: {{id: X}}\nevaluation: {{fitness: '{module}:lowest'}}\n"
        (folder / "config.yaml").write_text(text)
    with pytest.raises(
        ConfigError, match="there is no module 'parts_in_a_run'; it must be in the "
    ):
        RunDirectory(run).config()
    assert load_config(project / "config.yaml").evaluation.fitness == "parts_beside:lowest"
    assert sys.modules["parts_beside"].__file__ == str(project / "parts_beside.py")
    with pytest.raises(ConfigError, match="there is no module 'parts_in_a_run'"):
        RunDirectory(run).config()


def test_the_current_folder_is_looked_in_for_what_is_not_ours_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    assert resolve("algorithm", "dqn") is DQN
    assert "" not in sys.path
    resolve("fitness", "own_parts:lowest")
    assert "" in sys.path


def test_what_lies_beside_a_runs_own_file_is_not_imported(tmp_path, monkeypatch):
    monkeypatch.setattr("evorl.config.registry._beside", [""])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lineage.jsonl").touch()
    (tmp_path / "run" / "lurking_parts.py").write_text("raise SystemExit(7)\n")
    file = tmp_path / "run" / "config.yaml"
    file.write_text('env: {id: CartPole-v1}\nevaluation: {fitness: "lurking_parts:a"}\n')
    with pytest.raises(ConfigError, match="there is no module 'lurking_parts'"):
        load_config(file)
