"""The three commands on run directories that are missing, empty, foreign or half-written."""

import subprocess
import sys

import pytest
import torch

from tests.cli.test_cli import BROKEN, CARTPOLE, TINY, assert_one_error
from tests.shipping.worlds import make_run as make_world, population_of
from tests.synthetic import make_family_run

torch.set_num_threads(1)

COMMANDS = {
    "watch": ("watch", "family"),
    "evaluate": ("evaluate", "family", "--episodes", 2),
    "export": ("export", "family", "--format", "safetensors"),
}
HARMLESS = ("lineage", "summary", "schedule", "facts of another version")


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_run_directories_are_one_line_and_stay(evorl, tmp_path, command, kind):
    make_family_run(tmp_path)
    BROKEN[kind](tmp_path / "family")
    before = contents(tmp_path)
    code, out, err = evorl(*COMMANDS[command])
    if any(name in kind for name in HARMLESS):
        assert (code, err) == (0, "")
        return
    assert_one_error(code, out, err)
    assert "family" in err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["a\nb", "", "x" * 5000, "nothing/family"])
def test_strange_run_directories(evorl, command, name):
    words = [name if word == "family" else word for word in COMMANDS[command]]
    assert_one_error(*evorl(*words))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_agent_is_one_line(evorl, tmp_path, command):
    make_family_run(tmp_path)
    before = contents(tmp_path)
    code, out, err = evorl(*COMMANDS[command], "--agent", 9)
    assert_one_error(code, out, err)
    assert "has no checkpoint yet; leave --agent out for the best" in err
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["watch", "run", "--output", "film.avi"], "film.avi must end in .mp4 or .gif"),
        (["watch", "run", "--output", "film"], "must end in .mp4 or .gif"),
        (["watch", "run", "--output", "nowhere/film.mp4"], "cannot be written: No such file"),
        (["watch", "run", "--output", "folder.mp4"], "cannot be written: Is a directory"),
        (["watch", "run", "--output", "x" * 300 + ".mp4"], "cannot be"),
        (["watch", "run", "--output", "/proc/film.mp4"], "cannot be written: No such file"),
        (["watch", "run", "--episodes", "0"], "--episodes"),
        (["evaluate", "run", "--episodes", "0"], "--episodes"),
        (["evaluate", "run", "--seed", "-1"], "--seed"),
        (["export", "run"], "--format"),
        (["export", "run", "--format", "pickle"], "--format"),
        (
            ["export", "run", "--format", "onnx", "--output", "nowhere/x"],
            "cannot be made: No such file",
        ),
        (["export", "run", "--format", "onnx", "--output", "run"], "exists already"),
        (["export", "run", "--format", "onnx", "--output", "file"], "exists already"),
        (["export", "run", "--format", "onnx", "--output", "x" * 300], "cannot be"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(evorl, tmp_path, arguments, says):
    make_world(tmp_path, population_of("vector"))
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "file").write_text("mine")
    before = contents(tmp_path)
    code, out, err = evorl(*arguments, *(["-q"] if arguments[0] == "watch" else []))
    assert (code, out) == (2, "")
    assert says in err
    assert len([line for line in err.splitlines() if "rror: " in line]) == 1
    assert contents(tmp_path) == before


def test_an_export_is_never_replaced(evorl, tmp_path):
    make_world(tmp_path, population_of("vector"))
    command = ["export", "run", "--format", "pt2", "--output", "model"]
    code, out, err = evorl(*command)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "model: agent.json, model.pt2"
    assert "the same as the live agent on 1,000 random observations" in out
    before = contents(tmp_path)
    code, out, err = evorl(*command)
    assert_one_error(code, out, err)
    assert "model: exists already; remove it, or choose another --output" in err
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("agent", "name"), [((), ""), (("--agent", 11), "-agent-11")])
def test_by_default_an_export_is_in_the_run(evorl, tmp_path, agent, name):
    make_world(tmp_path, population_of("vector"))
    code, out, err = evorl("export", "run", "--format", "safetensors", *agent)
    assert (code, err) == (0, "")
    files = "agent.json, weights.safetensors"
    assert out.splitlines()[-1] == f"run/export-safetensors{name}: {files}"


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_one_line(evorl, tmp_path, monkeypatch, missing):
    make_world(tmp_path, population_of("vector"))
    before = contents(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)
    code, out, err = evorl("export", "run", "--format", "onnx")
    assert_one_error(code, out, err)
    assert f"--format onnx: {missing} cannot be imported; in the clone: pip install" in err
    assert "'.[onnx]'" in err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_loads_nothing_slow(command):
    code = (
        "import sys\nfrom evorl.cli import cli\n"
        f"cli.main([{command!r}, '--help'], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"evorl {command} runs/cartpole") == 3


def test_a_run_that_was_trained(evorl, tmp_path):
    """All three, on what a trainer really leaves."""
    code, _, err = evorl("train", CARTPOLE, *TINY, "env.kwargs={max_episode_steps: 40}", "-q")
    assert code == 0, err
    code, out, err = evorl("evaluate", "runs/cartpole", "--episodes", 3)
    assert code == 0, err
    assert out.startswith("runs/cartpole: CartPole-v1, agent ")
    code, out, err = evorl("watch", "runs/cartpole", "--output", "film.gif")
    assert code == 0, err
    for format in ("safetensors", "pt2", "onnx"):
        code, out, err = evorl("export", "runs/cartpole", "--format", format, "--output", format)
        assert (code, err) == (0, "")
    code, _, err = evorl("evaluate", "runs/cartpole", "--agent", 10**6)
    ids = [int(id) for id in err.partition("checkpoint has ")[2].partition(";")[0].split(",")]
    assert code == 2
    for id in ids:
        code, out, err = evorl("evaluate", "runs/cartpole", "--episodes", 2, "--agent", id)
        assert (code, err) == (0, "")
        assert f"agent {id}, as of checkpoint generation-" in out
