"""What a person sees while a run goes on: one progress bar, and text above it."""

import sys
import warnings
from typing import Any

from tqdm import tqdm

from evorl.reporting.colour import Ink, wants_colour


class Console:
    """A bar over environment steps, and lines above it.

    `quiet` shows warnings only, `verbose` all that there is to say. There is colour, and a bar, on
    a terminal only.
    """

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet, self.verbose = quiet, verbose and not quiet
        self.ink = Ink(wants_colour(sys.stdout))
        self._bar: tqdm[Any] | None = None  # tqdm is generic in its stubs only

    def say(self, text: str) -> None:
        """A line above the bar, or several in one piece."""
        if not self.quiet:
            tqdm.write(text)

    def start(self, total: int, what: str, unit: str) -> None:
        """Open a bar over so many units."""
        self.close()
        self._bar = tqdm(
            total=total,
            desc=what,
            unit=unit,
            unit_scale=True,
            disable=True if self.quiet else None,  # None: no bar in a log file
            leave=False,
            dynamic_ncols=True,
            mininterval=0.2,
            smoothing=0.05,
        )

    def advance(self, steps: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(steps)

    def show(self, text: str) -> None:
        """Put a short text at the bar's end."""
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def warn(self, message: Warning | str, *_: object, **__: object) -> None:
        """A warning as one line, with --quiet too; takes warnings.showwarning's arguments."""
        ink = Ink(wants_colour(sys.stderr))
        tqdm.write(f"{ink.warning('warning:')} {message}", file=sys.stderr)


def show_warnings_on(console: Console) -> None:
    """Send Python's warnings to the console, and those of evorl each once."""
    warnings.showwarning = console.warn
    warnings.filterwarnings("default", module="evorl")
