"""evorl report and dashboard: a run, or several, as a page in a browser."""

import webbrowser
from pathlib import Path

import click

from evorl.cli.shared import OPEN, PATH, RUNS, output


@click.command
@RUNS
@output("FILE", "Where to write it; RUN/report.html if left out, report.html for several runs.")
@OPEN
def report(runs: tuple[Path, ...], output: Path | None, show: bool) -> None:
    """Write a report of the run directory RUN: one HTML file that needs no network.

    It shows the score, the fitness of all agents, the family tree, hyperparameters and which of
    them mattered, mutations, architectures, training curves, and how to train it again. Works while
    the run trains, too. Several runs are compared, and so are those of a group. docs/report.md says
    how to read it.

    \b
    evorl report runs/cartpole --open
    evorl report runs/cartpole --output cartpole.html
    evorl report runs/evolved-1 runs/evolved-2 runs/plain-1
    """
    from evorl.reporting import read_payload, render, write_page
    from evorl.runs import expand_groups

    data = read_payload(expand_groups(runs))
    names = [run["name"] for run in data["runs"]]
    title = f"{names[0]} – evorl" if len(names) == 1 else f"{len(names)} runs – evorl"
    if output is None:
        output = (runs[0] if len(runs) == 1 else Path()) / "report.html"
    write_page(output, render({"kind": "report", "data": data, "live": None}, title))
    click.echo(f"report: {output}")
    if show and not webbrowser.open(output.resolve().as_uri()):
        click.echo("there is no browser here: open the file yourself", err=True)


@click.command
@click.argument("folder", required=False, default="runs", type=PATH, metavar="[RUNS]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Where it listens; 0 takes any free one.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Who may read it: this machine only, or all that can reach this address.",
)
@OPEN
def dashboard(folder: Path, port: int, host: str, show: bool) -> None:
    """Show all runs in the folder RUNS (runs, if left out) in a browser, until Ctrl-C.

    A run's page is that of `evorl report`, and follows the run while it trains. Runs can be tagged,
    and stopped after their generation; with --host, which has no password, they can only be read.
    To see it from another machine, better use `ssh -L 8000:localhost:8000 MACHINE`.

    \b
    evorl dashboard
    evorl dashboard runs/lunar_lander --port 8080 --open
    """
    from evorl.reporting import Dashboard

    with Dashboard(folder, host, port) as server:
        click.echo(f"dashboard of {folder}: {server.address} (Ctrl-C ends it)")
        if server.public:
            warning = f"everybody who can reach {host} can read these runs, without a password"
            click.echo(f"warning: {warning}", err=True)
        if show:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("\ndashboard ended", err=True)
