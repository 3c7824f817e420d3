"""The command line as a user meets it: exit codes, streams, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import psutil
import pytest
import torch
from click.testing import CliRunner

from evorl import __version__
from evorl.cli import cli, main

torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent
CARTPOLE = ROOT / "configs" / "dqn" / "cartpole.yaml"
TINY = [
    "env.num_envs=2",
    "population.size=2",
    "algorithm.learning_starts=16",
    "algorithm.batch_size=8",
    "evaluation.every=50",
    "evaluation.episodes=1",
    "evaluation.final_episodes=2",
    "evaluation.max_steps=30",
    "budget.env_steps=200",
    "env.kwargs={max_episode_steps: 25}",
]
GOOD = "env: {id: CartPole-v1}\nbudget: {env_steps: 100}\n"


@pytest.fixture
def evorl(monkeypatch, tmp_path, capfd):
    """Run the command in this process, in an empty folder; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["evorl", *map(str, arguments)])
        code = 0
        with warnings.catch_warnings():  # the command redirects warnings for good
            try:
                main()
            except SystemExit as ended:
                code = ended.code
        said = capfd.readouterr()
        return code, said.out, said.err

    return call


def shell(*arguments, **options):
    command = [sys.executable, "-m", "evorl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def assert_score_lines(lines, folder):
    assert lines[0].startswith("held-out score over 2 episodes: mean ")
    assert lines[0].count("(95 % interval ") == 2
    assert ", IQM " in lines[0]
    assert lines[1] == f"best agent, metrics and summary: {folder}"
    assert len(lines) == 2


def test_train_in_a_process_of_its_own(tmp_path):
    done = shell("train", CARTPOLE, *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no bar where there is no terminal
    assert done.stdout.startswith("environments: ")
    assert_score_lines(done.stdout.splitlines()[-2:], "runs/cartpole")
    assert (tmp_path / "runs" / "cartpole" / "summary.json").exists()


def test_train_says_what_the_summary_says(evorl, tmp_path):
    code, out, _ = evorl("train", CARTPOLE, *TINY)
    assert code == 0
    score = json.loads((tmp_path / "runs" / "cartpole" / "summary.json").read_text())["score"]
    mean = score["mean"]
    text = f"mean {mean['value']:.1f} (95 % interval {mean['low']:.1f} to {mean['high']:.1f})"
    assert text in out.splitlines()[-2]


@pytest.mark.parametrize("flag", ["-q", "--quiet"])
def test_quiet_prints_the_score_only(evorl, flag):
    code, out, err = evorl("train", CARTPOLE, *TINY, flag)
    assert (code, err) == (0, "")
    assert_score_lines(out.splitlines(), "runs/cartpole")


def test_warnings_leave_the_score_alone(evorl):
    code, out, err = evorl("train", CARTPOLE, *TINY, "env.kwargs={}", "--quiet")
    assert code == 0
    assert_score_lines(out.splitlines(), "runs/cartpole")
    assert err.startswith("warning: evaluation.every=50 is less than two episodes")


BAD = {
    "no such file": ("nothing.yaml", []),
    "a folder": (".", []),
    "not YAML": ("env: [", []),
    "not UTF-8": (b"env: {id: \xff}\n", []),
    "empty": ("", []),
    "unknown key": (GOOD + "sead: 1\n", []),
    "wrong type": (GOOD + "seed: yes please\n", []),
    "out of range": (GOOD + "algorithm: {gamma: 1.5}\n", []),
    "given twice": (GOOD + "seed: 1\nseed: 2\n", []),
    "does not fit together": (GOOD + "replay: {capacity: 10}\n", []),
    "override without a value": (GOOD, ["seed"]),
    "override of an unknown key": (GOOD, ["algorithm.lrr=1"]),
    "override out of range": (GOOD, ["population.size=0"]),
    "two lines in an override": (GOOD, ["name=a\nb"]),
    "unknown environment": (GOOD, ["env.id=CartPoel-v1"]),
    "unknown module": (GOOD, ["env.id=nowhere:CartPole-v1"]),
    "unknown argument of the environment": (GOOD, ["env.kwargs={colour: red}", "env.num_envs=1"]),
    "unknown wrapper": (GOOD, ["env.wrappers=[Wrap]"]),
}


def assert_one_error(code, out, err):
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1


def write(folder, text):
    if text in ("nothing.yaml", "."):
        return text
    content = text if isinstance(text, bytes) else text.encode()
    (folder / "run.yaml").write_bytes(content)
    return "run.yaml"


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line_and_writes_nothing(evorl, tmp_path, kind):
    text, overrides = BAD[kind]
    file = write(tmp_path, text)
    before = sorted(tmp_path.rglob("*"))
    assert_one_error(*evorl("train", file, *overrides))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("override", ['run.folder="a\\0b"', "env.id=.module:CartPole-v1"])
def test_strange_names_are_one_line_too(evorl, tmp_path, override):
    file = write(tmp_path, GOOD)
    assert_one_error(*evorl("train", file, override, "--quiet"))


def test_bad_input_in_a_process_of_its_own(tmp_path):
    done = shell("train", CARTPOLE, "algorithm.lr=-1", cwd=tmp_path)
    assert_one_error(done.returncode, done.stdout, done.stderr)
    assert "algorithm.lr: must be greater than 0, got -1" in done.stderr
    assert list(tmp_path.iterdir()) == []


LATE = {
    "actions that are not discrete": ["env.id=Pendulum-v1"],
    "no native version": ["env.id=LunarLander-v3", "env.backend=native"],
    "an existing run": ["run.folder=."],
    "a folder that is a file": ["run.folder=run.yaml"],
}


@pytest.mark.parametrize("quiet", [["--quiet"], []], ids=["quiet", "talking"])
@pytest.mark.parametrize("kind", LATE)
def test_what_shows_up_late_is_one_line_too(evorl, tmp_path, kind, quiet):
    write(tmp_path, GOOD)
    (tmp_path / "run").mkdir()
    before = sorted(tmp_path.rglob("*"))
    code, out, err = evorl("train", "run.yaml", *LATE[kind], *quiet)
    assert sorted(tmp_path.rglob("*")) == before
    assert_one_error(code, out, err)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train"], "Missing argument 'CONFIG'"),
        (["train", CARTPOLE, "--fast"], "No such option"),
        (["trian"], "No such command 'trian'"),
        (["schema", "extra"], "unexpected extra argument"),
        (["--wrong"], "No such option"),
    ],
)
def test_wrong_usage_is_readable(evorl, tmp_path, arguments, says):
    code, out, err = evorl(*arguments)
    assert code == 2
    assert out == ""
    assert says in err
    assert err.startswith("Usage: ")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_no_command_shows_the_help(evorl):
    code, out, err = evorl()
    assert code == 2
    assert "train" in out + err
    assert "schema" in out + err


