"""evorl runs: which runs there are, and how far each is."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evorl.cli.shared import JSON, PATH, table
from evorl.errors import one_line

if TYPE_CHECKING:
    from evorl.runs import RunState

UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
COLOURS = {"running": "cyan", "finished": "green", "stopped": "yellow"}
COLOURS |= dict.fromkeys(("failed", "damaged"), "red")


@click.command
@click.argument("folder", type=PATH, default=Path("runs"))
@JSON
def runs(folder: Path, as_json: bool) -> None:
    """List the runs in FOLDER and the folders in it, by default runs, the newest first.

    A run is running, finished, stopped (evorl resume resumes it), failed (an error has ended it:
    the last lines say why, and what to do) or damaged. The score is that of
    the best agent on held-out episodes, with its 95 % interval; of a run that is not finished the
    confirmed fitness of the best agent so far. Age is the time since a run last wrote something.
    Folders that are no runs are left out.

    \b
    evorl runs
    evorl runs experiments/lunar_lander
    evorl runs --json | jq -r '.[] | select(.state == "stopped") | .path'
    """
    from evorl.runs import find_runs

    found = find_runs(folder)
    if as_json:
        click.echo(json.dumps([run.to_json() for run in found], indent=2))
    elif not found:
        click.echo(one_line(f"{folder}: no runs here; make one with evorl train CONFIG"))
    else:
        above = folder.parent if found[0].path == folder else folder
        click.echo("\n".join(_lines(found, above)))


def _lines(found: "Sequence[RunState]", folder: Path) -> Iterator[str]:
    """A table of the runs of a folder, and a line for each that has failed or is damaged."""
    from rich.text import Text

    now = time.time()
    rows = [
        (
            run.path.relative_to(folder).as_posix(),
            run.env or "—",
            Text(run.state, COLOURS[run.state]),
            _score(run),
            "—" if run.generation is None else str(run.generation),
            _steps(run),
            describe_age(now - run.changed),
        )
        for run in found
    ]
    header = (f"{folder}/", "environment", "state", "score", "generation", "steps", "age")
    yield from table(header, rows, "<<<<>>>")
    for run in found:
        if run.problem is not None:
            where = f"{run.path}: " if run.state == "failed" else ""  # damage names its file
            yield one_line(f"{run.state}: {where}{run.problem}")
    if any(run.state == "stopped" for run in found):
        yield "resume a stopped run with evorl resume RUN"
    if any(run.state == "failed" and run.resumable for run in found):
        yield "a run that has failed resumes, too, once its cause is gone"


def describe_age(seconds: float) -> str:
    """How long ago something was, such as `3 h`."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "now"


def _score(run: "RunState") -> str:
    from evorl.runs import decimals

    if run.score is not None:
        value, interval = run.score.texts()
        return f"{value} ({interval})" if interval else value
    return "—" if run.best is None else f"best {run.best:.{decimals([run.best])}f}"


def _steps(run: "RunState") -> str:
    if run.state == "finished" or run.share is None:
        return f"{run.env_steps:,}"
    return f"{run.env_steps:,} ({min(100, int(100 * run.share))} %)"
