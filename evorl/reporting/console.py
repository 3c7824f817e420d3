"""What a person sees while a run trains: one progress bar, and text and tables above it.

rich draws and colours, tqdm has the bar. Both are imported when something is shown, as most
commands start without them.
"""

import os
import sys
import warnings
from typing import IO, TYPE_CHECKING, Any, Literal

from evorl.errors import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from tqdm import tqdm

FILE_WIDTH = 10_000  # columns of a file or a pipe, where no line wraps


class Console:
    """A bar over environment steps, and lines above it; bar and colours on a terminal only.

    `quiet` shows warnings only, `verbose` all that there is to say.
    """

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet, self.verbose = quiet, verbose and not quiet
        self._bar: tqdm[Any] | None = None  # tqdm is generic in its stubs only

    def say(self, *parts: "RenderableType") -> None:
        """Lines and tables above the bar, in one piece."""
        if not self.quiet:
            _write(sys.stdout, *parts)

    def start(self, total: int, what: str, unit: str) -> None:
        """Open a bar over this many units."""
        from tqdm import tqdm

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
        from rich.text import Text

        _write(sys.stderr, Text.assemble(("warning:", "yellow"), f" {one_line(str(message))}"))


def show_warnings_on(console: Console) -> None:
    """Send Python's warnings to the console, and those of evorl each once."""
    warnings.showwarning = console.warn
    warnings.filterwarnings("default", module="evorl")


def own_lock() -> None:
    """In a process that was forked: wait for no other process before writing.

    tqdm's lock is shared with them, and stays taken if one of them is killed.
    """
    from threading import RLock

    from tqdm import tqdm

    tqdm.set_lock(RLock())


def as_text(stream: IO[str], *parts: "RenderableType", width: int | None = None) -> str:
    """Lines and tables as text for a stream: in a file without colours, and no line wraps."""
    from rich.console import Console as Rich
    from rich.text import Text

    # With NO_COLOR (no-color.org) rich itself would keep bold and dim.
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    rich = Rich(file=stream, color_system=colours, highlight=False, markup=False, emoji=False)
    if width or not rich.is_terminal:
        rich.width = width or FILE_WIDTH
    with rich.capture() as captured:
        for part in parts:
            rich.print(part, soft_wrap=isinstance(part, str | Text))
    return "\n".join(line.rstrip() for line in captured.get().removesuffix("\n").split("\n"))


def _write(stream: IO[str], *parts: "RenderableType") -> None:
    from tqdm import tqdm

    tqdm.write(as_text(stream, *parts), file=stream)
