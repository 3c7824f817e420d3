"""Every command: its help, and its answer to a run directory that is none."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from evorl.cli import cli
from evorl.reporting.report.server import RunsFolder
from tests.synthetic import family_lines, make_family_run

from .answers import CARTPOLE, assert_one_error, everything_in

# What each command is called with where RUN is a directory that no run is in. One line a command.
ON_A_RUN = {
    "train": ["RUN"],
    "resume": ["RUN"],
    "lineage": ["RUN"],
    "schedule": ["RUN"],
    "compare": ["RUN"],
    "report": ["RUN"],
    "watch": ["RUN"],
    "evaluate": ["RUN"],
    "export": ["RUN", "--format", "safetensors"],
}
FOLDER_OF_RUNS = {"runs", "dashboard"}  # list what is in a folder, damaged runs as such
NO_RUN = {"init", "doctor", "schema", "completion"}  # have tests of their own

FOREIGN = {"README.md": "# Somebody else's", "config.yaml": "model: resnet\n", "data.bin": "\0\1"}


def _foreign(run):
    shutil.rmtree(run)
    run.mkdir()
    for name, text in FOREIGN.items():
        (run / name).write_text(text)


def _a_file(run):
    shutil.rmtree(run)
    run.write_text("a file")


def _only_config(run):
    """A run that was killed before it had agents."""
    for path in run.iterdir():
        if path.name != "config.yaml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _only_births(run):
    """A run that was killed before its first generation ended."""
    text = (run / "config.yaml").read_text()
    _only_config(run)
    (run / "config.yaml").write_text(text.replace("size: 4", "size: 2"))
    births = [json.dumps(line) + "\n" for line in family_lines()[:2]]
    (run / "lineage.jsonl").write_text("".join(births))


def _empty(run):
    shutil.rmtree(run)
    run.mkdir()


def _half_config(run):
    text = (run / "config.yaml").read_bytes()
    (run / "config.yaml").write_bytes(text[:20])


def _half_of_everything(run):
    for path in run.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


BROKEN = {
    "missing": shutil.rmtree,
    "empty": _empty,
    "a file": _a_file,
    "foreign": _foreign,
    "half a configuration": _half_config,
    "killed before it began": _only_config,
    "killed in its first generation": _only_births,
    "half of everything": _half_of_everything,
}


# A launcher that restarts a job begins with these, or goes on.
TRAINED = {"missing", "empty", "killed in its first generation"}


def test_every_command_is_in_this_table():
    assert set(cli.commands) == set(ON_A_RUN) | FOLDER_OF_RUNS | NO_RUN


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("command", ON_A_RUN)
def test_broken_runs_are_answered_in_one_line_and_stay(evorl, tmp_path, command, kind):
    if (command, kind) == ("resume", "killed in its first generation"):
        pytest.skip("goes on: tests/distributed/test_resume.py")
    make_family_run(tmp_path, "run")
    BROKEN[kind](tmp_path / "run")
    before = everything_in(tmp_path)
    arguments = [argument.replace("RUN", "run") for argument in ON_A_RUN[command]]
    code, out, err = evorl(command, *arguments)
    assert_one_error(code, out, err)
    assert "run" in err
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize("kind", [kind for kind in BROKEN if kind not in TRAINED])
def test_going_on_with_a_broken_run_by_itself(evorl, tmp_path, kind):
    """What a launcher does that restarts a job."""
    make_family_run(tmp_path, "run")
    BROKEN[kind](tmp_path / "run")
    before = everything_in(tmp_path)
    options = ["name=run", "run.folder=.", "--resume", "auto", "--quiet"]
    assert_one_error(*evorl("train", CARTPOLE, *options))
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize("kind", ["missing", "a file"])
@pytest.mark.parametrize("command", sorted(FOLDER_OF_RUNS))
def test_what_is_no_folder_has_no_runs(evorl, tmp_path, command, kind):
    make_family_run(tmp_path, "run")
    BROKEN[kind](tmp_path / "run")
    before = everything_in(tmp_path)
    assert_one_error(*evorl(command, "run"))
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize("kind", BROKEN)
def test_the_list_and_the_dashboard_say_the_same_of_a_broken_run(evorl, tmp_path, kind):
    make_family_run(tmp_path, "run")
    BROKEN[kind](tmp_path / "run")
    before = everything_in(tmp_path)
    code, out, err = evorl("runs", ".", "--json")
    assert (code, err) == (0, "")
    listed = [(run["path"], run["state"], run["problem"]) for run in json.loads(out)]
    shown = RunsFolder(Path()).entries()
    found = [(run["name"], run["state"], run["problem"]) for run in shown]
    assert found == listed
    assert everything_in(tmp_path) == before
    states = {"half a configuration", "killed before it began", "half of everything"}
    expected = "damaged" if kind in states else "stopped"
    none = kind in ("missing", "empty", "a file", "foreign")
    assert [state for _, state, _ in found] == ([] if none else [expected])


def test_help_has_sections_and_cuts_nothing_off():
    found = CliRunner().invoke(cli, ["--help"], prog_name="evorl", terminal_width=80)
    assert found.exit_code == 0
    assert "..." not in found.output.replace("[ARGS]...", "")
    lines = found.output.splitlines()
    titles = [line[:-1] for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options", *cli.sections]
    named = [name for names in cli.sections.values() for name in names]
    assert sorted(named) == sorted(cli.commands)
    for name in named:
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        assert line.split(None, 1)[1] == cli.commands[name].short_help
        assert len(line) <= 80


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_help_of_every_command(name):
    found = CliRunner().invoke(cli, [name, "--help"], prog_name="evorl")
    assert found.exit_code == 0
    assert found.output.startswith(f"Usage: evorl {name} ")
    examples = [line for line in found.output.splitlines() if line.startswith(f"  evorl {name}")]
    assert examples
    assert cli.commands[name].short_help[0].isupper()
    for option in cli.commands[name].params:
        assert option.param_type_name == "argument" or option.help
