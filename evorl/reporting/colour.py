"""Colours, on terminals that have them and where nobody asked to go without (no-color.org)."""

import os
from typing import IO


def wants_colour(stream: IO[str]) -> bool:
    """Whether what is written to a stream may be coloured: never in a file or a pipe."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:  # it is closed
        return False


class Ink:
    """Colours a text; one that is off leaves it as it is."""

    def __init__(self, on: bool = False) -> None:
        self.on = on

    def bold(self, text: str) -> str:
        """For headings."""
        return self._paint("1", text)

    def dim(self, text: str) -> str:
        """For what is there for completeness."""
        return self._paint("2", text)

    def good(self, text: str) -> str:
        """Green."""
        return self._paint("32", text)

    def warning(self, text: str) -> str:
        """Yellow."""
        return self._paint("33", text)

    def bad(self, text: str) -> str:
        """Red."""
        return self._paint("31", text)

    def new(self, text: str) -> str:
        """Cyan."""
        return self._paint("36", text)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text
