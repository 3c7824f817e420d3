"""Tables as text."""

import pytest
from rich.text import Text

from evorl.cli.shared import WIDTH, table


def test_columns_are_aligned_and_escaped():
    assert table(("a", "number"), [("x\ny", "1"), ("z", "10")], "<>") == [
        "a     number",
        "x\\ny       1",
        "z         10",
    ]


def test_markup_is_text():
    assert table(("a",), [("[red]x[/red] :smile:",)], "<")[1] == "[red]x[/red] :smile:"


def test_only_columns_that_may_wrap_do():
    rows = [("x" * 50, "one two three " * 10, "y" * 20)]
    lines = table(("a", "b", "c"), rows, "<<<", wraps=[1])
    assert lines[1].startswith("x" * 50)
    assert lines[1].endswith("y" * 20)
    assert len(lines[1]) == WIDTH
    wrapped = [line[52:78].strip() for line in lines[1:]]
    assert " ".join(wrapped) == ("one two three " * 10).strip()


@pytest.mark.parametrize("colour", [True, False])
def test_colours_are_for_terminals(monkeypatch, colour):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1" if colour else "")
    line = table(("state",), [(Text("finished", "green"),)], "<")[1]
    assert line == ("\x1b[32mfinished\x1b[0m" if colour else "finished")
