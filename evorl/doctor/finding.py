"""What a check has found."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """One line of the report."""

    state: Literal["ok", "missing", "broken"]
    what: str  # what is there, or what happened
    advice: str = ""  # what to do, unless it is ok
