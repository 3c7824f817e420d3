"""What others have raised reaches a terminal as text, and not as its commands."""

from evorl.errors import one_line, printable
from evorl.reporting import Console


def test_escapes_are_written_out():
    text = 'Traceback:\n\tFile "x"\nOSError: \x1b[2J\x1b]0;title\x07 \x9b31m\r gone'
    assert printable(text) == (
        'Traceback:\n        File "x"\nOSError: \\x1b[2J\\x1b]0;title\\x07 \\x9b31m\\r gone'
    )
    assert one_line("a\nb\x1b") == "a\\nb\\x1b"


def test_warnings_are_text(capsys):
    Console().warn("an environment said \x1b[31mred\nand more")
    assert capsys.readouterr().err == "warning: an environment said \\x1b[31mred\\nand more\n"
