"""evorl completion, and what a shell gets to complete."""

import os
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from evorl.cli import cli
from tests.synthetic import make_run

from .answers import ROOT, assert_one_error


def completed(*words):
    """What is offered for the last word."""
    *before, incomplete = words
    found = ShellComplete(cli, {}, "evorl", "_EVORL_COMPLETE")
    return [(item.value, item.type) for item in found.get_completions(list(before), incomplete)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_evorl(evorl, shell):
    code, out, err = evorl("completion", shell)
    assert (code, err) == (0, "")
    assert f"_EVORL_COMPLETE={shell}_complete" in out


def test_an_unknown_shell(evorl):
    code, out, err = evorl("completion", "tcsh")
    assert (code, out) == (2, "")
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in err


def test_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("cartpole", "cartpole-2", "lander"):
        make_run(tmp_path / "runs", name)
    (tmp_path / "runs" / "notes").mkdir()
    plain = [(f"runs/{name}", "plain") for name in ("cartpole", "cartpole-2", "lander")]
    assert completed("lineage", "") == plain
    assert completed("resume", "cart") == plain[:2]
    assert completed("compare", "runs/lander", "runs/c") == plain[:2]
    assert completed("schedule", "elsewhere/") == [("elsewhere/", "dir")]


def test_configurations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine.yaml", "configs/dqn/lander.yaml", "configs/accelerate/cpu.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert completed("train", "") == [("mine.yaml", "plain"), ("configs/dqn/lander.yaml", "plain")]
    assert completed("train", "lan") == [("configs/dqn/lander.yaml", "plain")]
    assert completed("train", "other/") == [("other/", "file")]


def test_commands_and_options():
    assert ("doctor", "plain") in completed("do")
    assert ("--verbose", "plain") in completed("train", "--ver")
    assert [value for value, _ in completed("completion", "")] == ["bash", "zsh", "fish"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_a_real_bash_completes(tmp_path):
    """With an `evorl` on the path that is this one."""
    make_run(tmp_path / "runs", "lander")
    command = tmp_path / "bin" / "evorl"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{MAIN}" "$@"\n')
    command.chmod(0o755)
    script = """
        source <(evorl completion bash)
        COMP_WORDS=(evorl lineage runs/l) COMP_CWORD=2
        _evorl_completion evorl
        echo "${COMPREPLY[@]}"
    """
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("runs/lander", "")


MAIN = "import sys; sys.argv[0] = 'evorl'; from evorl.cli import main; main()"


def test_wrong_usage_of_other_commands_stays_one_line(evorl):
    assert_one_error(*evorl("runs", "nothing"))
