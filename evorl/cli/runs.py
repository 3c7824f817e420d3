"""evorl runs: which runs there are, and how far each is."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evorl.cli.text import decimals, table
from evorl.config.yaml_text import one_line
from evorl.reporting.console import Console

if TYPE_CHECKING:
    from rich.text import Text

    from evorl.runs.status import RunState

COLOURS = {"running": "cyan", "finished": "green", "stopped": "yellow"}
UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@click.command(short_help="List runs: state, score and age, the newest first.")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--json", "as_json", is_flag=True, help="Print a list in JSON, for scripts.")
def runs(folder: Path, as_json: bool) -> None:
    """List the runs in FOLDER and the folders in it, by default runs, the newest first.

    A run is running, finished, stopped (evorl resume goes on with it) or damaged. The score is that
    of the best agent on held-out episodes, with its 95 % interval; of a run that is not finished
    the confirmed fitness of the best agent so far. Age is the time since a run last wrote
    something. Folders that are no runs are left out.

    \b
    evorl runs
    evorl runs experiments/lunar_lander
    evorl runs --json | jq -r '.[] | select(.state == "stopped") | .path'
    """
    from evorl.runs.status import find_runs

    found = find_runs(folder)
    if as_json:
        click.echo(json.dumps([run.to_json() for run in found], indent=2))
    elif not found:
        click.echo(one_line(f"{folder}: no runs here; make one with evorl train CONFIG"))
    else:
        above = folder.parent if found[0].path == folder else folder
        Console().say(*run_lines(found, above, time.time()))


def run_lines(found: "Sequence[RunState]", folder: Path, now: float) -> Iterator["str | Text"]:
    """A table of the runs of a folder, and a line for each that is damaged."""
    rows = [
        (
            one_line(run.path.relative_to(folder).as_posix()),
            one_line(run.env or "—"),
            run.state,
            _score(run),
            "—" if run.generation is None else str(run.generation),
            _steps(run),
            describe_age(now - run.changed),
        )
        for run in found
    ]
    header = (
        one_line(f"{folder}/"),
        "environment",
        "state",
        "score",
        "generation",
        "steps",
        "age",
    )
    lines = table(header, rows, "<<<<>>>")
    yield lines[0]
    for run, line in zip(found, lines[1:], strict=True):
        yield _paint_state(line, lines[0].rindex("state"), run.state)
    for run in found:
        if run.problem is not None:
            yield f"damaged: {run.problem}"
    if any(run.state == "stopped" for run in found):
        yield "stopped runs go on with evorl resume RUN"


def _paint_state(line: str, start: int, state: str) -> "Text":
    from rich.text import Text

    text = Text(line)
    text.stylize(COLOURS.get(state, "red"), start, start + len(state))
    return text


def describe_age(seconds: float) -> str:
    """How long ago something was, such as `3 h`."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "now"


def _score(run: "RunState") -> str:
    if run.score is not None:
        places = decimals(run.score.value)
        interval = f" ({run.score.low:.{places}f} to {run.score.high:.{places}f})"
        return f"{run.score.value:.{places}f}" + (interval if run.score.known else "")
    return "—" if run.best is None else f"best {run.best:.{decimals(run.best)}f}"


def _steps(run: "RunState") -> str:
    if run.state == "finished" or run.share is None:
        return f"{run.env_steps:,}"
    return f"{run.env_steps:,} ({min(100, int(100 * run.share))} %)"
