"""What a terminal shows, and what a log file does not."""

import io
import warnings
from contextlib import redirect_stderr, redirect_stdout

import pytest

from evorl.reporting.console import Console, show_warnings_on


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
    console.say(console.ink.bold("generation 0"))
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
