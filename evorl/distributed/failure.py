"""Ranks that cannot be reached, in one line."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from evorl.errors import RunError

ADVICE = "look for an error above, and start the run again"
SHOWN = 160  # characters of torch's own words
PLACE = re.compile(r"^(Gloo \w+ failed with )?\[\S+:\d+\] ")  # a file of gloo's, and its line
MISSING = re.compile(r"Ranks ([\d, ]+) failed to pass monitoredBarrier in (\d+) ms")  # on rank 0
LEFT = "successfully reached monitoredBarrier, but"  # on the others


@contextmanager
def rank_errors(
    what: str, advice: str = ADVICE, silent: Callable[[], list[int]] = list
) -> Iterator[None]:
    """Makes a RunError of what torch.distributed raises: RuntimeErrors, often of many lines.

    `silent` is asked then which ranks don't answer: they are named.
    """
    try:
        yield
    except RuntimeError as error:
        missing = silent()
        verb = "does" if len(missing) == 1 else "do"
        whose = f"{_names(missing)} {verb} not answer; " if missing else ""
        raise RunError(f"{what} ({_reason(error)}); {whose}{advice}") from error


def _reason(error: RuntimeError) -> str:
    """The first sentence of what torch says; who was missing at a barrier."""
    line = (str(error).splitlines() or [""])[0]
    if late := MISSING.search(line):
        names = _names(late[1].split(", "))
        return f"{names} did not come within {int(late[2]) / 1000:g} s, or left"
    if LEFT in line:
        return "the main rank did not come in time, or left"
    return PLACE.sub("", line).split(". ")[0][:SHOWN] or type(error).__name__


def _names(numbers: Sequence[int | str]) -> str:
    """Such as: ranks 1, 3."""
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