def test_schema_is_the_shipped_one(evorl):
    code, out, err = evorl("schema")
    assert (code, err) == (0, "")
    shipped = ROOT / "configs" / "evorl.schema.json"
    assert json.loads(out) == json.loads(shipped.read_text())


def test_version():
    found = CliRunner().invoke(cli, ["--version"])
    assert (found.exit_code, found.output.strip()) == (0, f"evorl, version {__version__}")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_command(flag):
    found = CliRunner().invoke(cli, [flag])
    assert found.exit_code == 0
    for name, command in cli.commands.items():
        assert f"  {name} " in found.output
        assert command.help.split()[0] in found.output


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_help_of_every_command_has_an_example(name):
    found = CliRunner().invoke(cli, [name, "--help"], prog_name="evorl")
    assert found.exit_code == 0
    usage, rest = found.output.split("\n", 1)
    assert usage.startswith(f"Usage: evorl {name}")
    assert f"evorl {name}" in rest


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.05)


@pytest.mark.parametrize("whom", ["the process", "the terminal's whole group"])
def test_control_c_ends_with_one_line_and_no_children(tmp_path, whom):
    command = [sys.executable, "-m", "evorl", "train", str(CARTPOLE), *TINY]
    command += ["env.backend=async", "env.num_envs=1", "budget.env_steps=100000000"]
    command += ["compile=false"]  # which so many steps would otherwise be worth
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # whoever runs the tests in the background ignores it, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        metrics = tmp_path / "runs" / "cartpole" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 4  # two agents, each with one environment to learn in, one to play
        if whom == "the process":
            process.send_signal(signal.SIGINT)
        else:
            os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 130
    assert err.split("\n") == ["", "interrupted", ""]  # click first ends the line with ^C in it
    wait_for(lambda: not any(child.is_running() for child in children), seconds=5)
