"""Every command: its help, and its answer to a run directory that is none."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import evorl.cli as package
from evorl.cli import FILES, SECTIONS, cli
from evorl.reporting.server import find_inside, list_entry
from tests.synthetic import family_lines, make_family_run

from .answers import CARTPOLE, assert_one_error, everything_in

# What each command is called with where RUN is a directory that no run is in. One line a command.
ON_A_RUN = {
    "train": ["RUN"],
    "sweep": ["RUN", "seed=1,2"],
    "resume": ["RUN"],
    "launch": ["RUN", "--on", "ray", "--ranks", "2"],
    "lineage": ["RUN"],
    "schedule": ["RUN"],
    "compare": ["RUN"],
    "report": ["RUN"],
    "watch": ["RUN"],
    "evaluate": ["RUN"],
    "export": ["RUN", "--format", "safetensors"],
}
FOLDER_OF_RUNS = {"runs", "dashboard"}  # list what is in a folder, damaged runs as such
NO_RUN = {"init", "doctor", "schema", "actor", "launch"}  # have tests of their own

NAMED = {name: text for commands in SECTIONS.values() for name, text in commands.items()}

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


# A launcher that restarts a job begins with these, or resumes them.
TRAINED = {"missing", "empty", "killed in its first generation"}


def test_every_command_is_in_this_table():
    assert set(cli.commands) == set(ON_A_RUN) | FOLDER_OF_RUNS | NO_RUN


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("command", ON_A_RUN)
def test_broken_runs_are_answered_in_one_line_and_stay(evorl, tmp_path, command, kind):
    if command in ("resume", "report") and kind == "killed in its first generation":
        pytest.skip("resumes, see tests/distributed/test_resume.py; has a report without charts")
    make_family_run(tmp_path, "run")
    BROKEN[kind](tmp_path / "run")
    before = everything_in(tmp_path)
    arguments = [argument.replace("RUN", "run") for argument in ON_A_RUN[command]]
    code, out, err = evorl(command, *arguments)
    if (command, kind) == ("resume", "killed before it began"):  # seen when it would train
        out, err = "", err.splitlines(keepends=True)[-1]
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
    shown = [list_entry(name, run.path) for name, run in find_inside(Path()).items()]
    found = [(run["name"], run["state"], run["problem"]) for run in shown]
    assert found == listed
    assert everything_in(tmp_path) == before
    states = {"half a configuration", "half of everything"}
    expected = "damaged" if kind in states else "stopped"
    none = kind in ("missing", "empty", "a file", "foreign", "killed before it began")
    assert [state for _, state, _ in found] == ([] if none else [expected])


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_has_sections_and_cuts_nothing_off(flag):
    found = CliRunner().invoke(cli, [flag], prog_name="evorl", terminal_width=80)
    assert found.exit_code == 0
    assert "..." not in found.output.replace("[ARGS]...", "")
    lines = found.output.splitlines()
    titles = [line[:-1] for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options", *SECTIONS]
    for name, text in NAMED.items():
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        assert line.split(None, 1)[1] == text
        assert len(line) <= 80


def test_every_module_of_a_command_is_listed():
    """And the other way round: each listed command is the function of its name."""
    found = {}
    for path in Path(package.__file__).parent.glob("[a-z]*.py"):
        module = importlib.import_module(f"evorl.cli.{path.stem}")
        commands = [each for each in vars(module).values() if isinstance(each, click.Command)]
        found |= {command.name: (path.stem, getattr(module, command.name)) for command in commands}
    assert found == {name: (FILES.get(name, name), cli.get_command(None, name)) for name in NAMED}


SLOW = ("torch", "numpy", "scipy", "gymnasium", "pydantic", "yaml", "rich", "tqdm")


def test_help_loads_nothing_slow():
    """Neither that of the whole nor that of any command."""
    words = [["--help"], *([name, "--help"] for name in NAMED)]
    code = (
        "import sys\nfrom evorl.cli import cli\n"
        f"for words in {words!r}:\n    cli.main(words, standalone_mode=False)\n"
        f"print([name for name in {SLOW!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n[]\n")


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_help_of_every_command(name):
    found = CliRunner().invoke(cli, [name, "--help"], prog_name="evorl")
    assert found.exit_code == 0
    assert found.output.startswith(f"Usage: evorl {name} ")
    examples = [line for line in found.output.splitlines() if line.startswith(f"  evorl {name}")]
    assert examples
    command = cli.get_command(None, name)
    assert command.short_help == NAMED[name]
    for option in command.params:
        assert option.param_type_name == "argument" or option.help


def test_what_is_written_goes_where_output_says():
    """The same option has the same names in all commands."""
    seen = {}
    for name in NAMED:
        for option in cli.get_command(None, name).params:
            if option.param_type_name == "option":
                seen.setdefault(option.name, set()).add(tuple(option.opts))
    assert seen["output"] == {("-o", "--output")}
    assert all(len(names) == 1 for names in seen.values()), seen
