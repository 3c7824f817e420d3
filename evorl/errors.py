"""The errors a user can act on. The command line prints their one line and exits with 2.

Notes of an error come before its line.
"""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ADVICE = "look for an error above, and start the run again"
SHOWN = 160  # characters of torch's own words
PLACE = re.compile(r"^(Gloo \w+ failed with )?\[\S+:\d+\] ")  # a file of gloo's, and its line


class EvorlError(Exception):
    """Something the user can fix: one line that says what, got what, and what to do.

    Attributes:
        lasting: Whether a run that it has ended would end so again if it resumed.
    """

    lasting = False

    def __str__(self) -> str:
        return one_line(super().__str__())


class ConfigError(EvorlError):
    """A configuration, or an override of it, that cannot be run."""


class EnvError(EvorlError):
    """An environment that raises too often (its traceback is a note), or whose masks are wrong."""


class RunError(EvorlError):
    """A run directory that cannot be written or read."""


class DeadError(RunError):
    """A run of which nobody is alive: it is computed again as it was."""

    lasting = True


class StageError(EvorlError):
    """Stages of a Task that cannot run as they are used, such as two at once on one name."""


class CheckpointError(EvorlError):
    """A checkpoint that cannot be written, or is not what was written."""


class WriteError(CheckpointError, RunError):
    """What cannot be written, as on a full disk."""


def raised(error: BaseException) -> str:
    """What somebody else's code raised, and in which of its lines."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"


@contextmanager
def rank_errors(what: str, advice: str = ADVICE) -> Iterator[None]:
    """Makes a RunError of what torch.distributed raises: RuntimeErrors, often of many lines."""
    try:
        yield
    except RuntimeError as error:
        line = (str(error).splitlines() or [""])[0]
        reason = PLACE.sub("", line).split(". ")[0][:SHOWN] or type(error).__name__
        raise RunError(f"{what} ({reason}); {advice}") from error


def printable(text: str) -> str:
    """The text line by line, with what a terminal would act on written as an escape."""
    return "\n".join(map(one_line, text.expandtabs().split("\n")))


def one_line(text: str) -> str:
    """The text with everything that does not print, such as a line break, written as an escape."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
