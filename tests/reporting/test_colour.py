"""When there are colours."""

import io

import pytest

from evorl.reporting.colour import Ink, wants_colour


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


def test_a_terminal_has_colours(terminal):
    assert wants_colour(terminal)


def test_a_file_has_none(terminal):
    assert not wants_colour(io.StringIO())


def test_a_closed_stream_has_none(terminal):
    closed = io.StringIO()
    closed.close()
    assert not wants_colour(closed)


@pytest.mark.parametrize(
    ("name", "value", "colours"),
    [("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False)],
)
def test_going_without(terminal, monkeypatch, name, value, colours):
    monkeypatch.setenv(name, value)
    assert wants_colour(terminal) is colours


def test_ink():
    assert Ink(True).bad("dead") == "\x1b[31mdead\x1b[0m"
    assert Ink(False).bad("dead") == "dead"
    assert Ink(True).bold("") == ""
