"""evorl report: a run, or several, as one HTML file."""

from pathlib import Path

import click

from evorl.cli.options import OPEN, RUN, output


@click.command
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=RUN)
@output("FILE", "Where to write it; RUN/report.html if left out, report.html for several runs.")
@OPEN
def report(runs: tuple[Path, ...], output: Path | None, show: bool) -> None:
    """Write a report of the run directory RUN: one HTML file that needs no network.

    It shows the score, the fitness of all agents, the family tree, hyperparameters, mutations,
    architectures, exploration and loss, and how to train it again. Works while the run trains, too.
    Several runs are compared. docs/report.md says how to read it.

    \b
    evorl report runs/cartpole --open
    evorl report runs/cartpole --output cartpole.html
    evorl report runs/evolved-1 runs/evolved-2 runs/plain-1
    """
    from evorl.reporting import read_payload, render, write_page

    data = read_payload(runs)
    names = [run["name"] for run in data["runs"]]
    title = f"{names[0]} – evorl" if len(names) == 1 else f"{len(names)} runs – evorl"
    if output is None:
        output = (runs[0] if len(runs) == 1 else Path()) / "report.html"
    write_page(output, render({"kind": "report", "data": data, "live": None}, title))
    click.echo(f"report: {output}")
    if show:
        import webbrowser

        if not webbrowser.open(output.resolve().as_uri()):
            click.echo("there is no browser here: open the file yourself", err=True)
