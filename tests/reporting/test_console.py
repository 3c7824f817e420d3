"""What a terminal shows, and what a log file does not."""

import io
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout

import pytest
from rich.table import Table
from rich.text import Text

from evorl.reporting.console import Console, as_text, show_warnings_on


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """What a console with these options makes a terminal show."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def show(**options):
        both = Terminal()
        with redirect_stdout(both), redirect_stderr(both):
            talk(Console(**options))
        return both.getvalue()

    return show


def talk(console):
    console.start(10, "training", "step")
    console.advance(5)
    console.say(Text("generation 0", "bold"))
    console.warn("look out")
    console.close()


def test_a_terminal_has_a_bar_and_colours(terminal):
    shown = terminal()
    assert "\rtraining: " in shown
    assert "\x1b[1mgeneration 0\x1b[0m" in shown
    assert "\x1b[33mwarning:\x1b[0m look out" in shown
    assert shown.endswith("\r")  # the bar is taken away


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colours(terminal, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    shown = terminal()
    assert "\x1b[" not in shown
    assert "generation 0" in shown


def test_quiet_shows_warnings_only(terminal):
    assert terminal(quiet=True) == "\x1b[33mwarning:\x1b[0m look out\n"


def test_a_file_has_neither_bar_nor_colours(capsys):
    talk(Console())
    assert capsys.readouterr() == ("generation 0\n", "warning: look out\n")


def test_quiet_and_verbose():
    assert (Console().verbose, Console(verbose=True).verbose) == (False, True)
    assert not Console(quiet=True, verbose=True).verbose


def test_warnings_are_lines(capsys):
    with warnings.catch_warnings():
        show_warnings_on(Console(quiet=True))
        warnings.warn("look out", stacklevel=1)
    assert capsys.readouterr() == ("", "warning: look out\n")


@pytest.mark.parametrize(
    ("name", "value", "colours"),
    [("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False)],
)
def test_going_without(monkeypatch, name, value, colours):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    text = Text("bold", "bold red")
    assert (as_text(Terminal(), text) != "bold") is colours
    assert as_text(io.StringIO(), text) == "bold"


def test_nothing_in_a_text_is_markup():
    """Names of runs and messages may have brackets, emoji and numbers."""
    text = "[bold]runs/a[1][/bold] :smile: 12.5 'x'"
    assert as_text(io.StringIO(), text, Text(text)) == f"{text}\n{text}"


def test_lines_of_a_file_never_wrap():
    table = Table("a", "b", box=None)
    table.add_row("x" * 300, "y " * 200)
    shown = as_text(io.StringIO(), "z " * 500, table)
    assert [len(line.split()) for line in shown.splitlines()] == [500, 2, 201]


def test_a_console_is_light_until_it_shows_something():
    code = "import sys, evorl.reporting.console; print({'rich', 'tqdm', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
