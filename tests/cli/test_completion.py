"""What the tab key completes, as click and bash ask for it."""

import subprocess
import sys

import pytest
from click.shell_completion import get_completion_class

from evorl.cli import cli, completion

from .answers import CARTPOLE, ROOT

TRAIN = ["train", str(CARTPOLE)]


def completed(words, incomplete):
    shell = completion.Bash(cli, {}, "evorl", "_EVORL_COMPLETE")
    return [item.value for item in shell.get_completions(words, incomplete)]


@pytest.mark.parametrize(
    ("incomplete", "found"),
    [
        ("budget.e", ["budget.env_steps="]),
        ("env.norm", ["env.normalize.observations=", "env.normalize.rewards="]),
        ("algorithm.doub", ["algorithm.double="]),
        ("algorithm.double=", ["algorithm.double=true", "algorithm.double=false"]),
        ("algorithm.name=d", ["algorithm.name=dqn", "algorithm.name=ddpg"]),
        ("compile=", ["compile=auto", "compile=true", "compile=false"]),
        ("mesh.population=", ["mesh.population=auto"]),
        ("replay.kind=p", ["replay.kind=prioritized"]),
        ("evolution.spaces.gam", ["evolution.spaces.gamma="]),
        ("evolution.selection.kind=to", ["evolution.selection.kind=tournament"]),
        ("budget.env_steps=", []),
        ("nothing", []),
    ],
)
def test_options_and_their_values(incomplete, found):
    assert completed(TRAIN, incomplete) == found


def test_options_are_those_of_the_algorithm_in_the_file(tmp_path):
    ppo = ["train", str(ROOT / "configs/ppo/cartpole.yaml")]
    assert completed(ppo, "algorithm.clip") == ["algorithm.clip="]
    assert completed(TRAIN, "algorithm.clip") == []
    assert completed(["train", str(tmp_path / "none.yaml")], "algorithm.target_p") == [
        "algorithm.target_period="
    ]


def test_no_code_of_the_users_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("raise RuntimeError")
    (tmp_path / "a.yaml").write_text('algorithm: {name: "mine:Own"}')
    assert completed(["train", "a.yaml"], "algorithm.target_p") == ["algorithm.target_period="]


def test_without_the_slow_ones_all_sections_are_offered():
    found = completed(TRAIN, "")
    assert {"seed=", "algorithm.name=", "evolution.selection.kind=", "run.folder="} <= {*found}
    assert "algorithm.lr=" not in found


@pytest.mark.parametrize("words", [["algorithm.name", "="], ["seed=1", "algorithm.name", "="]])
def test_bash_has_the_equals_sign_apart(words):
    assert completed([*TRAIN, *words], "d") == ["dqn", "ddpg"]
    assert completed([*TRAIN, *words[:-1]], "=") == completed([*TRAIN, *words], "")
    assert completed([*TRAIN, "seed=1"], "=") != ["dqn"]


@pytest.mark.parametrize("command", ["resume", "sweep", "launch"])
def test_other_commands_that_take_overrides(command):
    assert completed([command, str(CARTPOLE)], "budget.e") == ["budget.env_steps="]


def test_bash_itself(tmp_path):
    """No space after `=`; nothing slow is loaded for it."""
    assert get_completion_class("bash") is completion.Bash
    (tmp_path / "evorl").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -X importtime -m evorl "$@"\n'
    )
    (tmp_path / "evorl").chmod(0o755)
    script = """
        PATH=$PWD:$PATH
        source <(_EVORL_COMPLETE=bash_source evorl 2> /dev/null)
        compopt() { printf '%s ' "$@"; }
        COMP_WORDS=(evorl train a.yaml budget.e) COMP_CWORD=3
        _evorl_completion evorl 2> imports
        echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("-o nospace budget.env_steps=\n", "")
    assert "torch" not in (tmp_path / "imports").read_text()
