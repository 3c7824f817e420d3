"""Ranks that cannot be reached, told in one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from evorl.errors import RunError

ADVICE = "look for an error above, and start the run again"
SHOWN = 160  # characters of torch's own words
PLACE = re.compile(r"^(Gloo \w+ failed with )?\[\S+:\d+\] ")  # a file of gloo's, and its line


@contextmanager
def telling(what: str, advice: str = ADVICE) -> Iterator[None]:
    """Makes a RunError of what torch.distributed raises: RuntimeErrors, often of many lines."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(f"{what} ({_reason(error)}); {advice}") from error


def _reason(error: RuntimeError) -> str:
    """The first sentence of what torch says."""
    line = (str(error).splitlines() or [""])[0]
    return PLACE.sub("", line).split(". ")[0][:SHOWN] or type(error).__name__
