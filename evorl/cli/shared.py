"""What commands share: arguments and options, the console, tables as text."""

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evorl.errors import ConfigError, one_line

if TYPE_CHECKING:
    from rich.text import Text

    from evorl.reporting import Console
    from evorl.runs import Summary
    from evorl.training import Score


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """What an override can become, for the tab key."""
    from evorl.cli.completion import find_completions

    return find_completions(ctx, param, incomplete)


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

WIDTH = 100  # columns of a table with cells that may wrap

PATH = click.Path(path_type=Path)
RUN = click.argument("run", type=PATH)
RUNS = click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=PATH)
OVERRIDES = click.argument(
    "overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...", shell_complete=complete
)
AGENT = click.option("--agent", type=int, metavar="ID", help="Another agent than the best one.")
SEED = click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Other episodes; the same ones for agents of all runs, in watch and evaluate.",
)
OPEN = click.option("--open", "show", is_flag=True, help="Open it in a browser.")
QUIET = click.option("-q", "--quiet", is_flag=True, help="Print results only.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print it in JSON, for scripts.")
VERBOSE = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print all agents, and between which values their hyperparameters lie.",
)


def episodes(default: int) -> Decorator:
    """--episodes: how many."""
    kind, text = click.IntRange(1, 1_000_000), "Episodes to play."
    return click.option("--episodes", type=kind, default=default, show_default=True, help=text)


def output(metavar: str, help: str) -> Decorator:
    """--output: where to write."""
    return click.option("-o", "--output", type=PATH, metavar=metavar, help=help)


def make_console(quiet: bool = False, verbose: bool = False) -> "Console":
    """What a command prints on, warnings of Python too."""
    from evorl.reporting import Console, show_warnings_on

    if quiet and verbose:
        raise ConfigError("--verbose: not with --quiet; leave one of them out")
    console = Console(quiet, verbose)
    show_warnings_on(console)
    return console


def echo_json(value: Any) -> None:
    """Strict JSON: what is not known is null."""
    from evorl.runs import strict_json

    click.echo(strict_json(value, indent=2))


def echo_score(score: "Score | Summary", directory: Path, whose: str = "") -> None:
    """What a run ended with."""
    click.echo(
        f"{whose}held-out score over {score.episodes} episodes: mean {score.mean}, IQM {score.iqm}"
    )
    click.echo(f"best agent, metrics and summary: {directory}")


def table(
    header: Sequence[str],
    rows: "Sequence[Sequence[str | Text]]",
    align: str,
    wraps: Collection[int] = (),
) -> list[str]:
    """Lines of a table; `align` has < or > for each column, `wraps` the columns that may wrap.

    A cell that is a rich Text has its colour, on a terminal.
    """
    from rich.table import Table

    from evorl.reporting import as_text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for column, side in enumerate(align):
        grid.add_column(justify="right" if side == ">" else "left", no_wrap=column not in wraps)
    for row in (header, *rows):
        grid.add_row(*(one_line(cell) if isinstance(cell, str) else cell for cell in row))
    return as_text(sys.stdout, grid, width=WIDTH if wraps else 100 * WIDTH).split("\n")
