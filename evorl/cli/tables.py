"""Figures and tables as text."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from evorl.errors import one_line

if TYPE_CHECKING:
    from rich.text import Text

    from evorl.runs import Estimate

WIDTH = 100  # columns of a table
NARROWEST = 16  # columns of a cell that wraps
GAP = 2  # columns between cells
GLUE = "\u2800"  # looks like a space, at which no cell wraps


def decimals(*values: float) -> int:
    """How many decimals show what matters of values such as these."""
    return 1 if max(map(abs, values), default=0.0) >= 10 else 3


def show_estimate(estimate: "Estimate", places: int = 1) -> str:
    """A figure with its interval."""
    low, high = f"{estimate.low:.{places}f}", f"{estimate.high:.{places}f}"
    interval = f"(95 % interval {low} to {high})" if estimate.known else "(no interval)"
    return f"{estimate.value:.{places}f} {interval}"


def table(
    header: Sequence[str],
    rows: "Sequence[Sequence[str | Text]]",
    align: str,
    wraps: Collection[int] = (),
) -> list[str]:
    """Lines of a table; `align` has < or > for each column, `wraps` the columns that may wrap.

    A cell that is a rich Text has its colour, on a terminal.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    texts = [
        [Text(one_line(cell)) if isinstance(cell, str) else cell for cell in row]
        for row in (header, *rows)
    ]
    widths = [max(cell.cell_len for cell in column) for column in zip(*texts, strict=True)]
    least = [min(w, NARROWEST) if k in wraps else w for k, w in enumerate(widths)]
    grid = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=False)
    for column, side in enumerate(align):
        grid.add_column(
            justify="right" if side == ">" else "left",
            no_wrap=column not in wraps,
            min_width=least[column],
        )
    for row in texts:
        grid.add_row(*row)
    console = Console(width=max(WIDTH, sum(least) + GAP * (len(least) - 1)))
    with console.capture() as captured:
        console.print(grid)
    return [line.replace(GLUE, " ").rstrip() for line in captured.get().splitlines()]


def keep_together(text: str) -> str:
    """A list with commas that, as a cell, wraps between its items; long items wrap anyway."""
    items = text.split(", ")
    return ", ".join(i.replace(" ", GLUE) if len(i) < 2 * NARROWEST else i for i in items)
