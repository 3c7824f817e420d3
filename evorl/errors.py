"""The errors a user can act on. The command line prints their one line and exits with 2.

Notes of an error come before its line.
"""

import traceback
from pathlib import Path


class EvorlError(Exception):
    """Something the user can fix: one line that says what, got what, and what to do."""

    def __str__(self) -> str:
        return one_line(super().__str__())


class ConfigError(EvorlError):
    """A configuration, or an override of it, that cannot be run."""


class EnvError(EvorlError):
    """An environment that raises too often (its traceback is a note), or whose masks are wrong."""


class RunError(EvorlError):
    """A run directory that cannot be written or read."""


class CheckpointError(EvorlError):
    """A checkpoint that cannot be written, or is not what was written."""


def raised(error: BaseException) -> str:
    """What somebody else's code raised, and in which of its lines."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"


def one_line(text: str) -> str:
    """The text with everything that does not print, such as a line break, written as an escape."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
