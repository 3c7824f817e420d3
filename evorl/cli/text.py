"""Figures and tables as plain text."""

import textwrap
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evorl.runs.statistics import Estimate

WIDTH = 100  # columns of a table
NARROWEST = 16  # columns of a cell that wraps
GAP = "  "
GLUE = "\u00a0"  # a space at which no cell wraps


def decimals(*values: float) -> int:
    """How many decimals show what matters of values such as these."""
    return 1 if max(map(abs, values), default=0.0) >= 10 else 3


def show_estimate(estimate: "Estimate", places: int = 1) -> str:
    """A figure with its interval."""
    low, high = f"{estimate.low:.{places}f}", f"{estimate.high:.{places}f}"
    interval = f"(95 % interval {low} to {high})" if estimate.known else "(no interval)"
    return f"{estimate.value:.{places}f} {interval}"


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], align: str, wraps: Collection[int] = ()
) -> list[str]:
    """Lines of a table; `align` has < or > for each column, `wraps` the columns that may wrap."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rest = [width for column, width in enumerate(widths) if column not in wraps]
    room = WIDTH - sum(rest) - len(GAP) * (len(widths) - 1)
    by_width = sorted(wraps, key=widths.__getitem__)  # the widest gets what the others leave
    for place, column in enumerate(by_width):
        share = max(NARROWEST, room // (len(by_width) - place))
        widths[column] = min(widths[column], share)
        room -= widths[column]
    lines: list[str] = []
    for row in (header, *rows):
        cells = [_wrap(text, width) for text, width in zip(row, widths, strict=True)]
        for k in range(max(map(len, cells))):
            parts = [
                f"{cell[k] if k < len(cell) else '':{side}{width}}"
                for cell, side, width in zip(cells, align, widths, strict=True)
            ]
            lines.append(GAP.join(parts).rstrip())
    return lines


def keep_together(text: str) -> str:
    """A list with commas that, as a cell, wraps between its items; long items wrap anyway."""
    items = text.split(", ")
    return ", ".join(i.replace(" ", GLUE) if len(i) < 2 * NARROWEST else i for i in items)


def _wrap(text: str, width: int) -> list[str]:
    """Lines of a cell; only a word that is longer than a line is cut."""
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    cut = [line[k : k + width] for line in lines for k in range(0, len(line), width)]
    return [line.replace(GLUE, " ") for line in cut or [""]]
